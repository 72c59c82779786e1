"""Divergence budget instead of a β: the largest tilt that stays within KL or JS of the run's own μ̂.

Along π_β ∝ μ̂ exp(Q/β) both divergences rise with 1/β, so bisection finds the β that meets a budget. For KL the tilt is
the optimal policy within the budget; for JS it is the best of this family. If the tilt is capped, they rise until most
of the good items are at the cap, so the search goes outwards from μ̂.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from localpolicy.catalogue import backend
from localpolicy.data.batches import Windows
from localpolicy.errors import ConfigError
from localpolicy.model.policy import Policy

LOWEST, HIGHEST = 1e-6, 1e6
EDGES = 25  # values of log β that are tried first
STEPS = 36  # halvings of log β in between: to 1e-11


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

    `floor` is the same divergence between two estimates of μ: ConfigError for a budget below it, which would be noise.
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
    policy.dialled(1.0)  # raises where there is no dial
    hidden = _contexts(policy, windows, contexts)
    reference = policy.logging().rows_of(hidden)

    def at(log_beta: float) -> Tilt:
        beta = 10.0**log_beta
        js, kl = backend().divergence(policy.dialled(beta).rows_of(hidden), reference)
        return Tilt(beta, float(js.double().mean()), float(kl.double().mean()))

    def within(tilt: Tilt) -> bool:
        return (tilt.kl if max_kl is not None else tilt.js) <= budget

    # From μ̂ outwards to where the budget is first exceeded: where the tilt is capped, a policy beyond may be within.
    edges = torch.linspace(math.log10(HIGHEST), math.log10(LOWEST), EDGES, dtype=torch.float64).tolist()
    high = edges[0]
    for low in edges[1:]:
        if not within(at(low)):
            break
        high = low
    else:
        return at(high)
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if within(at(middle)) else (middle, high)
    return at(high)


def _contexts(policy: Policy, windows: Windows, count: int) -> torch.Tensor:
    """Hidden states of the first `count` positions: [count, D]."""
    hidden, total = [], 0
    for batch in windows.in_order(256):
        hidden.append(policy.network.hidden_without_dropout(batch)[batch.scored])
        total += len(hidden[-1])
        if total >= count:
            break
    return torch.cat(hidden)[:count]
