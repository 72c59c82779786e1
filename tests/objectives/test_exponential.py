"""exp(r/λ) on observed rewards: what it converges to, and what noise can cost, in worlds whose every outcome is listed.

π ∝ μ E[e^{R/λ}|x,a] maximises E_π[c] - λ KL(π‖μ), c = λ log E[e^{R/λ}|x,a]. With r <= c <= r + b²/(8λ) for rewards in a
range b: J(π) >= J(μ) + λ KL(π‖μ) - b²/(8λ).
"""

from __future__ import annotations

from math import exp, log

import pytest
import torch
from tabular import UNCAPPED, Learner, World, draws, normalised

# One context and three items: a coin of 1 or 0, a sure 0.6, and a prize that comes one time in ten.
OUTCOMES = ((0, 1.0, 0.5), (0, 0.0, 0.5), (1, 0.6, 1.0), (2, 1.0, 0.1), (2, 0.2, 0.9))
MEANS = [0.5, 0.6, 0.1 * 1.0 + 0.9 * 0.2]


def noisy(mu=(0.3, 0.5, 0.2), outcomes=OUTCOMES, means=tuple(MEANS)):
    ends = torch.ones(1, len(mu), dtype=torch.float64)
    return World(
        steps=1,
        mu=torch.tensor([mu], dtype=torch.float64),
        reward=torch.tensor([means], dtype=torch.float64),
        ends=ends,
        outcomes=outcomes,
    )


def moments(world, temperature):
    """E[e^{R/λ}|a], by hand."""
    total = torch.zeros_like(world.mu)
    for item, reward, chance in world.outcomes:
        total[0, item] += chance * exp(reward / temperature)
    return total


@pytest.mark.parametrize("temperature", [2.0, 0.5, 0.15])
def test_it_converges_to_mu_times_the_exponential_moment(temperature):
    world = noisy()
    learner = Learner(world, "exp_weighted", temperature=temperature, cap=UNCAPPED).converge()
    torch.testing.assert_close(learner.pi, normalised(world.mu * moments(world, temperature)), rtol=0, atol=1e-7)
    tilt = normalised(world.mu * (world.reward / temperature).exp())
    assert (learner.pi - tilt).abs().max() > 5e-3, "not the tilt by the mean reward: it seeks risk"


@pytest.mark.parametrize("temperature", [2.0, 0.5, 0.15])
def test_that_policy_maximises_the_certainty_equivalent_less_the_divergence(temperature):
    world = noisy()
    certain = temperature * moments(world, temperature).log()

    def penalised(pi):
        return (pi * certain).sum() - temperature * (pi * (pi / world.mu).log()).sum()

    best = normalised(world.mu * moments(world, temperature))
    assert penalised(best).item() == pytest.approx(
        temperature * log((world.mu * moments(world, temperature)).sum().item()), rel=1e-12
    )
    for seed in range(20):
        assert penalised(torch.softmax(draws(1, 3, seed=seed), 1)) < penalised(best) - 1e-6


def test_noise_costs_no_more_than_the_bound_and_can_cost_something():
    """Over every coin and sure item on a grid: J(π) >= J(μ) + λ KL(π‖μ) - 1/(8λ); somewhere J falls below J(μ)."""
    fell, tightest = 0.0, 1.0
    for temperature in (2.0, 0.5, 0.2):
        for chance in (0.1, 0.3, 0.5, 0.7):
            for sure in (0.2, 0.4, 0.6, 0.8):
                world = noisy((0.5, 0.5), ((0, 1.0, chance), (0, 0.0, 1 - chance), (1, sure, 1.0)), (chance, sure))
                pi = normalised(world.mu * moments(world, temperature))
                divergence = (pi * (pi / world.mu).log()).sum()
                gain = world.J(pi, 0.0) - world.J(world.mu, 0.0)
                slack = gain - (temperature * divergence - 1 / (8 * temperature))
                assert slack >= 0
                fell, tightest = min(fell, gain.item()), min(tightest, slack.item())
    assert fell < -0.05, "the bound is not about nothing"
    assert tightest < 0.1


def test_with_rewards_of_0_and_1_it_never_goes_beyond_reward_weighted():
    """μ (1 + (e^{1/λ} - 1) r): a mixture of μ and of μ r, whatever λ."""
    chances = (0.2, 0.5, 0.9)
    outcomes = tuple((item, float(paid), p if paid else 1 - p) for item, p in enumerate(chances) for paid in (0, 1))
    world = noisy((0.5, 0.3, 0.2), outcomes, chances)
    further = normalised(world.mu * world.reward)
    for temperature in (2.0, 0.5, 0.1):
        pi = Learner(world, "exp_weighted", temperature=temperature, cap=UNCAPPED).converge().pi
        factor = exp(1 / temperature) - 1
        paid = (world.mu * world.reward).sum()
        share = factor * paid / (1 + factor * paid)
        torch.testing.assert_close(pi, (1 - share) * world.mu + share * further, rtol=0, atol=1e-7)
