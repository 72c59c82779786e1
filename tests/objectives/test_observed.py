"""LPI by observed rewards: what it converges to, and what it earns, in worlds whose every outcome is listed.

affine:       π ∝ μ (1 + (r - r_min)/β) whatever the noise; J(π) - J(μ) = Var_μ(r)/(β + E_μ[r] - r_min).
exponential:  π ∝ μ E[e^{R/β}|x,a]: with two values of R the same family; with more it maximises
              E_π[c] - β KL(π‖μ), c = β log E[e^{R/β}|x,a], and r <= c <= r + b²/(8β) for rewards in a range b, so that
              J(π) >= J(μ) + β KL(π‖μ) - b²/(8β).
"""

from __future__ import annotations

from itertools import pairwise
from math import exp, log

import pytest
import torch
from tabular import UNCAPPED, Learner, World, bandit, draws, normalised, world

from localpolicy.errors import ConfigError
from localpolicy.objectives import LPIObserved, objective_of

# One context and three items: a coin of 1 or 0, a sure 0.6, and a prize that comes one time in ten.
OUTCOMES = ((0, 1.0, 0.5), (0, 0.0, 0.5), (1, 0.6, 1.0), (2, 1.0, 0.1), (2, 0.2, 0.9))
MEANS = [0.5, 0.6, 0.1 * 1.0 + 0.9 * 0.2]
CLICK, PURCHASE = 0.2, 1.0
CHANCES = (0.1, 0.5, 0.3)  # of a purchase


def noisy(mu=(0.3, 0.5, 0.2), outcomes=OUTCOMES, means=tuple(MEANS)):
    ends = torch.ones(1, len(mu), dtype=torch.float64)
    return World(
        steps=1,
        mu=torch.tensor([mu], dtype=torch.float64),
        reward=torch.tensor([means], dtype=torch.float64),
        ends=ends,
        outcomes=outcomes,
    )


def shop():
    """Every item is clicked or bought."""
    outcomes = [(item, CLICK, 1 - p) for item, p in enumerate(CHANCES)]
    outcomes += [(item, PURCHASE, p) for item, p in enumerate(CHANCES)]
    return noisy((0.5, 0.2, 0.3), tuple(outcomes), tuple(CLICK + (PURCHASE - CLICK) * p for p in CHANCES))


def learned(world, **settings):
    """π at the optimum of the project's own loss, its defaults filled in from the world's rewards."""
    values = sorted({reward for _, reward, _ in world.outcomes})
    objective = LPIObserved(cap=UNCAPPED, **settings).scaled(rewards=lambda: values[:3])
    settings = {key: value for key, value in objective.model_dump().items() if key != "name"}
    return Learner(world, "lpi_observed", **settings).converge().pi


def moments(world, beta):
    """E[e^{R/β}|a], by hand."""
    total = torch.zeros_like(world.mu)
    for item, reward, chance in world.outcomes:
        total[0, item] += chance * exp(reward / beta)
    return total


def variance(world):
    """Variance of r(a) under μ."""
    mean = (world.mu * world.reward).sum()
    return (world.mu * (world.reward - mean) ** 2).sum()


def close(found, expected, atol=1e-7):
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


# ---------------------------------------------------------------------- the affine form


@pytest.mark.parametrize("beta", [5.0, 0.7, 0.1, 0.0])
@pytest.mark.parametrize("smallest", [0.0, -1.0])
def test_the_affine_form_is_the_first_order_tilt_whatever_the_noise(beta, smallest):
    """r_min is the smallest value observed, not the smallest mean, and not 0."""
    world = noisy(outcomes=((0, 1.0 - smallest, 0.5), (0, smallest, 0.5), *OUTCOMES[2:]))
    pi = learned(world, beta=beta)
    close(pi, normalised(world.mu * (beta + world.reward - smallest)))
    gain = world.J(pi, 0.0) - world.J(world.mu, 0.0)
    close(gain, variance(world) / (beta + world.J(world.mu, 0.0) - smallest))
    assert gain > 1e-3


def test_the_gain_of_the_affine_form_is_exact_in_every_context_of_random_bandits():
    for seed in range(20):
        world = bandit(seed)
        for beta in (0.0, 0.3, 3.0):
            pi = normalised(world.mu * (beta + world.r - world.r.min()))
            mean = (world.mu * world.r).sum(1)
            spread = (world.mu * (world.r - mean[:, None]) ** 2).sum(1)
            close((pi * world.r).sum(1) - mean, spread / (beta + mean - world.r.min()), atol=1e-12)


@pytest.mark.parametrize("beta", [5.0, 0.5, 0.05])
def test_with_returns_it_is_the_tilt_by_q(beta):
    """E[G|x,a] = Q_μ(x,a), and the smallest return of rewards above 0 is the smallest reward."""
    many, gamma = world(), 0.7
    settings = {"beta": beta, "returns": True, "gamma": gamma, "form": "affine", "smallest": 0.0}
    pi = Learner(many, "lpi_observed", **settings).converge().pi
    close(pi, normalised(many.mu * (beta + many.q_of(many.mu, gamma))), atol=1e-6)
    assert many.J(pi, gamma) > many.J(many.mu, gamma) + 1e-3


