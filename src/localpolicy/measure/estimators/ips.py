"""Importance weights, whole and clipped (Ionides 2008)."""

from __future__ import annotations

import math

import numpy as np

from localpolicy.measure.decisions import Decisions
from localpolicy.measure.estimate import clustered_se
from localpolicy.measure.estimators.base import Estimator, ValueEstimate
from localpolicy.measure.intervals import empirical_bernstein

CAP = 30.0  # of clipped weights: the paper's


class IPS(Estimator):
    """w r: unbiased where μ shows all that π does."""

    name, title = "ips", "IPS"

    def values(self, log: Decisions) -> np.ndarray:
        """w r."""
        return log.summed(log.weight * log.reward)


class ClippedIPS(Estimator):
    """min(w, cap) r: for r >= 0 its mean is below J, by what the clipped weights would have added."""

    name, title = "clipped_ips", "clipped IPS"
    chooses = judges = False

    def __init__(self, cap: float = CAP) -> None:
        self.cap = cap

    def values(self, log: Decisions) -> np.ndarray:
        """min(w, cap) r."""
        return log.summed(np.minimum(log.weight, self.cap) * log.reward)

    def estimate(self, log: Decisions, *, largest_reward: float | None = None) -> ValueEstimate:
        """Estimated value with an interval from below alone: clipped weights underestimate J.

        What is clipped off is missing above, so that its interval bounds J from below alone.
        """
        values, intervals = self.values(log), {}
        if largest_reward is not None and log.reward.min() >= 0:
            most = largest_reward * (int(log.places.max(initial=0)) + 1)  # that any policy can earn
            found = empirical_bernstein(values, log.clusters, bounds=(0.0, self.cap * most))
            whole = (log.weight <= self.cap).all()
            intervals["empirical Bernstein"] = found._replace(high=min(found.high, most) if whole else math.inf)
        return ValueEstimate(float(values.mean()), clustered_se(values, log.clusters), intervals)
