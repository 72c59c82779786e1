"""Self-normalised importance weights (Swaminathan and Joachims 2015)."""

from __future__ import annotations

import numpy as np

from localpolicy.measure.decisions import Decisions
from localpolicy.measure.estimators.base import Estimator, normalised, ratio


class SNIPS(Estimator):
    """J + w (r - J) / mean(w), with J = Σ w r / Σ w: its mean is J, its spread the delta method's.

    Of whole lists: this for each place among the lists that have it, summed over the places.
    """

    name, title = "snips", "SNIPS"

    def values(self, log: Decisions) -> np.ndarray:
        """J + w (r - J) / mean(w)."""
        return log.summed(ratio(log.weight, log.reward, log.places))

    def leverage(self, log: Decisions) -> np.ndarray:
        """w / mean(w)."""
        return normalised(log.weight, log.places)
