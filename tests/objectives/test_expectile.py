"""The expectile baseline: what V(x) converges to, from the mean of q under μ to its maximum; and what it changes."""

from __future__ import annotations

import pytest
import torch
from tabular import UNCAPPED, Learner, normalised, world

WORLD = world()
BETA = 0.5


def learned(expectile, *, cap=UNCAPPED):
    learner = Learner(WORLD, "lpi_cb", beta=BETA, cap=cap, baseline="expectile", expectile=expectile).converge(2)
    head = learner.network.heads["value"]
    return learner.pi, (head.weight[0, : len(WORLD.contexts)] + head.bias).detach()


@pytest.mark.parametrize("expectile", [0.5, 0.7, 0.9])
def test_the_value_head_solves_the_expectiles_equation(expectile):
    """τ E_μ[(r - V)+] = (1 - τ) E_μ[(V - r)+], in every context."""
    _, value = learned(expectile)
    excess = WORLD.reward - value[:, None]
    above = (WORLD.mu * excess.clamp(min=0)).sum(1)
    below = (WORLD.mu * (-excess).clamp(min=0)).sum(1)
    torch.testing.assert_close(expectile * above, (1 - expectile) * below, rtol=0, atol=1e-6)
    if expectile == 0.5:
        torch.testing.assert_close(value, (WORLD.mu * WORLD.reward).sum(1), rtol=0, atol=1e-6)


def test_it_rises_from_the_mean_towards_the_maximum():
    values = torch.stack([learned(expectile)[1] for expectile in (0.5, 0.7, 0.9, 0.995)])
    assert (values.diff(dim=0) > 1e-3).all()
    highest = WORLD.reward.amax(1)
    assert (values < highest).all() and (highest - values[-1]).max() < 0.1 * (highest - values[0]).max()


def test_the_optimum_does_not_depend_on_it_unless_a_cap_binds():
    tilt = normalised(WORLD.mu * (WORLD.reward / BETA).exp())
    torch.testing.assert_close(learned(0.9)[0], tilt, rtol=0, atol=1e-6)
    capped, value = learned(0.9, cap=1.1)
    expected = normalised(WORLD.mu * ((WORLD.reward - value[:, None]) / BETA).exp().clamp(max=1.1))
    torch.testing.assert_close(capped, expected, rtol=0, atol=1e-6)
    assert (capped - learned(0.5, cap=1.1)[0]).abs().max() > 1e-3
