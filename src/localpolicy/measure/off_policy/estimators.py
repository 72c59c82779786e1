"""Estimators of J(π) = E_x E_{a~π}[r] from decisions of μ, each as one contribution per decision, or per whole list.

An estimate is the mean of its contributions, and their spread is its error. Contexts are those that μ met: where
showing an item changes what comes next, this is the value of one deviation from μ, not of a whole visit under π.

Dudík et al. 2011 (direct, doubly robust); Swaminathan and Joachims 2015 (self-normalised); Ionides 2008 (clipped);
Kiyohara et al. 2022 (doubly robust under a cascade); Thomas and Brunskill 2016 (self-normalised doubly robust).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from localpolicy.measure.estimate import clustered_se
from localpolicy.measure.off_policy.decisions import Decisions

SIGNIFICANT = 2.0  # standard errors by which the mean weight is below 1, before anything counts as never shown


class Contributions(NamedTuple):
    """What an estimate is the mean of, and how much of each reward it holds."""

    values: np.ndarray  # [U] of each list, or of each decision
    clusters: np.ndarray  # [U] the sequence of each
    leverage: np.ndarray  # [n] what one more unit of a decision's reward adds to the values
    reward: np.ndarray  # [n]
    unknown: float = 0.0  # by how much the estimate may be off either way, for what μ never shows

    def __sub__(self, other: Contributions) -> Contributions:
        """Of a difference, on the same decisions: what luck gave the log it gave both."""
        unknown = self.unknown + other.unknown
        return self._replace(
            values=self.values - other.values, leverage=self.leverage - other.leverage, unknown=unknown
        )

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


def importance(log: Decisions) -> np.ndarray:
    """w r."""
    return log.summed(log.weight * log.reward)


def clipped(log: Decisions, cap: float) -> np.ndarray:
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
    """Σ over places of (1 - mean(w)) (J - least reward), where mean(w) is significantly below 1.

    The mean of w is the share of π that μ can show. An estimate says nothing of the rest, and a self-normalised one
    hides it, as if the rest earned as much. It may earn as little as the least, or as much above the mean.
    """
    place, unknown, least = log.places, 0.0, float(log.reward.min(initial=np.inf))
    for number in range(int(place.max(initial=-1)) + 1):
        here = place == number
        weight, reward = log.weight[here], log.reward[here]
        missing = 1 - float(weight.mean())
        if missing > SIGNIFICANT * clustered_se(weight, log.sequence[here]) and weight.any():
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
    expected = log.value_expected if log.before is None else log.before * log.value_expected
    return log.summed(expected + log.weight * (log.reward - log.value_taken))


def self_normalised_doubly_robust(log: Decisions) -> np.ndarray:
    """Σ_a π(a|x) r̂(x, a) + w (r - r̂(x, a)) / mean(w): less noisy than `doubly_robust` where r̂ is off on the whole.

    Of whole lists both terms are normalised, place by place (Thomas and Brunskill 2016).
    """
    assert log.value_expected is not None and log.value_taken is not None
    before = np.ones(len(log.weight)) if log.before is None else log.before
    expected = _ratio(before, log.value_expected, log.places)
    return log.summed(expected + _ratio(log.weight, log.reward - log.value_taken, log.places))


ESTIMATORS: dict[str, Callable[[Decisions], np.ndarray]] = {
    "IPS": importance,
    "SNIPS": self_normalised,
    "DM": direct,
    "DR": doubly_robust,
    "SNDR": self_normalised_doubly_robust,
}
NEEDS_REWARD_MODEL = ("DM", "DR", "SNDR")


def contributions(log: Decisions, estimator: str) -> Contributions:
    """Of an estimator by its name, with what each reward adds."""
    leverage = _normalised(log.weight, log.places) if estimator.startswith("SN") else log.weight
    return Contributions(ESTIMATORS[estimator](log), log.clusters, leverage, log.reward, never_shown(log))


def logged(log: Decisions) -> Contributions:
    """Of μ itself: what it earned."""
    return Contributions(log.earned, log.clusters, np.ones(len(log.reward)), log.reward)
