"""Items' means shrunk by the log's own estimate of chance: by hand, against the truth, and without differences."""

from __future__ import annotations

import numpy as np
import pytest

from localpolicy.measure.estimate import credible_means


def planted(spread: float, *, items: int = 400, seed: int = 0):
    """Items with normal means, each taken a few times, with noise of variance 1."""
    rng = np.random.default_rng(seed)
    truth = 3 + spread * rng.standard_normal(items)
    item = np.repeat(np.arange(items), rng.integers(1, 12, items))
    return truth, item, truth[item] + rng.standard_normal(len(item))


def test_by_hand():
    """Two items of 2 and 4 values: σ² = (2 + 4)/(6 - 2), τ² = (2·4 + 4·1 - σ²)/(6 - 20/6) with m = 2."""
    item, values = np.array([0, 0, 1, 1, 1, 1]), np.array([-1.0, 1.0, 2.0, 4.0, 2.0, 4.0])
    within, between = 6 / 4, (2 * 4 + 4 * 1 - 6 / 4) / (6 - 20 / 6)
    expected = [2 - 2 * 2 / (2 + within / between), 2 + 1 * 4 / (4 + within / between), 2.0]
    np.testing.assert_allclose(credible_means(item, values, n_items=3), expected)


@pytest.mark.parametrize("spread", [0.2, 1.0])
def test_it_is_close_to_the_best_that_knows_both_variances(spread):
    truth, item, values = planted(spread)
    counts, total = np.bincount(item), np.bincount(item, weights=values)
    best = 3 + counts / (counts + 1 / spread**2) * (total / counts - 3)

    def error(found):
        return float(np.mean((found - truth) ** 2))

    found = credible_means(item, values, n_items=len(truth))
    assert error(found) < 1.1 * error(best)
    assert error(found) < error(total / counts) and error(found) < error(np.full(len(truth), 3.0))


def test_items_that_do_not_differ_have_the_common_mean():
    """Equal means but for the noise within: less difference than chance would make."""
    item = np.tile(np.arange(4), 6)
    values = np.where(np.arange(24) < 12, 1.0, 0.0)
    np.testing.assert_array_equal(credible_means(item, values, n_items=5), np.full(5, 0.5))


def test_scale_and_shift_go_through():
    _, item, values = planted(1.0, items=30)
    found = credible_means(item, values, n_items=31)
    np.testing.assert_allclose(credible_means(item, 100 * values - 7, n_items=31), 100 * found - 7)


@pytest.mark.parametrize("item", [[], [0, 1, 2], [1, 1, 1]])
def test_a_log_too_small_to_tell_has_one_mean(item):
    values = np.arange(len(item), dtype=float)
    found = credible_means(np.array(item, int), values, n_items=4)
    np.testing.assert_array_equal(found, np.full(4, values.mean() if item else 0.0))
