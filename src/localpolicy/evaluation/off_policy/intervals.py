"""Confidence intervals of a mean whose contributions come in sequences."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from localpolicy.evaluation.estimate import cluster_sums, clustered_se
from localpolicy.evaluation.significance import bootstrap_interval


class Bounds(NamedTuple):
    """From low to high."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether the value lies inside."""
        return self.low <= value <= self.high


def normal(values: np.ndarray, clusters: np.ndarray, *, confidence: float = 0.95) -> Bounds:
    """mean ± t se, clustered by sequence: right for many sequences and weights that are not heavy-tailed."""
    mean, se = float(values.mean()), clustered_se(values, clusters)
    freedom = len(np.unique(clusters)) - 1
    reach = float(stats.t.ppf((1 + confidence) / 2, freedom)) * se if freedom > 0 else math.nan
    return Bounds(mean - reach, mean + reach)


def lower_bound(values: np.ndarray, clusters: np.ndarray, *, confidence: float = 0.95) -> float:
    """mean - t se, one-sided, clustered by sequence."""
    freedom = len(np.unique(clusters)) - 1
    reach = float(stats.t.ppf(confidence, freedom)) * clustered_se(values, clusters) if freedom > 0 else math.inf
    return float(values.mean()) - reach


def bootstrap(
    values: np.ndarray, clusters: np.ndarray, *, confidence: float = 0.95, draws: int = 2000, seed: int = 0
) -> Bounds:
    """Percentiles of the mean over sequences drawn with replacement."""
    return Bounds(*bootstrap_interval(values, clusters, confidence=confidence, draws=draws, seed=seed))


def empirical_bernstein(
    values: np.ndarray, clusters: np.ndarray, *, bounds: tuple[float, float], confidence: float = 0.95
) -> Bounds:
    """mean ± sqrt(2 Var log(4/δ) / C) + 7 b log(4/δ) / (3 (C - 1)), for C sequences and contributions in a range b.

    Maurer and Pontil 2009, theorem 4, both sides. It holds for every C, not only in the limit, so it is wide. The
    range must be known beforehand (a cap times the largest reward), not read off the data.
    """
    sums, sizes = cluster_sums(values - bounds[0], clusters)
    count = len(sums)
    if count < 2:
        return Bounds(-math.inf, math.inf)
    per_sequence = sums * count / len(values)  # their mean is the mean over decisions
    reach = (bounds[1] - bounds[0]) * int(sizes.max()) * count / len(values)
    surprise = math.log(4 / (1 - confidence))
    width = math.sqrt(2 * float(per_sequence.var(ddof=1)) * surprise / count) + 7 * reach * surprise / (3 * (count - 1))
    mean = float(values.mean())
    return Bounds(max(bounds[0], mean - width), min(bounds[1], mean + width))
