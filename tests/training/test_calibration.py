"""A critic speaks where a signal was planted, and is silent where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from localpolicy.training.critic_quality import calibrate


def held_out(rng, *, signal, noise=1.0, sequences=150, length=8):
    """G = g + signal · A + noise, of which a critic knows g and A; noise has a part that a whole sequence shares."""
    sequence = np.repeat(np.arange(sequences), length)
    baseline = rng.standard_normal(len(sequence))
    advantage = 0.3 * rng.standard_normal(len(sequence))
    shared = rng.standard_normal(sequences)[sequence]
    returns = baseline + signal * advantage + noise * (rng.standard_normal(len(sequence)) + shared)
    return returns, baseline, baseline + advantage, sequence


def test_by_hand():
    """Â = ±1 and G - g = 2 Â + e, in three sequences: slope, sandwich error and R² as sums."""
    advantage, e = np.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0]), np.array([1.0, 0.0, -1.0, 0.0, 0.0, 0.0])
    baseline, sequence = np.array([5.0, 1.0, 2.0, 8.0, 3.0, 0.0]), np.array([0, 0, 1, 1, 2, 2])
    found = calibrate(baseline + 2 * advantage + e, baseline, baseline + advantage, sequence)
    assert advantage @ e == e.sum() == 0
    assert found.slope == pytest.approx(2)
    assert found.se == pytest.approx(np.sqrt((1**2 + (-1) ** 2 + 0**2) * 3 / 2) / 6)
    assert found.r2 == pytest.approx(1 - (advantage + e).var() / (2 * advantage + e).var())
    assert found.spread == pytest.approx(1.0)


def test_a_planted_signal_speaks_and_its_slope_is_covered():
    found = [calibrate(*held_out(np.random.default_rng(seed), signal=1.0)) for seed in range(300)]
    assert np.mean([one.slope for one in found]) == pytest.approx(1.0, abs=0.05)
    assert np.mean([one.factor > 0 for one in found]) > 0.95
    below = np.mean([one.low <= 1.0 for one in found])
    assert 0.91 <= below <= 0.99, "the lower bound holds as often as it says: 95 % of the time"


def test_without_a_signal_it_is_silent_as_often_as_the_bound_promises():
    """Whatever else the critic knows of the context: only what it adds within one counts."""
    spoke = np.mean([calibrate(*held_out(np.random.default_rng(s), signal=0.0)).factor > 0 for s in range(400)])
    assert spoke <= 0.08, "5 %, and the luck of 400 draws"
    assert spoke > 0, "or the bound is far too wide to be one"


def test_a_critic_that_misleads_or_says_nothing_is_silent():
    rng = np.random.default_rng(0)
    assert calibrate(*held_out(rng, signal=-1.0)).factor == 0.0
    returns, baseline, _, sequence = held_out(rng, signal=1.0)
    assert calibrate(returns, baseline, baseline, sequence).factor == 0.0
    assert calibrate(returns[:8], baseline[:8], baseline[:8] + 1, sequence[:8]).factor == 0.0, "one sequence"
    rounded = baseline + 1e-8 * (returns - baseline)  # right in sign, and no larger than a rounding error
    assert calibrate(returns, baseline, rounded, sequence).factor == 0.0
    assert calibrate(returns, baseline, baseline + 1e-4 * (returns - baseline), sequence).factor == 1.0


def test_errors_are_clustered_by_sequence():
    """Copies of one decision are no further evidence."""
    returns, baseline, values, sequence = held_out(np.random.default_rng(1), signal=1.0, length=1)
    once = calibrate(returns, baseline, values, sequence)
    often = calibrate(*(np.repeat(one, 9) for one in (returns, baseline, values, sequence)))
    assert often.se == pytest.approx(once.se)
    assert often.low == pytest.approx(once.low)


def test_scaling_rewards_scales_the_spread_and_leaves_the_slope():
    returns, baseline, values, sequence = held_out(np.random.default_rng(2), signal=1.0)
    one = calibrate(returns, baseline, values, sequence)
    ten = calibrate(10 * returns, 10 * baseline, 10 * values, sequence)
    assert ten.low == pytest.approx(one.low)
    assert ten.spread == pytest.approx(10 * one.spread)


def equal_lists(rng, *, lists=400, worth=0.3):
    """Lists of 3 of equal items, looked at less and less; a critic praises what stands high, as μ does."""
    examined = np.array([1.0, 0.6, 0.3])
    place = np.tile(np.arange(3), lists)
    values = -0.1 * place + 0.1 * rng.standard_normal(3 * lists)
    reward = (rng.random(3 * lists) < worth * examined[place]).astype(float)
    return reward, np.zeros(3 * lists), values, np.repeat(np.arange(lists), 3), place, examined[place]


@pytest.mark.parametrize("known", [True, False], ids=["attention known", "attention unknown"])
def test_where_attention_falls_equal_items_are_not_told_apart(known):
    """Items are compared with those at the same place: else "knows" in nearly every world where nothing is to know."""
    spoke, fooled = [], []
    for seed in range(300):
        reward, baseline, values, sequence, place, examined = equal_lists(np.random.default_rng(seed))
        target, weight = (reward / examined, examined**2) if known else (reward, np.ones(len(reward)))
        found = calibrate(target, baseline, values, sequence, weight=weight, place=place)
        spoke.append(found.factor > 0)
        fooled.append(calibrate(reward, baseline, values, sequence).factor > 0)
    assert 0 < np.mean(spoke) <= 0.08 and np.mean(fooled) > 0.95


def test_weights_and_places_by_hand():
    """Weighted least squares with an intercept at each place, against its normal equations."""
    rng = np.random.default_rng(3)
    reward, baseline, values, sequence, place, examined = equal_lists(rng, lists=20)
    target, weight = reward / examined, examined**2
    columns = np.column_stack([values, *(place == j for j in range(3))]).astype(float)
    expected = np.linalg.solve((columns.T * weight) @ columns, (columns.T * weight) @ target)[0]
    found = calibrate(target, baseline, values, sequence, weight=weight, place=place)
    assert found.slope == pytest.approx(expected)
    assert found.error == pytest.approx(np.mean((examined * values - reward) ** 2)), "of the reward as it was"
