"""A divergence budget instead of a β: the largest tilt that stays within KL or JS of the run's own μ̂.

Along π_β ∝ μ̂ exp(Q/β) both divergences rise with 1/β, so bisection finds the β that meets a budget. For KL the tilt
is the optimal policy within the budget; for JS it is the best of this family.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from localpolicy.catalogue import backend
from localpolicy.catalogue.logits import tilted
from localpolicy.data.batches import Windows
from localpolicy.errors import ConfigError
from localpolicy.model.policy import Policy

LOWEST, HIGHEST = 1e-6, 1e6
STEPS = 40  # halvings of log β: to 1e-11 of its range


class Tilt(NamedTuple):
    """A β and the mean divergences of π_β from μ̂."""

    beta: float
    js: float
    kl: float


@torch.no_grad()
def beta_within(
    policy: Policy,
    windows: Windows,
    *,
    max_kl: float | None = None,
    max_js: float | None = None,
    floor: float | None = None,
    contexts: int = 2_000,
) -> Tilt:
    """The smallest β whose divergence from the policy's own μ̂ is within the budget, on held-out contexts.

    `floor` is the same divergence between two estimates of μ: a budget below it means nothing, and is refused.
    """
    if (max_kl is None) == (max_js is None):
        raise ConfigError("give exactly one of max_kl and max_js.")
    name, budget = ("KL", max_kl) if max_kl is not None else ("JS", max_js)
    assert budget is not None
    if budget <= 0:
        raise ConfigError(f"a {name} budget must be > 0, got {budget}.")
    if floor is not None and budget < floor:
        raise ConfigError(
            f"a {name} budget of {budget:g} is below the noise floor: two estimates of the same logging policy already "
            f"differ by {floor:g}. Allow at least that."
        )
    base, critic = policy.dialled(1.0).origin.estimates_logging, policy.critic  # raises where there is no dial
    assert base is not None and critic is not None
    network, hidden = policy.network, _contexts(policy, windows, contexts)
    logging, values = network.head(base).detach(), network.head(critic).detach()
    reference = logging.logits(hidden)

    def at(log_beta: float) -> Tilt:
        beta = 10.0**log_beta
        js, kl = backend().divergence(tilted(hidden, logging, values, beta=beta), reference)
        return Tilt(beta, float(js.double().mean()), float(kl.double().mean()))

    def within(tilt: Tilt) -> bool:
        return (tilt.kl if max_kl is not None else tilt.js) <= budget

    low, high = (torch.log10(torch.tensor(end, dtype=torch.float64)).item() for end in (LOWEST, HIGHEST))
    if within(at(low)):
        return at(low)
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if within(at(middle)) else (middle, high)
    return at(high)


def _contexts(policy: Policy, windows: Windows, count: int) -> torch.Tensor:
    """Hidden states of the first `count` positions."""
    found, total = [], 0
    for batch in windows.in_order(256):
        found.append(policy.network.hidden_without_dropout(batch)[batch.scored])
        total += len(found[-1])
        if total >= count:
            break
    return torch.cat(found)[:count]
