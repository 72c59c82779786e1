"""Constants of values and of their refusals, from both sides: a number that changes fails a test."""

from __future__ import annotations

import math

import numpy as np
import pytest

from localpolicy.measure.decisions import LEAST_EFFECTIVE, Decisions, OverlapRules, overlap
from localpolicy.measure.estimate import Estimate, Interval
from localpolicy.measure.estimators import by_name
from localpolicy.measure.estimators.log_smoothing import smoothed_lower_bound
from localpolicy.measure.intervals import Contributions, lower_bound, skewed
from localpolicy.measure.value import ValueBound, value_bounds


def refused(weight: np.ndarray, rewarded: int = 50, **rules: float) -> bool:
    """By the rules as they are but for those given; `rewarded` decisions earn 1."""
    reward = (np.arange(len(weight)) < rewarded).astype(float)
    return overlap(Decisions(weight, reward, np.arange(len(weight))), OverlapRules(**rules)).refusal is not None


def test_an_effective_sample_of_100_is_asked_for():
    assert refused(np.ones(99)) and not refused(np.ones(100))


def test_an_effective_sample_of_a_tenth_is_asked_for():
    """k of 2,000 decisions are π's own."""
    for k, expected in ((199, True), (200, False)):
        assert refused(np.where(np.arange(2000) < k, 2000 / k, 0.0)) is expected
    assert LEAST_EFFECTIVE == 0.1
    assert ValueBound(0.0, 0.0, 0.1).enough and not ValueBound(0.0, 0.0, 0.0999).enough


def test_one_decision_may_carry_a_tenth_of_the_weight():
    for largest, expected in ((9 * 999 / 81, False), (9 * 999 / 80, True)):  # 1/10, and a little more
        weight = np.r_[largest, np.ones(999)]
        assert largest / weight.sum() == pytest.approx(0.1, abs=0.002)
        assert refused(weight, min_effective=1, min_effective_share=0, max_bias=9) is expected


@pytest.mark.parametrize(("mean", "expected"), [(0.899, True), (0.901, False), (1.099, False), (1.101, True)])
def test_the_mean_weight_may_be_a_tenth_off(mean, expected):
    assert refused(np.full(200, mean)) is expected


@pytest.mark.parametrize(("errors", "expected"), [(3.9, False), (4.1, True)])
def test_beyond_a_tenth_the_mean_weight_may_be_4_errors_off(errors, expected):
    se = 0.3 / errors
    weight = 1.3 + se * math.sqrt(99) * np.tile([-1.0, 1.0], 50)
    found = overlap(Decisions(weight, np.ones(100), np.arange(100)))
    assert (found.mean_weight, found.mean_weight_se) == (pytest.approx(1.3), pytest.approx(se))
    assert refused(weight, min_effective=1) is expected


def test_10_rewarded_decisions_are_asked_for():
    assert refused(np.ones(500), rewarded=9) and not refused(np.ones(500), rewarded=10)


def test_what_a_policy_would_practically_never_take_has_a_weight_below_a_hundredth():
    assert overlap(Decisions(np.array([0.0099, 0.0101, 1.0, 2.0]), np.ones(4), np.arange(4))).unseen == 0.25


def test_weights_are_clipped_at_30():
    log = Decisions(np.array([29.0, 30.0, 31.0, 300.0]), np.ones(4), np.arange(4))
    assert by_name("clipped_ips").values(log).tolist() == [29, 30, 30, 30]
    for largest, high in ((30.0, 1.0), (30.001, math.inf)):
        log = Decisions(np.r_[largest, np.ones(9)], np.ones(10), np.arange(10))
        (bounds,) = by_name("clipped_ips").estimate(log, largest_reward=1.0).intervals.values()
        assert bounds.high == high, "what was clipped may be above"


def test_30_rewarded_decisions_count_as_much_as_rewards_permuted_at_random():
    """Half of what the variance of permuted rewards (1.25) is above the one seen (0.25), all of it symmetric."""
    leverage, reward = np.tile([1.0, 3.0], 30), np.tile([1.0, 0.0], 30)
    values = np.tile([0.5, 0.5, -0.5, -0.5], 15)
    found = skewed(Contributions(values, np.arange(60), leverage, reward))
    t = 2.000995378  # of 59 degrees of freedom, at 97.5 %
    assert found == pytest.approx((-t * math.sqrt(0.75 / 59), t * math.sqrt(0.75 / 59)))


def test_logarithmic_smoothing_pays_for_11_strengths_from_1_to_a_1024th():
    log = Decisions(np.ones(400), np.full(400, 0.5), np.arange(400))
    cost = math.log(11 / 0.05) / 400
    best = max(math.expm1(math.log1p(s * 0.5) - cost) / s for s in (0.5**power for power in range(11)))
    assert smoothed_lower_bound(log) == pytest.approx(best)
    heavy = np.tile([0.0, 4000.0], 200)  # a smaller strength than there is would be better
    ends = [math.expm1(np.log1p(s * heavy).mean() - cost) / s for s in (1 / 1024, 1 / 2048)]
    found = smoothed_lower_bound(Decisions(np.ones(400), heavy, np.arange(400)))
    assert ends[0] < ends[1] and found == pytest.approx(ends[0])


def test_all_bounds_that_choose_hold_together_at_95_percent():
    rng = np.random.default_rng(0)
    log = Decisions(rng.uniform(0.5, 1.5, 300), rng.random(300), np.arange(300))
    found = by_name("snips").contributions(log)
    for count, confidence in ((1, 0.95), (5, 0.99)):
        (bound, *_) = value_bounds([log] * count, "snips")
        low = lower_bound(found.values, found.clusters, confidence=confidence)
        assert bound.low == pytest.approx(low - found.unknown)


def test_intervals_are_of_95_percent():
    assert Interval.of(0.0, 1.0) == Interval(0.0, -1.96, 1.96)
    assert Interval.from_estimate(Estimate(0.0, 1.0, 9, 1.0), confidence=0.5).high == pytest.approx(0.6745, abs=1e-4)