def test_an_added_td_loss_moves_no_optimum_of_a_table():
    many, gamma = world(), 0.7
    settings = {"beta": 0.5, "form": "affine", "smallest": 0.0, "td_weight": 0.3, "gamma": gamma, "target": "expected"}
    learner = Learner(many, "lpi_observed", **settings).converge(2 * many.steps)
    close(learner.pi, normalised(many.mu * (0.5 + many.reward)), atol=1e-6)
    close(learner.scores("q"), many.q_of(many.mu, gamma), atol=1e-6)


# ---------------------------------------------------------------------- the power form


def dialled(world, beta):
    """μ^(1 - 1/β) π_0^(1/β), π_0 at the optimum of the project's own loss of the end."""
    end = learned(world, form="affine", beta=0.0, smallest=0.0)
    return normalised(world.mu ** (1 - 1 / beta) * end ** (1 / beta))


@pytest.mark.parametrize("beta", [8.0, 2.0, 1.0, 0.5])
def test_the_power_form_is_the_tilt_by_the_log_of_the_mean_reward(beta):
    """π ∝ μ exp(log r̄/β): LPI in closed form with the advantage log r̄, whatever the noise of R."""
    for drawn in (noisy(), shop()):
        close(dialled(drawn, beta), normalised(drawn.mu * torch.exp(drawn.reward.log() / beta)))
    close(dialled(noisy(), 1.0), learned(noisy(), form="affine", beta=0.0, smallest=0.0))


def test_the_power_form_earns_more_the_further_it_goes_and_never_seeks_risk():
    """The exponential form prefers the coin to the sure 0.6 at a small β; no β of the dial does."""
    world, betas = noisy(), (32.0, 8.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.125)
    values = [float(world.J(pi, 0.0)) for pi in (world.mu, *(dialled(world, beta) for beta in betas))]
    assert all(nearer < further for nearer, further in pairwise(values))
    ratio = [float(dialled(world, beta)[0, 1] / dialled(world, beta)[0, 0]) for beta in betas]
    odds = float(world.mu[0, 1] / world.mu[0, 0])
    close(torch.tensor(ratio), torch.tensor([odds * (0.6 / 0.5) ** (1 / beta) for beta in betas]), atol=1e-4)
    risky = learned(world, form="exponential", beta=0.3)
    assert risky[0, 1] / risky[0, 0] < odds


def test_the_power_form_rises_in_every_context_of_random_bandits():
    """dJ/dt = Cov_π(r, log r) >= 0, t = 1/β."""
    for seed in range(20):
        drawn = bandit(seed)
        reward = drawn.r - drawn.r.min() + 0.1
        levels = [(normalised(drawn.mu * reward**t) * reward).sum(1) for t in (0.0, 0.3, 1.0, 3.0)]
        for nearer, further in pairwise(levels):
            assert (further - nearer > 1e-6).all()


# ---------------------------------------------------------------------- the exponential form, of two values


@pytest.mark.parametrize("beta", [3.0, 0.5, 0.1])
def test_of_two_values_both_forms_are_one_family(beta):
    """E[e^{(R - r_min)/β}] = 1 + p (e^{Δ/β} - 1), which is 1 + (r - r_min)/β' at β' = Δ/(e^{Δ/β} - 1)."""
    world, apart = shop(), PURCHASE - CLICK
    pi = learned(world, beta=beta)
    close(pi, normalised(world.mu * (1 + torch.tensor([CHANCES]).double() * (exp(apart / beta) - 1))))
    close(pi, learned(world, beta=apart / (exp(apart / beta) - 1), form="affine"))
    assert (pi - normalised(world.mu * (world.reward / beta).exp())).abs().max() > 1e-3, (
        "the tilt is not of this family"
    )


def test_of_two_values_it_improves_at_every_beta_and_passes_through_reward_weighted():
    world = shop()
    gains = [world.J(learned(world, beta=beta), 0.0) - world.J(world.mu, 0.0) for beta in (10, 3, 1, 0.5, 0.1)]
    assert gains[0] > 1e-3 and all(small < large for small, large in pairwise(gains))
    through = (PURCHASE - CLICK) / log(PURCHASE / CLICK)
    close(learned(world, beta=through), normalised(world.mu * world.reward))
    close(Learner(world, "reward_weighted").converge().pi, normalised(world.mu * world.reward))
    close(learned(world, beta=CLICK, form="affine"), normalised(world.mu * world.reward))


def test_at_a_large_beta_it_is_the_logging_policy():
    for one in (shop(), noisy()):
        close(learned(one, beta=1e9), one.mu, atol=1e-6)


# ---------------------------------------------------------------------- risk


