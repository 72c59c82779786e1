"""The direct method: a reward model's word."""

from __future__ import annotations

import math

import numpy as np

from localpolicy.measure.decisions import Decisions
from localpolicy.measure.estimators.base import Estimator, ValueEstimate


class DM(Estimator):
    """Σ_a π(a|x) r̂(x, a): as good as r̂, and blind to what r̂ gets wrong. Of whole lists it says nothing."""

    name, title = "dm", "DM"
    reward_model, of_lists = True, False
    chooses = judges = False

    def values(self, log: Decisions) -> np.ndarray:
        """Σ_a π(a|x) r̂(x, a)."""
        assert log.value_expected is not None and not log.lists
        return log.value_expected

    def estimate(self, log: Decisions, *, largest_reward: float | None = None) -> ValueEstimate:
        """The value without a standard error: its error is that of r̂, which the values do not show."""
        return ValueEstimate(float(self.values(log).mean()), math.nan, {})
