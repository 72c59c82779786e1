"""How many sequences a comparison needs before it can tell: n = ((z_{1-α/2} + z_{power}) σ / δ)².

The normal approximation of a paired test's sample size (Cohen 1988, section 2.4; Lehr 1992's 16 σ²/δ² is the same at
80 % power, rounded). Sequences are counted and not positions: those of one sequence are not independent.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from localpolicy.measure.significance import Paired

SMALL_EFFECT, MEDIUM_EFFECT = 0.2, 0.5  # of a standard deviation: what Cohen calls small and medium
POWER = 0.8  # of finding a difference that is there


def sample_needed(effect: float = SMALL_EFFECT, *, power: float = POWER, confidence: float = 0.95) -> int:
    """((z_{1-α/2} + z_{power}) / effect)², the effect in standard deviations of the paired difference."""
    reach = float(stats.norm.ppf((1 + confidence) / 2) + stats.norm.ppf(power))
    return math.ceil((reach / effect) ** 2)


ENOUGH = sample_needed()  # 197: fewer miss a small difference more often than once in five times
LEAST = sample_needed(MEDIUM_EFFECT)  # 32: fewer miss even a medium one


def more_needed(test: Paired, gain: float, *, confidence: float = 0.95) -> int | None:
    """Positions with which a difference of `gain` would be told from none, if they vary as those seen do."""
    if not (test.n and test.se > 0 and gain > 0):
        return None
    sd = test.se * math.sqrt(test.n)  # clustering is in it: as many sequences as now, for each position
    return sample_needed(gain / sd, confidence=confidence)


def sequences_of(clusters: np.ndarray) -> int:
    """How many sequences there are to compare on."""
    return len(np.unique(clusters))
