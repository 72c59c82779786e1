"""The bound that chooses: its theorem for all candidates at once, and one rule wherever something is chosen."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from localpolicy.measure.decisions import Decisions
from localpolicy.measure.estimators import by_name
from localpolicy.measure.estimators.log_smoothing import smoothed_lower_bound
from localpolicy.measure.intervals import lower_bound, normal
from localpolicy.measure.value import value_bounds
from localpolicy.training.validation import _value

MU, REWARD = np.array([0.7, 0.2, 0.1]), np.array([0.1, 0.4, 1.0])
POLICIES = [np.array([0.1, 0.3, 0.6]), np.array([0.2, 0.7, 0.1]), np.array([0.5, 0.2, 0.3]), MU]


def logs_of(actions):
    chosen = list(actions)
    return [Decisions((pi / MU)[chosen], REWARD[chosen], np.arange(len(chosen))) for pi in POLICIES]


def test_smoothed_bounds_hold_for_all_candidates_at_once():
    """Exactly: every sample of four decisions with its probability. That any of K bounds fails has at most δ."""
    delta, together, alone = 0.4, 0.0, 0.0
    values = [float(pi @ REWARD) for pi in POLICIES]
    for actions in itertools.product(range(3), repeat=4):
        chance, logs = MU[list(actions)].prod(), logs_of(actions)
        bounds = value_bounds(logs, "log_smoothing", delta=delta)
        together += chance * any(bound.low > value for bound, value in zip(bounds, values, strict=True))
        single = [value_bounds([log], "log_smoothing", delta=delta)[0].low for log in logs]
        alone += chance * any(low > value for low, value in zip(single, values, strict=True))
    assert together <= delta
    assert together < alone, "δ/K each, not δ"


@pytest.mark.parametrize("estimator", ["ips", "snips", "dr", "sndr", "log_smoothing"])
def test_each_bound_follows_its_formula(estimator):
    rng = np.random.default_rng(0)
    n = 300
    log = Decisions(
        rng.gamma(2.0, 0.5, n), (rng.random(n) < 0.3) * 2.0, rng.integers(0, 100, n), rng.random(n), rng.random(n)
    )
    bound = value_bounds([log, log, log], estimator, delta=0.06, scale=2.0)[1]
    values = by_name(estimator).values(log)
    assert bound.value == values.mean()
    low = lower_bound(values, log.sequence, confidence=0.98)
    if estimator == "log_smoothing":
        low = smoothed_lower_bound(log, confidence=0.98, scale=2.0)
    assert bound.low == low < bound.value
    assert bound.effective == pytest.approx(log.weight.sum() ** 2 / (log.weight**2).sum() / n)
    assert bound.enough and not bound._replace(effective=0.099).enough


def test_one_sequence_bounds_nothing_from_below():
    values, one = np.array([1.0, 2.0, 4.0]), np.zeros(3)
    assert lower_bound(values, one) == -math.inf and all(math.isnan(end) for end in normal(values, one))
    (bound,) = value_bounds([Decisions(np.ones(3), values, one)], "snips")
    assert bound.low == -math.inf and bound.value == pytest.approx(7 / 3)


def test_the_smoothed_bound_knows_no_unit_of_rewards():
    log = logs_of([0, 1, 2, 2, 1, 0, 0, 2, 1, 0] * 20)[0]
    (one,) = value_bounds([log], "log_smoothing", scale=1.0)
    (hundred,) = value_bounds([log._replace(reward=100 * log.reward)], "log_smoothing", scale=100.0)
    assert hundred.low == pytest.approx(100 * one.low) and one.low > 0.1


def test_an_epoch_with_too_small_a_sample_has_the_smallest_reward_as_its_value():
    weight = np.r_[1000.0, np.full(99, 0.1)]
    log = Decisions(weight, np.full(100, 0.5) + (np.arange(100) % 2), np.arange(100))
    figures = _value(log, "snips", 1.0)
    assert figures["effective"] < 0.1 and figures["value_low"] == 0.5
    assert _value(log._replace(weight=np.ones(100)), "snips", 1.0)["value_low"] > 0.8
