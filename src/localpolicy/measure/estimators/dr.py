"""Doubly robust: a reward model, and importance weights for what it gets wrong.

Dudík et al. 2011; under a cascade Kiyohara et al. 2022; self-normalised Thomas and Brunskill 2016.
"""

from __future__ import annotations

import numpy as np

from localpolicy.measure.decisions import Decisions
from localpolicy.measure.estimators.base import Estimator, normalised, ratio


class DR(Estimator):
    """Σ_a π(a|x) r̂(x, a) + w (r - r̂(x, a)): unbiased for any r̂ not fitted on these decisions.

    Of lists: the first term is weighted by the ratios above its place, Σ_j w_{j-1} E_π[r̂] + w (r_j - r̂), where w is the
    ratio of the whole list, or w_j under a cascade.
    """

    name, title = "dr", "DR"
    reward_model = True

    def values(self, log: Decisions) -> np.ndarray:
        """Σ_a π(a|x) r̂(x, a) + w (r - r̂(x, a))."""
        assert log.value_expected is not None and log.value_taken is not None
        return log.summed(log.before * log.value_expected + log.weight * (log.reward - log.value_taken))


class SNDR(Estimator):
    """Σ_a π(a|x) r̂(x, a) + w (r - r̂(x, a)) / mean(w): less noisy than `DR` where r̂ is off on the whole.

    Of whole lists both terms are normalised, place by place.
    """

    name, title = "sndr", "SNDR"
    reward_model = True

    def values(self, log: Decisions) -> np.ndarray:
        """Σ_a π(a|x) r̂(x, a) + w (r - r̂(x, a)) / mean(w)."""
        assert log.value_expected is not None and log.value_taken is not None
        expected = ratio(log.before, log.value_expected, log.places)
        return log.summed(expected + ratio(log.weight, log.reward - log.value_taken, log.places))

    def leverage(self, log: Decisions) -> np.ndarray:
        """w / mean(w)."""
        return normalised(log.weight, log.places)
