"""`mle` on a log that states propensities: the same KL(μ‖π), without the noise of the draw."""

from __future__ import annotations

import math

import pytest
import torch
from tabular import bandit, draws, formula, maximise

from localpolicy.objectives import MLE
from localpolicy.types import Readout

WORLD = bandit(contexts=3, items=5)


def terms(logits, *, mu=WORLD.mu, **settings):
    readout = WORLD.readout(logits, logged_propensity=mu)
    return formula("mle", readout, propensities="logged", **{"clip": 1e9, **settings}).losses


def total(losses):
    return losses["policy"] + losses["control"]


@pytest.mark.parametrize("seed", [10, 11, 12])
def test_the_mean_of_the_loss_is_the_divergence_from_mu(seed):
    """E_μ[ρ - 1 - log ρ] = KL(μ‖π): the likelihood's own mean, less the entropy of μ; no position is below 0."""
    logits = draws(3, 5, seed=seed)
    log_pi, entropy = torch.log_softmax(logits, 1), -(WORLD.d[:, None] * WORLD.mu * WORLD.mu.log()).sum()
    kl = (WORLD.d[:, None] * WORLD.mu * (WORLD.mu.log() - log_pi)).sum()
    losses = terms(logits)
    torch.testing.assert_close(WORLD.expected(total(losses)) - entropy, kl, rtol=0, atol=1e-12)
    torch.testing.assert_close(WORLD.expected(losses["control"]), torch.zeros((), dtype=torch.float64))
    assert (total(losses).reshape(3, 5) + WORLD.mu.log()).min() > 0


def test_at_mu_no_position_pulls():
    logits = WORLD.mu.log().requires_grad_()
    slopes = torch.autograd.grad(total(terms(logits)), logits, torch.ones(15, dtype=torch.float64))[0]
    alone = [torch.autograd.grad(total(terms(logits))[n], logits)[0].abs().max() for n in range(15)]
    assert slopes.abs().max() < 1e-12 and max(alone) < 1e-12
    plain = torch.autograd.grad(formula("mle", WORLD.readout(logits)).losses["policy"][0], logits)[0]
    assert plain.abs().max() > 0.1, "the likelihood alone pulls at every position, and is right on average only"


@pytest.mark.parametrize("hidden", [False, True])
def test_the_optimum_is_the_likelihoods_also_where_no_policy_of_the_class_is_mu(hidden):
    """One distribution for all contexts: both find Σ_x d(x) μ(a|x), as if μ knew x and the history did not show it."""
    logits = draws(1 if hidden else 3, 5, seed=9).requires_grad_()
    maximise([logits], lambda: -WORLD.expected(total(terms(logits))))
    best = (WORLD.d[:, None] * WORLD.mu).sum(0, keepdim=True) if hidden else WORLD.mu
    torch.testing.assert_close(torch.softmax(logits.detach(), 1), best, rtol=0, atol=1e-6)


def test_a_short_log_identifies_mu_exactly():
    """Forty actions: counts are far off, and the stated probabilities are not."""
    mu = WORLD.mu[0]
    drawn = torch.multinomial(mu, 40, replacement=True, generator=torch.Generator().manual_seed(1))
    assert len(drawn.unique()) == 5, "an action that was never taken stays unknown"
    found = {}
    for name, stated in {"counts": None, "stated": mu[drawn]}.items():
        logits = torch.zeros(5, dtype=torch.float64, requires_grad=True)

        def value(logits=logits, stated=stated):
            readout = Readout(torch.log_softmax(logits, 0)[drawn], torch.zeros(40), logged_propensity=stated)
            settings = {} if stated is None else {"propensities": "logged", "clip": 1e9}
            return -sum(formula("mle", readout, **settings).losses.values()).mean()

        maximise([logits], value)
        found[name] = torch.softmax(logits.detach(), 0)
    torch.testing.assert_close(found["counts"], torch.bincount(drawn) / 40.0, rtol=0, atol=1e-5, check_dtype=False)
    torch.testing.assert_close(found["stated"], mu, rtol=0, atol=1e-5)
    assert (found["counts"] - mu).abs().max() > 0.02


def test_by_hand_with_a_clip_and_a_propensity_that_is_missing():
    logp = torch.tensor([math.log(0.2), math.log(0.5), math.log(0.3)], dtype=torch.float64, requires_grad=True)
    stated = torch.tensor([0.1, 0.05, math.nan], dtype=torch.float64)
    losses = formula(
        "mle", Readout(logp, logp.detach(), logged_propensity=stated), propensities="logged", clip=4
    ).losses
    expected = torch.tensor([2 - 1, 4 - 1 + 4 * math.log(10 / 4), 0.0], dtype=torch.float64)
    torch.testing.assert_close(losses["control"], expected)
    slopes = torch.autograd.grad(sum(loss.sum() for loss in losses.values()), logp)[0]
    torch.testing.assert_close(slopes, torch.tensor([2.0 - 1, 4.0 - 1, -1.0], dtype=torch.float64))


def test_propensities_are_used_if_logged_and_not_switched_off():
    assert MLE().resolved(propensities=True).propensities == "logged"
    assert MLE().resolved(propensities=False).propensities == "unused"
    assert MLE(propensities="unused").resolved(propensities=True).propensities == "unused"
    assert MLE(propensities="logged").reads().fields == {"logged_propensity"} and not MLE().reads().fields
