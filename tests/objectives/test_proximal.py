"""The proximal clip on an enumerable bandit: below J, equal to it near μ, and with a known maximum that improves."""

from __future__ import annotations

from math import log

import pytest
import torch
from tabular import Bandit, bandit, draws, formula

WORLD = bandit()
EITHER = Bandit(WORLD.d, WORLD.mu, WORLD.r - 1.2)  # rewards of both signs
CLIPS = (1.05, 1.5, 3.0)


def objective(world, logits, clip):
    """E_μ[f(ρ, r)], f = min(ρ, ε) r for r >= 0 and max(ρ, 1/ε) r below."""
    ratio = torch.softmax(logits, 1) / world.mu
    value = torch.where(world.r >= 0, ratio.clamp(max=clip) * world.r, ratio.clamp(min=1 / clip) * world.r)
    return (world.d[:, None] * world.mu * value).sum()


def best(world, clip):
    """ρ = ε on the best actions until probability runs out."""
    pi = torch.zeros_like(world.mu)
    for x in range(len(world.mu)):
        left = 1.0
        for a in world.r[x].argsort(descending=True):
            pi[x, a] = min(clip * float(world.mu[x, a]), left)
            left -= float(pi[x, a])
    return pi


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("world", [WORLD, EITHER], ids=["positive", "either"])
def test_its_gradient_is_that_of_the_clipped_objective(world, clip):
    logits = draws(*world.r.shape, seed=7).requires_grad_()
    terms = formula("proximal", world.readout(logits, logp_logging=world.mu.log()), clip=clip)
    (found,) = torch.autograd.grad(-world.expected(terms.losses["policy"]), logits)
    (expected,) = torch.autograd.grad(objective(world, logits, clip), logits)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert expected.abs().max() > 1e-3
    assert 0 < terms.clipped.sum() < terms.clipped.numel()


@pytest.mark.parametrize("world", [WORLD, EITHER], ids=["positive", "either"])
def test_it_is_below_j_and_equal_to_it_where_nothing_is_clipped(world):
    for seed in range(10):
        step = draws(*world.r.shape, seed=seed)
        near, far = world.mu.log() + 0.01 * step, 3 * step
        torch.testing.assert_close(objective(world, near, 1.5), world.J(torch.softmax(near, 1)), rtol=1e-13, atol=0)
        assert objective(world, far, 1.5) < world.J(torch.softmax(far, 1)) - 1e-4


@pytest.mark.parametrize("clip", CLIPS)
def test_its_maximum_is_the_best_of_mu_and_improves_within_log_clip(clip):
    pi = best(WORLD, clip)
    top = objective(WORLD, pi.clamp(min=1e-300).log(), clip)
    for seed in range(40):
        assert objective(WORLD, 2 * draws(*WORLD.r.shape, seed=seed), clip) < top
    torch.testing.assert_close(top, WORLD.J(pi), rtol=1e-10, atol=0)  # nothing is clipped there
    assert WORLD.J(pi) > WORLD.J(WORLD.mu) + 0.005
    assert torch.special.xlogy(pi, pi / WORLD.mu).sum(1).max() <= log(clip) + 1e-12


def test_beyond_the_clip_nothing_is_pushed_on():
    """A sure bet at ρ > ε has no weight; `ips` still pushes it with c r."""
    logits = WORLD.mu.log().clone()
    logits[0, 3] += 5.0
    readout = WORLD.readout(logits, logp_logging=WORLD.mu.log())
    ours, theirs = formula("proximal", readout, clip=1.2), formula("ips", readout, clip=1.2)
    assert ours.clipped[3] and ours.weight[3] == 0 < theirs.weight[3]
