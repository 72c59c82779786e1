"""Is one policy better than another on the same positions? Paired tests, and honesty about how many were made.

The paired t-test over positions is the paper's. Positions of one sequence are not independent, so the test that
counts here sums differences by sequence first; the bootstrap draws whole sequences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from localpolicy.measure.estimate import cluster_sums, clustered_se, finite, wilson

MOST_UNITS = 2_000  # drawn from by the bootstrap
LEVELS = ((0.001, "***"), (0.01, "**"), (0.05, "*"))  # the stars of the paper's figures


class Paired(NamedTuple):
    """The difference first - second on the same positions."""

    difference: float
    se: float  # clustered by sequence
    low: float  # interval of the difference, at the confidence asked for
    high: float
    p: float  # two-sided; t-test on sums by sequence
    plain_p: float  # the same over positions, as in the paper
    n: int

    def to_dict(self) -> dict[str, float | int | None]:
        """For `--json`."""
        return {name: finite(value) for name, value in self._asdict().items()}


def paired(first: np.ndarray, second: np.ndarray, clusters: np.ndarray, *, confidence: float = 0.95) -> Paired:
    """Paired t-test: t = mean(d) / se(d), with C - 1 degrees of freedom for C sequences."""
    gap = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    if len(gap) == 0:
        return Paired(math.nan, math.nan, math.nan, math.nan, math.nan, math.nan, 0)
    mean, se = float(gap.mean()), clustered_se(gap, clusters)
    freedom = len(np.unique(clusters)) - 1
    reach = float(stats.t.ppf((1 + confidence) / 2, freedom)) * se if freedom > 0 else math.nan
    if se == 0:
        # All differences seen are alike, which is no certainty about those not seen: as many as 0 of C allows may be
        # as far out as the values go.
        reach = wilson(0, freedom + 1, confidence=confidence)[1] * max(1.0, float(np.abs([first, second]).max()))
    plain_se = float(gap.std(ddof=1)) / math.sqrt(len(gap)) if len(gap) > 1 else math.nan
    return Paired(
        mean, se, mean - reach, mean + reach, _two_sided(mean, se, freedom), _two_sided(mean, plain_se, len(gap) - 1),
        len(gap),
    )  # fmt: skip


def _two_sided(mean: float, se: float, freedom: int) -> float:
    """P(|T| >= |mean / se|)."""
    if freedom < 1 or math.isnan(se):
        return math.nan
    if se == 0:
        return 1.0 if mean == 0 else 0.0
    return float(2 * stats.t.sf(abs(mean / se), freedom))


def bootstrap_means(
    values: np.ndarray, clusters: np.ndarray, *, draws: int = 2000, seed: int = 0, weights: np.ndarray | None = None
) -> np.ndarray:
    """Σ w v / Σ w over sequences drawn with replacement: [draws]."""
    weights = np.ones(len(values)) if weights is None else weights
    sums, _ = cluster_sums(values * weights, clusters)
    totals, _ = cluster_sums(weights, clusters)
    rng = np.random.default_rng(seed)
    if len(sums) > MOST_UNITS:
        # Sequences thrown together at random are as good units as single ones, and the cost no longer grows.
        unit = rng.permutation(len(sums)) % MOST_UNITS
        sums, totals = np.bincount(unit, weights=sums), np.bincount(unit, weights=totals)
    means = np.empty(draws)
    count = len(sums)
    block = max(1, (1 << 20) // count)
    for first in range(0, draws, block):
        size = min(block, draws - first)
        drawn = rng.integers(count, size=(size, count), dtype=np.int32)
        means[first : first + size] = sums[drawn].sum(1) / totals[drawn].sum(1)
    return means


def bootstrap_interval(
    values: np.ndarray, clusters: np.ndarray, *, confidence: float = 0.95, draws: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of the mean over resampled sequences."""
    means = bootstrap_means(values, clusters, draws=draws, seed=seed)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def paired_bootstrap(
    first: np.ndarray, second: np.ndarray, clusters: np.ndarray, *, draws: int = 2000, seed: int = 0
) -> float:
    """Two-sided p: how often a resampled difference, centred on zero, is at least as far out as the one seen."""
    gap = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    seen = gap.mean()
    centred = bootstrap_means(gap, clusters, draws=draws, seed=seed) - seen
    # One is added to both: a p-value from finitely many draws is never zero.
    return float((1 + (np.abs(centred) >= abs(seen) - 1e-15).sum()) / (draws + 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """p_(i) -> max_{j <= i} min(1, (m - j + 1) p_(j)), over p in rising order; a test not made (NaN) is not counted."""
    values = np.asarray(p_values, dtype=np.float64)
    made = np.flatnonzero(~np.isnan(values))
    order = made[np.argsort(values[made], kind="stable")]
    adjusted = np.full(len(values), math.nan)
    factors = len(order) - np.arange(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(values[order] * factors), 1.0)
    return [float(value) for value in adjusted]


def stars(p: float) -> str:
    """* below .05, ** below .01, *** below .001."""
    return next((mark for level, mark in LEVELS if p < level), "")
