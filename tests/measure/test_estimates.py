"""Errors, tests and corrections against scipy and against their definitions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from measured import holm
from scipy import stats

from localpolicy.measure.estimate import as_json, mean_estimate, quantiles
from localpolicy.measure.significance import bootstrap_means, paired, paired_bootstrap, paired_family


def test_plain_error_is_the_textbooks():
    values = np.random.default_rng(0).normal(size=50)
    found = mean_estimate(values, np.arange(50))
    assert found.mean == pytest.approx(values.mean())
    assert found.plain_se == pytest.approx(stats.sem(values))
    # Every position its own sequence: clustering changes nothing.
    assert found.se == pytest.approx(found.plain_se)


def test_the_clustered_error_follows_its_definition():
    rng = np.random.default_rng(1)
    clusters = rng.integers(0, 12, 80)
    values = rng.normal(size=80) + clusters
    mean, count = values.mean(), len(np.unique(clusters))
    total = sum(((values[clusters == c] - mean).sum()) ** 2 for c in np.unique(clusters))
    assert mean_estimate(values, clusters).se == pytest.approx(math.sqrt(total * count / (count - 1)) / 80)


def test_copies_of_a_position_add_no_certainty():
    values = np.random.default_rng(2).normal(size=40)
    once, often = mean_estimate(values, np.arange(40)), mean_estimate(np.repeat(values, 9), np.repeat(np.arange(40), 9))
    assert often.se == pytest.approx(once.se)
    assert often.plain_se < 0.4 * once.se


def test_nothing_gives_nan_and_json_null():
    empty = mean_estimate(np.empty(0), np.empty(0))
    assert empty.n == 0 and math.isnan(empty.mean)
    assert as_json(empty) == {"mean": None, "se": None, "n": 0, "plain_se": None}
    assert all(math.isnan(end) for end in (empty.within_unit().low, empty.within_unit().high))
    assert quantiles(np.arange(101.0))["q95"] == 95.0


def test_paired_t_test_is_scipys():
    rng = np.random.default_rng(3)
    first, second = rng.normal(0.2, 1, 60), rng.normal(0.0, 1, 60)
    found, theirs = paired(first, second, np.arange(60)), stats.ttest_rel(first, second)
    assert found.plain_p == pytest.approx(theirs.pvalue)
    assert found.p == pytest.approx(theirs.pvalue)
    low, high = theirs.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.difference == pytest.approx((first - second).mean())
    backwards = paired(second, first, np.arange(60))
    assert (backwards.low, backwards.high) == pytest.approx((-high, -low))


def test_equal_sequences_of_equal_length_are_tested_on_their_means():
    rng = np.random.default_rng(4)
    first, second, clusters = rng.normal(size=60), rng.normal(size=60), np.repeat(np.arange(12), 5)
    means, found = (first - second).reshape(12, 5).mean(1), paired(first, second, clusters)
    assert found.p == pytest.approx(stats.ttest_1samp(means, 0.0).pvalue)
    assert found.plain_p == pytest.approx(stats.ttest_rel(first, second).pvalue), "over positions, as in the paper"
    assert found.p != pytest.approx(found.plain_p, rel=1e-3)


def test_an_interval_of_a_share_stays_within_0_and_1():
    hits = np.eye(1, 40)[0]  # 1 of 40
    rare, common = (mean_estimate(each, np.arange(40)).within_unit() for each in (hits, 1 - hits))
    assert rare.low == 0.0 < rare.high == pytest.approx(rare.mean + 1.96 * math.sqrt(0.025 * 0.975 / 39))
    assert common.high == 1.0 > common.low == pytest.approx(1 - rare.high)


def test_equal_policies_do_not_differ():
    values = np.random.default_rng(5).normal(size=30)
    found = paired(values, values, np.arange(30))
    assert (found.difference, found.p) == (0.0, 1.0)
    assert paired(values + 1, values, np.arange(30)).p < 1e-100
    assert paired_bootstrap(values, values, np.arange(30), draws=200) == 1.0


def test_paired_bootstrap_agrees_with_the_t_test():
    rng = np.random.default_rng(6)
    first, second = rng.normal(0.15, 1, 300), rng.normal(0.0, 1, 300)
    exact = stats.ttest_rel(first, second).pvalue
    found = paired_bootstrap(first, second, np.arange(300), draws=4000)
    assert 0.001 < exact < 0.2, "the case must be undecided for this to say anything"
    assert found == pytest.approx(exact, abs=0.02)


def test_bootstrap_draws_sequences_not_positions():
    values = np.random.default_rng(7).normal(size=40)
    once = np.std(bootstrap_means(values, np.arange(40), draws=3000))
    often = np.std(bootstrap_means(np.repeat(values, 9), np.repeat(np.arange(40), 9), draws=3000))
    assert often == pytest.approx(once, rel=0.08)
    assert once == pytest.approx(values.std() / math.sqrt(40), rel=0.08)


def test_bootstrap_of_many_sequences_is_pooled_and_still_right():
    values = np.random.default_rng(8).normal(size=20_000)
    low, high = np.quantile(bootstrap_means(values, np.arange(20_000), draws=1000), [0.025, 0.975])
    assert (high - low) / 2 == pytest.approx(1.96 / math.sqrt(20_000), rel=0.1)
    assert low < values.mean() < high


def test_holms_steps_follow_their_definition():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    found = holm([0.01, float("nan"), 0.02])
    assert found[0] == pytest.approx(0.02) and math.isnan(found[1]) and found[2] == pytest.approx(0.02)
    assert holm([]) == []


def test_an_interval_excludes_zero_exactly_where_its_corrected_p_is_small():
    """Of a family, whatever the confidence; alone, a test is what it always was."""
    drawn = stats.zscore(np.random.default_rng(10).normal(size=80), ddof=1)
    shifts = (0.0, 0.05, 0.2, 0.25, 0.3, 0.9)
    values = {shift: (drawn + shift, np.zeros(80), np.arange(80)) for shift in shifts}
    alone = {shift: paired(*each) for shift, each in values.items()}
    for confidence in (0.8, 0.95, 0.99):
        found = paired_family(values, confidence=confidence)
        assert [test.holm_p for test in found.values()] == pytest.approx(holm([test.p for test in alone.values()]))
        for test in found.values():
            assert bool(test.sign) == (test.holm_p < 1 - confidence) == (not test.low <= 0 <= test.high)
    found = paired_family(values)
    assert any(alone[shift].p < 0.05 <= found[shift].holm_p for shift in values), "the correction must matter here"
    # The smallest of m p-values has the interval of confidence 1 - .05/m.
    surest = min(values, key=lambda shift: alone[shift].p)
    reach = stats.t.ppf(1 - 0.025 / len(values), 79) * alone[surest].se
    assert found[surest].high - found[surest].difference == pytest.approx(reach)


@pytest.mark.parametrize(("shift", "sequences"), [(0.1, 20), (0.1, 200), (0.5, 10), (1.0, 5), (0.0, 9)])
def test_where_all_differences_are_equal_p_agrees_with_the_interval(shift, sequences):
    found = paired(np.full(sequences, shift), np.zeros(sequences), np.arange(sequences))
    assert found.se == 0 and bool(found.sign) == (found.p < 0.05)
    if 0 < shift < 1:
        z = stats.norm.isf(found.p / 2)
        assert z**2 / (sequences + z**2) == pytest.approx(shift)


def test_holm_holds_its_level_over_many_nulls():
    # Of 400 families of 10 true nulls at most 5 % may have a false find: 20 expected, sd 4.4, bound at 4 sd.
    rng = np.random.default_rng(9)
    found = sum(min(holm(rng.random(10).tolist())) < 0.05 for _ in range(400))
    assert 4 <= found <= 38


def test_stars_are_the_papers():
    found = paired(np.ones(2), np.zeros(2), np.arange(2))
    marks = [replace(found, holm_p=p).stars for p in (0.2, 0.05, 0.049, 0.0099, 0.0009)]
    assert marks == ["", "", "*", "**", "***"]
    # An interval alone, as of a value, has one star where it excludes 0; turned, it excludes 0 on the other side.
    value = replace(found, holm_p=float("nan"), low=0.1, high=1.9)
    assert [value.stars, (-value).stars, replace(value, low=-0.1).stars] == ["*", "*", ""]
    assert replace(value, low=float("nan"), high=float("nan")).stars == "", "one sequence tells nothing"
    assert ((-value).difference, (-value).low, (-value).high) == (-found.difference, -1.9, -0.1)
