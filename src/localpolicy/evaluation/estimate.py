"""A figure: a mean with errors one may believe. Positions of one sequence are not independent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class Estimate(NamedTuple):
    """A mean with its standard error, over n positions."""

    mean: float
    se: float  # clustered by sequence
    n: int
    plain_se: float  # as if positions were independent; the paper's

    def json(self) -> dict[str, float | int | None]:
        """For `--json`: what cannot be known is null."""
        return {name: finite(value) for name, value in self._asdict().items()}


@dataclass(frozen=True)
class Interval:
    """A figure and its 95 % interval; `low` = `high` = `mean` where it is exact."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, mean: float, se: float) -> Interval:
        """mean ± 1.96 standard errors."""
        return cls(mean, mean - 1.96 * se, mean + 1.96 * se)

    @property
    def exact(self) -> bool:
        """Whether there is nothing uncertain about it."""
        return self.low == self.high


def finite(value: Any) -> Any:
    """The number, or None where it is not one."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def mean_estimate(values: np.ndarray, clusters: np.ndarray) -> Estimate:
    """mean ± sqrt(Σ_c (Σ_{i in c} (v_i - mean))² · C/(C-1)) / n."""
    n = len(values)
    if n == 0:
        return Estimate(math.nan, math.nan, 0, math.nan)
    values = np.asarray(values, dtype=np.float64)
    mean = float(values.mean())
    plain = float(values.std(ddof=1) / np.sqrt(n)) if n > 1 else math.nan
    return Estimate(mean, clustered_se(values, clusters), n, plain)


def clustered_se(values: np.ndarray, clusters: np.ndarray) -> float:
    """sqrt(Σ_c (Σ_{i in c} (v_i - mean))² · C/(C-1)) / n."""
    sums, _ = cluster_sums(values - values.mean(), clusters)
    count = len(sums)
    return float(np.sqrt((sums**2).sum() * count / (count - 1))) / len(values) if count > 1 else math.nan


def cluster_sums(values: np.ndarray, clusters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sum of the values of each cluster, and its size: both [C]."""
    _, index = np.unique(clusters, return_inverse=True)
    return np.bincount(index, weights=values), np.bincount(index)


def quantiles(values: np.ndarray) -> dict[str, float]:
    """Quantiles over contexts: a mean hides the few that moved far."""
    return {f"q{round(100 * share)}": float(np.quantile(values, share)) for share in QUANTILES} if len(values) else {}
