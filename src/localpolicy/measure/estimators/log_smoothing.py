"""A lower bound that holds for any number of sequences and any tails of the weights (Sakhi et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from localpolicy.errors import DataError
from localpolicy.measure.decisions import Decisions
from localpolicy.measure.estimate import CONFIDENCE, cluster_sums, clustered_se
from localpolicy.measure.estimators.base import ValueEstimate
from localpolicy.measure.estimators.ips import IPS
from localpolicy.measure.intervals import Bounds

STRENGTHS = tuple(2.0**-power for power in range(11))  # in units of 1/mean; fixed beforehand


class LogSmoothing(IPS):
    """Value as by `IPS`, with the lower bound of logarithmic smoothing; for rewards >= 0."""

    name, title = "log_smoothing", "log smoothing"
    negative_rewards = listed = judges = False

    def estimate(self, log: Decisions, *, largest_reward: float | None = None) -> ValueEstimate:
        """Estimated value with an interval from below alone."""
        values = self.values(log)
        low = smoothed_lower_bound(log, scale=largest_reward or 1.0)
        intervals = {"logarithmic smoothing": Bounds(low, math.inf)}
        return ValueEstimate(float(values.mean()), clustered_se(values, log.clusters), intervals)

    def bound(self, log: Decisions, *, confidence: float, scale: float = 1.0) -> tuple[float, float]:
        """Estimated value and its smoothed lower bound."""
        return float(self.values(log).mean()), smoothed_lower_bound(log, confidence=confidence, scale=scale)


def smoothed_lower_bound(
    log: Decisions, *, confidence: float = CONFIDENCE, scale: float = 1.0, strengths: Sequence[float] = STRENGTHS
) -> float:
    """max over λ of (exp(mean log(1 + λ Z) - log(K/δ)/C) - 1) / λ, with Z the sum of w r over a sequence.

    For independent Z >= 0 of mean J: E exp(Σ log(1 + λ Z)) = (1 + λ J)^C, so
    Markov's inequality gives Σ log(1 + λ Z) <= C log(1 + λ J) + log(1/δ) with probability 1 - δ, whatever the tails of
    the weights. λ must not depend on the sample: it is the best of K fixed ones, each with δ/K. `scale` is what Z is
    measured in (such as the largest reward), known beforehand. Of decisions: divided by their number in a sequence.
    """
    if (log.reward < 0).any():
        raise DataError("logarithmic smoothing needs rewards >= 0; found negative ones.")
    sums, sizes = cluster_sums(IPS().values(log), log.clusters)
    count = len(sums)
    surprise = math.log(len(strengths) / (1 - confidence)) / count
    lows = [
        math.expm1(float(np.log1p(strength / scale * sums).mean()) - surprise) * scale / strength
        for strength in strengths
    ]
    return max(0.0, *lows) * count / float(sizes.sum())
