"""Confidence intervals of a mean whose contributions come in sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from localpolicy.errors import DataError
from localpolicy.measure.estimate import cluster_sums, clustered_se
from localpolicy.measure.off_policy.decisions import Decisions
from localpolicy.measure.significance import bootstrap_interval


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


STRENGTHS = tuple(2.0**-power for power in range(11))  # of logarithmic smoothing, in units of 1/mean; fixed beforehand


def smoothed_lower_bound(
    log: Decisions, *, confidence: float = 0.95, scale: float = 1.0, strengths: Sequence[float] = STRENGTHS
) -> float:
    """max over λ of (exp(mean log(1 + λ Z) - log(K/δ)/C) - 1) / λ, with Z the sum of w r over a sequence.

    Logarithmic smoothing (Sakhi et al. 2024). For independent Z >= 0 of mean J: E exp(Σ log(1 + λ Z)) = (1 + λ J)^C, so
    Markov's inequality gives Σ log(1 + λ Z) <= C log(1 + λ J) + log(1/δ) with probability 1 - δ, whatever the tails of
    the weights. λ must not depend on the sample: it is the best of K fixed ones, each with δ/K. `scale` is what Z is
    measured in (such as the largest reward), known beforehand. Of decisions: divided by their number in a sequence.
    """
    if (log.reward < 0).any():
        raise DataError("logarithmic smoothing needs rewards >= 0; found negative ones.")
    sums, sizes = cluster_sums(log.weight * log.reward, log.sequence)
    count = len(sums)
    surprise = math.log(len(strengths) / (1 - confidence)) / count
    lows = [
        math.expm1(float(np.log1p(strength / scale * sums).mean()) - surprise) * scale / strength
        for strength in strengths
    ]
    return max(0.0, *lows) * count / float(sizes.sum())


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
