"""Estimators of J(π) = E_x E_{a~π}[r] from decisions of μ, each as one contribution per decision or whole list; and the
confidence intervals of their mean.

An estimate is the mean of its contributions, and their spread is its error. Contexts are those that μ met: where
showing an item changes what comes next, this is the value of one deviation from μ, not of a whole visit under π.

Dudík et al. 2011 (direct, doubly robust); Swaminathan and Joachims 2015 (self-normalised); Ionides 2008 (clipped);
Kiyohara et al. 2022 (doubly robust under a cascade); Thomas and Brunskill 2016 (self-normalised doubly robust).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from localpolicy.errors import DataError
from localpolicy.measure.decisions import Decisions, effective_sample
from localpolicy.measure.estimate import CONFIDENCE, cluster_sums, clustered_se, sequences_of, t_quantile, t_reach


class Contributions(NamedTuple):
    """What an estimate is the mean of, and how much of each reward it holds."""

    values: np.ndarray  # [U] of each list, or of each decision
    clusters: np.ndarray  # [U] the sequence of each
    leverage: np.ndarray  # [n] what one more unit of a decision's reward adds to the values
    reward: np.ndarray  # [n]
    unknown: float = 0.0  # by how much the estimate may be off either way, for what μ never shows

    def __sub__(self, other: Contributions) -> Contributions:
        """Of a difference, on the same decisions: what luck gave the log it gave both."""
        values, leverage = self.values - other.values, self.leverage - other.leverage
        return self._replace(values=values, leverage=leverage, unknown=self.unknown + other.unknown)

    @property
    def mean(self) -> float:
        """The estimate."""
        return float(self.values.mean())

    @property
    def se(self) -> float:
        """Its standard error, clustered by sequence."""
        return clustered_se(self.values, self.clusters)

    @property
    def n(self) -> int:
        """How many it is the mean of."""
        return len(self.values)


def importance(log: Decisions, cap: float = math.inf) -> np.ndarray:
    """min(w, cap) r: for r >= 0 its mean is below J, by what the clipped weights would have added."""
    return log.summed(np.minimum(log.weight, cap) * log.reward)


def self_normalised(log: Decisions) -> np.ndarray:
    """J + w (r - J) / mean(w), with J = Σ w r / Σ w: its mean is J, its spread the delta method's.

    Of whole lists: this for each place among the lists that have it, summed over the places.
    """
    return log.summed(_ratio(log.weight, log.reward, log.places))


def _ratio(weight: np.ndarray, values: np.ndarray, place: np.ndarray) -> np.ndarray:
    """m + w (v - m) / mean(w), with m = Σ w v / Σ w, of each place by itself."""
    total, weighed = np.bincount(place, weights=weight), np.bincount(place, weights=weight * values)
    mean = np.divide(weighed, total, out=np.full(len(total), np.nan), where=total > 0)[place]
    return np.asarray(mean + _normalised(weight, place) * (values - mean))


def _normalised(weight: np.ndarray, place: np.ndarray) -> np.ndarray:
    """w / mean(w) of the same place."""
    mean = np.bincount(place, weights=weight) / np.maximum(np.bincount(place), 1)
    return np.asarray(weight / mean[place])


def never_shown(log: Decisions) -> float:
    """Σ over places of (1 - mean(w)) (J - least reward), where mean(w) is significantly below 1 (one-sided).

    The mean of w is the share of π that μ can show. An estimate says nothing of the rest, and a self-normalised one
    hides it, as if the rest earned as much. It may earn as little as the least, or as much above the mean.
    """
    # Measured on bandits of 20 contexts and 10 items, 400 logs each, with 300 and 3,000 decisions: of logs that show
    # all of π 5 % are widened; of those that never show a tenth of it 8 and 0 % are missed, a fiftieth 85 and 43 %.
    # What is missed is a gain too high by less than the interval's own width (tests/measure/test_off_policy.py).
    place, unknown, least = log.places, 0.0, float(log.reward.min(initial=np.inf))
    for number in range(int(place.max(initial=-1)) + 1):
        here = place == number
        weight, reward = log.weight[here], log.reward[here]
        missing = 1 - float(weight.mean())
        if lower_bound(1 - weight, log.sequence[here]) > 0 and weight.any():
            earned = float((weight * reward).sum() / weight.sum())
            unknown += missing * (earned - least) * len(weight) / len(log.starts)
    return unknown


def direct(log: Decisions) -> np.ndarray:
    """Σ_a π(a|x) r̂(x, a): as good as r̂, and blind to what r̂ gets wrong. Of whole lists it says nothing."""
    assert log.value_expected is not None and not log.lists
    return log.value_expected


def doubly_robust(log: Decisions) -> np.ndarray:
    """Σ_a π(a|x) r̂(x, a) + w (r - r̂(x, a)): unbiased for any r̂ not fitted on these decisions.

    Of whole lists: the first term is weighted as the places above are, Σ_j w_{j-1} E_π[r̂] + w_j (r_j - r̂).
    """
    assert log.value_expected is not None and log.value_taken is not None
    return log.summed(log.before * log.value_expected + log.weight * (log.reward - log.value_taken))


def self_normalised_doubly_robust(log: Decisions) -> np.ndarray:
    """Σ_a π(a|x) r̂(x, a) + w (r - r̂(x, a)) / mean(w): less noisy than `doubly_robust` where r̂ is off on the whole.

    Of whole lists both terms are normalised, place by place (Thomas and Brunskill 2016).
    """
    assert log.value_expected is not None and log.value_taken is not None
    expected = _ratio(log.before, log.value_expected, log.places)
    return log.summed(expected + _ratio(log.weight, log.reward - log.value_taken, log.places))


class ValueEstimator(NamedTuple):
    """An estimator of J(π), and what it needs and gives."""

    values: Callable[[Decisions], np.ndarray]  # what the estimate is the mean of
    normalised: bool = False  # whether a reward counts as its weight over the mean weight
    reward_model: bool = False  # whether it needs r̂
    of_lists: bool = True  # whether it speaks of whole lists too
    has_error: bool = True  # False: its error is r̂'s, of which its spread says nothing

    def applies(self, log: Decisions) -> bool:
        """Whether the log has what it needs."""
        return (log.value_expected is not None or not self.reward_model) and (self.of_lists or not log.lists)

    def leverage(self, log: Decisions) -> np.ndarray:
        """What one more unit of a decision's reward adds [n]."""
        return _normalised(log.weight, log.places) if self.normalised else log.weight


