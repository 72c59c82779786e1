"""Seeds of an experiment: which ones references have, and what several of a policy say together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from localpolicy.measure.estimate import Interval

REFERENCE_SEEDS = (101, 102)  # of the μ̂ that divergences are taken from: never a policy's own seed


def over_seeds(means: Sequence[float], errors: Sequence[float]) -> Interval:
    """Of one seed its own interval; of several, Student's over seeds (their spread holds each one's noise too)."""
    if len(means) == 1:
        return Interval.of(means[0], errors[0])
    mean, se = float(np.mean(means)), float(np.std(means, ddof=1) / math.sqrt(len(means)))
    reach = float(stats.t.ppf(0.975, len(means) - 1)) * se
    return Interval(mean, mean - reach, mean + reach)
