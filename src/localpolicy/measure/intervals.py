"""What an estimate is the mean of, and confidence intervals of that mean, clustered by sequence."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from localpolicy.measure.decisions import effective_sample
from localpolicy.measure.estimate import CONFIDENCE, cluster_sums, clustered_se, sequences_of, t_quantile, t_reach

BELIEF = 30.0  # rewarded decisions against which the spread of permuted rewards counts as much as the one seen


class Contributions(NamedTuple):
    """Values whose mean is an estimate, with their clusters and the leverage of each reward."""

    values: np.ndarray  # [U] of each list, or of each decision
    clusters: np.ndarray  # [U] the sequence of each
    leverage: np.ndarray  # [n] what one more unit of a decision's reward adds to the values
    reward: np.ndarray  # [n]
    unknown: float = 0.0  # by how much the estimate may be off either way, for what μ never shows

    def __sub__(self, other: Contributions) -> Contributions:
        """Contributions of the difference of two estimates on the same decisions, which is paired."""
        values, leverage = self.values - other.values, self.leverage - other.leverage
        return self._replace(values=values, leverage=leverage, unknown=self.unknown + other.unknown)

    def per(self, count: float) -> Contributions:
        """Contributions to the sum divided by `count`."""
        return self._replace(values=self.values / count, leverage=self.leverage / count, unknown=self.unknown / count)

    @property
    def mean(self) -> float:
        """Mean of the contributions: the estimate."""
        return float(self.values.mean())

    @property
    def se(self) -> float:
        return clustered_se(self.values, self.clusters)

    @property
    def n(self) -> int:
        return len(self.values)


class Bounds(NamedTuple):
    """Lower and upper end of an interval."""

    low: float
    high: float


def normal(values: np.ndarray, clusters: np.ndarray, *, confidence: float = CONFIDENCE) -> Bounds:
    """mean ± t se, clustered by sequence: right for many sequences and weights that are not heavy-tailed."""
    mean, reach = float(values.mean()), _t_errors(values, clusters, (1 + confidence) / 2)
    return Bounds(mean - reach, mean + reach)


def lower_bound(values: np.ndarray, clusters: np.ndarray, *, confidence: float = CONFIDENCE) -> float:
    """mean - t se, one-sided, clustered by sequence; one sequence bounds nothing."""
    reach = _t_errors(values, clusters, confidence) if sequences_of(clusters) > 1 else math.inf
    return float(values.mean()) - reach


def _t_errors(values: np.ndarray, clusters: np.ndarray, level: float) -> float:
    """t_level se; NaN for a single sequence."""
    return t_quantile(level, sequences_of(clusters) - 1) * clustered_se(values, clusters)


def skewed(found: Contributions, *, confidence: float = CONFIDENCE) -> Bounds:
    """Interval that decides: the wider end, on each side, of the normal one and Hall's (1992) for skewed sums.

    With T = √C (mean - J) / s and a = skewness / √C, Hall's transformation makes
    g(T) = T + a T²/3 + a² T³/27 + a/6 normal up to O(1/C); inverted, T = 3/a ((1 + a (z - a/6))^(1/3) - 1).

    Where rewards are rare, the few that were earned rarely have large weights, and the spread seen is too
    small. But all weights are known: so the moments seen are shrunk towards those of all leverages l with rewards
    permuted at random, E[l²] Var(r) and E[l³] E(r - r̄)³, as by `BELIEF` decisions on top of those that earned.

    Both ends lie further out by what the log cannot know (see `never_shown`).
    """
    low, high = normal(found.values, found.clusters, confidence=confidence)
    sums, _ = cluster_sums(found.values - found.mean, found.clusters)
    count = len(sums)
    if count > 1 and (sums != 0).any():
        centred, least = found.reward - found.reward.mean(), found.reward.min()
        earning = effective_sample(np.abs(found.leverage) * (found.reward - least))
        moments = []
        for power in (2, 3):
            seen = float((sums**power).mean())
            dealt = float((found.leverage**power).sum()) * float((centred**power).mean()) / count
            moments.append(seen + BELIEF / (BELIEF + earning) * max(dealt - seen, 0.0))
        variance, third = moments
        unit = math.sqrt(variance / (count - 1)) * count / len(found.values)  # the standard error of the mean
        tilt, z = third / variance**1.5 / math.sqrt(count), t_reach(count - 1, confidence)
        ends = [found.mean - unit * _hall(side, tilt) for side in (z, -z)]
        low, high = min(low, *ends), max(high, *ends)
    return Bounds(low - found.unknown, high + found.unknown)


def _hall(z: float, tilt: float) -> float:
    """The T at which g(T) = z."""
    return z if abs(tilt) < 1e-9 else 3 / tilt * (float(np.cbrt(1 + tilt * (z - tilt / 6))) - 1)


def empirical_bernstein(
    values: np.ndarray, clusters: np.ndarray, *, bounds: tuple[float, float], confidence: float = CONFIDENCE
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
