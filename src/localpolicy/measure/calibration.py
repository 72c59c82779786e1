"""What a critic adds within a context, on actions it was not trained on: the slope of the return on its advantage.

With Â(x,a) = Q(x,a) - g(x) and g(x) = Σ_a μ̂(a|x) Q(x,a), a critic that is right has E[G - g(x) | x, a] = Â(x,a): the
regression of G - g(x) on Â has slope 1. Noise in Q shrinks the slope, and a critic that knows contexts but cannot tell
items apart has slope 0, however well it predicts returns. A policy tilts by Â, so Â is multiplied by the lower
confidence bound of the slope, and by 0 where that is negative: then the log does not tell good items from bad.

In logs of lists what stands higher is looked at more, and other items stand there. So items are compared with items at
the same place alone: what a place earns, and how much the critic says of those that stand there, is taken off first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from localpolicy.measure.estimate import cluster_sums, finite

CONFIDENCE = 0.95  # of the slope's lower bound, one-sided


class Calibration(NamedTuple):
    """The regression of G - g(x) on Â(x,a) over held-out actions; errors are clustered by sequence."""

    slope: float
    se: float
    low: float  # lower confidence bound of the slope
    r2: float  # 1 - Var(G - g - Â) / Var(G - g): what Â explains beyond g(x), as it stands; negative: it misleads
    spread: float  # standard deviation of Â over actions of μ
    error: float  # mean squared error of Q to the return
    n: int
    sequences: int

    @property
    def factor(self) -> float:
        """What Â is multiplied by: max(0, lower bound)."""
        return max(0.0, self.low) if np.isfinite(self.low) else 0.0

    def json(self) -> dict[str, Any]:
        """For the manifest and `--json`."""
        return {name: finite(value) for name, value in self._asdict().items()} | {"factor": self.factor}


def calibrate(
    returns: np.ndarray,
    baseline: np.ndarray,
    values: np.ndarray,
    sequence: np.ndarray,
    *,
    weight: np.ndarray | None = None,
    place: np.ndarray | None = None,
    confidence: float = CONFIDENCE,
) -> Calibration:
    """b of G - g = c + b Â + e, with se² = Σ_c (Σ_{i in c} u_i e_i)² · C/(C-1) / (Σ u²)², u being Â less its mean.

    In lists c is the place's own, and squared errors have a `weight` (see `critic_targets`).
    """
    observed, advantage = returns - baseline, values - baseline
    n, sequences = len(observed), len(np.unique(sequence))
    weight = np.ones(n) if weight is None else weight
    place = np.zeros(n, np.int64) if place is None else place
    error = float(np.mean(weight * (returns - values) ** 2)) if n else np.nan
    nothing = Calibration(0.0, np.inf, -np.inf, 0.0, 0.0, error, n, sequences)
    if sequences < 3:
        return nothing
    centred, outcome = (column - _means(column, weight, place)[place] for column in (advantage, observed))
    weighted = weight * centred
    squares = float(weighted @ centred)
    if not squares > 0:  # a critic that says the same of all items
        return nothing
    slope = float(weighted @ outcome) / squares
    sums, _ = cluster_sums(weighted * (outcome - slope * centred), sequence)
    se = float(np.sqrt((sums**2).sum() * sequences / (sequences - 1))) / squares
    low = slope - float(stats.t.ppf(confidence, sequences - 1)) * se
    total = float((weight * outcome) @ outcome)
    unexplained = float((weight * (outcome - centred) ** 2).sum())
    r2 = 1 - unexplained / total if total > 0 else 0.0
    return Calibration(slope, se, low, r2, float(np.sqrt(squares / weight.sum())), error, n, sequences)


def _means(column: np.ndarray, weight: np.ndarray, place: np.ndarray) -> np.ndarray:
    """The mean at each place."""
    if not place.any():  # summed pairwise: rounding matters less the more rows there are
        return np.array([np.average(column, weights=weight)])
    total = np.bincount(place, weights=weight)
    return np.bincount(place, weights=weight * column) / np.where(total > 0, total, 1.0)