ESTIMATORS = {
    "IPS": ValueEstimator(importance),
    "SNIPS": ValueEstimator(self_normalised, normalised=True),
    "DM": ValueEstimator(direct, reward_model=True, of_lists=False, has_error=False),
    "DR": ValueEstimator(doubly_robust, reward_model=True),
    "SNDR": ValueEstimator(self_normalised_doubly_robust, normalised=True, reward_model=True),
}


def contributions(log: Decisions, estimator: str) -> Contributions:
    """Of an estimator by its name (`SNIPS`, or `snips` as in settings), with what each reward adds."""
    by = ESTIMATORS[estimator.upper()]
    return Contributions(by.values(log), log.clusters, by.leverage(log), log.reward, never_shown(log))


def logged(log: Decisions) -> Contributions:
    """Of μ itself: what it earned."""
    return Contributions(log.earned, log.clusters, np.ones(len(log.reward)), log.reward)


# ---------------------------------------------------------------------- intervals

BELIEF = 30.0  # rewarded decisions against which the spread of dealt-out rewards counts as much as the one seen


class Bounds(NamedTuple):
    """From low to high."""

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
    """t_level se; NaN where there is one sequence."""
    return t_quantile(level, sequences_of(clusters) - 1) * clustered_se(values, clusters)


def skewed(found: Contributions, *, confidence: float = CONFIDENCE) -> Bounds:
    """The interval that decides: the normal one, and Hall's 1992 one for skewed sums, whichever end lies further out.

    With T = √C (mean - J) / s and a = skewness / √C, Hall's transformation makes
    g(T) = T + a T²/3 + a² T³/27 + a/6 normal up to O(1/C); inverted, T = 3/a ((1 + a (z - a/6))^(1/3) - 1).

    Where rewards are rare, the few that were earned rarely lie under the large weights, and the spread seen is too
    small. But all weights are known: so the moments seen are shrunk towards those of all leverages l with rewards dealt
    out at random, E[l²] Var(r) and E[l³] E(r - r̄)³, by `BELIEF` decisions' worth against those that earned anything.

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


STRENGTHS = tuple(2.0**-power for power in range(11))  # of logarithmic smoothing, in units of 1/mean; fixed beforehand


def smoothed_lower_bound(
    log: Decisions, *, confidence: float = CONFIDENCE, scale: float = 1.0, strengths: Sequence[float] = STRENGTHS
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