def test_a_coin_never_beats_a_sure_thing_of_a_larger_mean_unless_the_exponential_is_asked_for():
    """A coin of 1 or 0 against a sure 0.6: by itself the form is affine; exp(R/β) prefers the coin at small β."""
    world = noisy((0.5, 0.5), ((0, 1.0, 0.5), (0, 0.0, 0.5), (1, 0.6, 1.0)), (0.5, 0.6))
    for beta in (2.0, 0.5, 0.1, 0.0):
        coin, sure = learned(world, beta=beta)[0]
        assert sure - coin > 0.01
    coin, sure = learned(world, beta=0.1, form="exponential")[0]
    assert coin > sure + 0.5


@pytest.mark.parametrize("beta", [2.0, 0.5, 0.15])
def test_of_more_values_the_exponential_form_is_the_exponential_moment(beta):
    world = noisy()
    best = normalised(world.mu * moments(world, beta))
    close(learned(world, beta=beta, form="exponential"), best)
    tilt = normalised(world.mu * (world.reward / beta).exp())
    assert (best - tilt).abs().max() > 5e-3, "not the tilt by the mean reward: it seeks risk"
    certain = beta * moments(world, beta).log()

    def penalised(pi):
        return (pi * certain).sum() - beta * (pi * (pi / world.mu).log()).sum()

    highest = beta * log((world.mu * moments(world, beta)).sum().item())
    assert penalised(best).item() == pytest.approx(highest, rel=1e-12)
    for seed in range(20):
        assert penalised(torch.softmax(draws(1, 3, seed=seed), 1)) < penalised(best) - 1e-6


def test_noise_costs_the_exponential_form_no_more_than_the_bound_and_can_cost_something():
    """Over every coin and sure item on a grid: J(π) >= J(μ) + β KL(π‖μ) - 1/(8β); somewhere J falls below J(μ)."""
    fell, tightest = 0.0, 1.0
    for beta in (2.0, 0.5, 0.2):
        for chance in (0.1, 0.3, 0.5, 0.7):
            for sure in (0.2, 0.4, 0.6, 0.8):
                world = noisy((0.5, 0.5), ((0, 1.0, chance), (0, 0.0, 1 - chance), (1, sure, 1.0)), (chance, sure))
                pi = normalised(world.mu * moments(world, beta))
                divergence = (pi * (pi / world.mu).log()).sum()
                gain = world.J(pi, 0.0) - world.J(world.mu, 0.0)
                slack = gain - (beta * divergence - 1 / (8 * beta))
                assert slack >= 0
                fell, tightest = min(fell, gain.item()), min(tightest, slack.item())
    assert fell < -0.05, "the bound is not about nothing"
    assert tightest < 0.1


# ---------------------------------------------------------------------- what is filled in


@pytest.mark.parametrize(("rewards", "given", "form", "smallest"), [
    ([0.2, 1.0], {}, "exponential", 0.2),
    ([0.0, 0.2, 1.0], {}, "affine", 0.0),
    ([0.2], {}, "affine", 0.2),
    ([-2.0, 1.0], {}, "exponential", -2.0),
    ([0.2, 1.0], {"beta": 0.0}, "affine", 0.2),
    ([0.2, 1.0], {"returns": True}, "affine", 0.2),
    ([-2.0, 1.0], {"returns": True, "gamma": 0.75}, "affine", -8.0),
    ([0.2, 1.0], {"form": "affine", "smallest": 0.0}, "affine", 0.0),
    ([0.2, 0.5, 1.0], {"form": "exponential"}, "exponential", 0.2),
    ([0.2, 1.0], {"form": "power"}, "power", 0.0),
    ([-2.0, 1.0], {"form": "power"}, "power", -2.0),
], ids=str)  # fmt: skip
def test_form_and_smallest_reward_follow_the_log(rewards, given, form, smallest):
    found = LPIObserved(**given).scaled(rewards=lambda: rewards)
    assert (found.form, found.smallest) == (form, pytest.approx(smallest))
    assert found.scaled(rewards=list) == found, "what is filled in stays"


def test_exp_weighted_is_a_name_for_a_point_of_the_family():
    found = objective_of({"name": "exp_weighted", "temperature": 3.0, "cap": 5.0})
    assert found == LPIObserved(form="exponential", beta=3.0, smallest=0.0, cap=5.0)
    assert objective_of("exp_weighted") == LPIObserved(form="exponential", beta=0.5, smallest=0.0)


@pytest.mark.parametrize(("settings", "said"), [
    ({"form": "exponential", "beta": 0.0}, "objective.beta: 0 is the end of the affine form"),
    ({"gamma": 0.9}, "objective.gamma: only returns=true and td_weight use it"),
    ({"target": "expected"}, "objective.target: lpi_observed does not use it"),
], ids=str)  # fmt: skip
def test_settings_that_mean_nothing_are_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        objective_of({"name": "lpi_observed", **settings})
