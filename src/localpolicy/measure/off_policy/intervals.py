"""Confidence intervals of a mean whose contributions come in sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from localpolicy.errors import DataError
from localpolicy.measure.estimate import cluster_sums, clustered_se, t_quantile
from localpolicy.measure.off_policy.decisions import Decisions
from localpolicy.measure.off_policy.estimators import Contributions, importance
from localpolicy.measure.off_policy.overlap import effective_sample

BELIEF = 30.0  # rewarded decisions against which the spread of dealt-out rewards counts as much as the one seen


class Bounds(NamedTuple):
    """From low to high."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether the value lies inside."""
        return self.low <= value <= self.high

    def wider(self, by: float) -> Bounds:
        """Further out at both ends."""
        return Bounds(self.low - by, self.high + by)


def normal(values: np.ndarray, clusters: np.ndarray, *, confidence: float = 0.95) -> Bounds:
    """mean ± t se, clustered by sequence: right for many sequences and weights that are not heavy-tailed."""
    mean, se = float(values.mean()), clustered_se(values, clusters)
    freedom = len(np.unique(clusters)) - 1
    reach = t_quantile((1 + confidence) / 2, freedom) * se if freedom > 0 else math.nan
    return Bounds(mean - reach, mean + reach)


def skewed(found: Contributions, *, confidence: float = 0.95) -> Bounds:
    """The interval that decides: the normal one, and Hall's 1992 one for skewed sums, whichever end lies further out.

    With T = √C (mean - J) / s and a = skewness / √C, Hall's transformation makes
    g(T) = T + a T²/3 + a² T³/27 + a/6 normal up to O(1/C); inverted, T = 3/a ((1 + a (z - a/6))^(1/3) - 1).

    Where rewards are rare, the few that were earned rarely lie under the large weights, and the spread seen is too
    small. But all weights are known: so the moments seen are shrunk towards those of all leverages l with rewards dealt
    out at random, E[l²] Var(r) and E[l³] E(r - r̄)³, by `BELIEF` decisions' worth against those that earned anything.

    Both ends lie further out by what the log cannot know (see `never_shown`).
    """
    plain = normal(found.values, found.clusters, confidence=confidence).wider(found.unknown)
    sums, _ = cluster_sums(found.values - found.mean, found.clusters)
    count = len(sums)
    if count < 2 or not (sums != 0).any():
        return plain
    centred, least = found.reward - found.reward.mean(), found.reward.min()
    earning = effective_sample(np.abs(found.leverage) * (found.reward - least))
    moments = []
    for power in (2, 3):
        seen = float((sums**power).mean())
        dealt = float((found.leverage**power).sum()) * float((centred**power).mean()) / count
        moments.append(seen + BELIEF / (BELIEF + earning) * max(dealt - seen, 0.0))
    variance, third = moments
    unit = math.sqrt(variance / (count - 1)) * count / len(found.values)  # the standard error of the mean
    tilt, z = third / variance**1.5 / math.sqrt(count), t_quantile((1 + confidence) / 2, count - 1)
    ends = [found.mean - unit * _hall(side, tilt) for side in (z, -z)]
    tilted = Bounds(min(ends), max(ends)).wider(found.unknown)
    return Bounds(min(plain.low, tilted.low), max(plain.high, tilted.high))


def _hall(z: float, tilt: float) -> float:
    """The T at which g(T) = z."""
    return z if abs(tilt) < 1e-9 else 3 / tilt * (float(np.cbrt(1 + tilt * (z - tilt / 6))) - 1)


def lower_bound(values: np.ndarray, clusters: np.ndarray, *, confidence: float = 0.95) -> float:
    """mean - t se, one-sided, clustered by sequence."""
    freedom = len(np.unique(clusters)) - 1
    reach = t_quantile(confidence, freedom) * clustered_se(values, clusters) if freedom > 0 else math.inf
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
    sums, sizes = cluster_sums(importance(log), log.clusters)
    count = len(sums)
    surprise = math.log(len(strengths) / (1 - confidence)) / count
    lows = [
        math.expm1(float(np.log1p(strength / scale * sums).mean()) - surprise) * scale / strength
        for strength in strengths
    ]
    return max(0.0, *lows) * count / float(sizes.sum())


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
