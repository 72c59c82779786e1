"""A figure: a mean with errors one may believe, and how many positions it takes to tell two apart.

Positions of one sequence are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from scipy.special import ndtri, stdtrit  # scipy.stats takes half a second to import

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
CONFIDENCE = 0.95  # of every interval, unless another is asked for
REACH = 1.96  # standard errors on either side, for many values


class Estimate(NamedTuple):
    """A mean with its standard error, over n positions."""

    mean: float
    se: float  # clustered by sequence
    n: int
    plain_se: float  # as if positions were independent; the paper's

    def within_unit(self) -> Interval:
        """Interval of a metric whose values are in [0, 1], as those of all ranking metrics are.

        Where all values seen are equal the error is 0, which is no certainty: 0 of 7 hits is Wilson's 0 to 0.35. It
        holds for nDCG too, which is at most a hit.
        """
        around = Interval.from_estimate(self)
        if self.n == 0 or self.se > 0:
            return Interval(self.mean, max(around.low, 0.0), min(around.high, 1.0))  # NaN stays
        return Interval(self.mean, *wilson(self.mean * self.n, self.n))


def t_quantile(p: float, freedom: float) -> float:
    """t with P(T <= t) = p, T Student's with `freedom` degrees of freedom."""
    return float(stdtrit(freedom, p))


def t_reach(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Standard errors on either side of a mean, by Student's t."""
    return t_quantile((1 + confidence) / 2, freedom)


def wilson(hits: float, n: float, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """(p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n): Wilson 1927; never empty, not even at 0 of n."""
    z, share = float(ndtri((1 + confidence) / 2)), hits / n
    middle = share + z * z / (2 * n)
    reach = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low, high = (middle - reach) / (1 + z * z / n), (middle + reach) / (1 + z * z / n)
    return (0.0 if hits == 0 else max(0.0, low)), (1.0 if hits == n else min(1.0, high))


@dataclass(frozen=True)
class Interval:
    """Mean of a metric with its interval, 95 % by default; `low` = `high` = `mean` if it is exact."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, mean: float, se: float, *, confidence: float = CONFIDENCE) -> Interval:
        """mean ± z standard errors, P(|Z| <= z) = confidence: 1.96 of them for 95 %."""
        reach = (REACH if confidence == CONFIDENCE else float(ndtri((1 + confidence) / 2))) * se
        return cls(mean, mean - reach, mean + reach)

    @classmethod
    def students(cls, mean: float, se: float, n: int, *, confidence: float = CONFIDENCE) -> Interval:
        """mean ± t_{n-1} standard errors, for few values; without an interval for a single one."""
        reach = t_reach(n - 1, confidence) * se if n > 1 else 0.0
        return cls(mean, mean - reach, mean + reach)

    @classmethod
    def from_estimate(cls, value: Estimate, *, confidence: float = CONFIDENCE) -> Interval:
        """Estimate with clustered standard errors."""
        return cls.of(value.mean, value.se, confidence=confidence)

    @classmethod
    def known(cls, value: Estimate | None) -> Interval | None:
        """Interval of an estimate; None without one."""
        return None if value is None else cls.from_estimate(value)

    @property
    def exact(self) -> bool:
        """Whether the value has no uncertainty: both ends are equal to it."""
        return self.low == self.high

    @property
    def sign(self) -> int:
        """+1 or -1 if the whole interval is on one side of 0, else 0."""
        return int(self.low > 0) - int(self.high < 0)


class Measurement(NamedTuple):
    """Row of the long table: one metric of one policy over one group of positions."""

    policy: str
    seed: int | None
    split: str | None  # None: not of a log, as the true reward
    round: int | None  # of a loop
    group: str  # of positions
    figure: str
    mean: float
    se: float
    low: float  # of its own 95 % interval
    high: float
    n: int | None

    @classmethod
    def of(
        cls, policy: str, name: str, around: Interval, *, se: float = math.nan, n: int | None = None,
        seed: int | None = None, split: str | None = None, round: int | None = None, whole: bool = False,
    ) -> Measurement:  # fmt: skip
        """Build the row of the metric `purchase.nDCG@20`, `JS` or `coverage@20`; a `whole` name has no group in it."""
        group, figure = ("all", name) if whole else group_and_figure(name)
        return cls(policy, seed, split, round, group, figure, around.mean, se, around.low, around.high, n)

    @property
    def name(self) -> str:
        """Full name of the metric: `purchase.nDCG@20`, or `nDCG@20` for all positions."""
        return self.figure if self.group == "all" else f"{self.group}.{self.figure}"

    @property
    def interval(self) -> Interval:
        """Mean with its 95 % interval."""
        return Interval(self.mean, self.low, self.high)


def group_and_figure(name: str) -> tuple[str, str]:
    """Split a metric's name: purchase.nDCG@20 -> purchase, nDCG@20; without a group it is of all positions."""
    group, _, figure = name.rpartition(".")
    return group or "all", figure


def finite(value: Any) -> Any:
    """The number, or None if it is NaN or infinite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_json(value: Any) -> Any:
    """Convert estimates and other records, alone or inside dicts and lists, to JSON values; NaN becomes null."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "_asdict"):
        value = value._asdict()
    elif is_dataclass(value):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, Mapping):
        return {name: as_json(each) for name, each in value.items()}
    return [as_json(each) for each in value] if isinstance(value, list | tuple) else finite(value)


def mean_estimate(values: np.ndarray, clusters: np.ndarray) -> Estimate:
    """mean ± sqrt(Σ_c (Σ_{i in c} (v_i - mean))² · C/(C-1)) / n."""
    n = len(values)
    if n == 0:
        return Estimate(math.nan, math.nan, 0, math.nan)
    values = np.asarray(values, dtype=np.float64)
    mean = float(values.mean())
    return Estimate(mean, clustered_se(values, clusters), n, standard_error(values))


def standard_error(values: ArrayLike) -> float:
    """Standard deviation / √n of independent values; NaN for a single one."""
    values = np.asarray(values, dtype=np.float64)
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def mean_of_estimates(estimates: Iterable[Estimate]) -> Estimate:
    """Mean of estimates over the same positions (of several seeds, or pairs of references).

    They share their luck, so that errors do not shrink with their number: the largest is safe.
    """
    means, errors, counts, plain = zip(*estimates, strict=True)
    return Estimate(float(np.mean(means)), float(np.max(errors)), counts[0], float(np.max(plain)))


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


# ---------------------------------------------------------------------- how many are enough

# n = ((z_{1-α/2} + z_{power}) σ / δ)²: the normal approximation of a paired test's sample size (Cohen 1988, 2.4; Lehr
# 1992's 16 σ²/δ² is the same at 80 % power, rounded). Sequences are counted and not positions: those of one sequence
# are not independent.
SMALL_EFFECT, MEDIUM_EFFECT = 0.2, 0.5  # of a standard deviation: what Cohen calls small and medium
POWER = 0.8  # of finding a difference that is there


def sample_needed(effect: float = SMALL_EFFECT, *, confidence: float = CONFIDENCE) -> int:
    """((z_{1-α/2} + z_{power}) / effect)², the effect in standard deviations of the paired difference."""
    reach = float(ndtri((1 + confidence) / 2) + ndtri(POWER))
    return math.ceil((reach / effect) ** 2)


ENOUGH = sample_needed()  # 197: fewer miss a small difference more often than once in five times
LEAST = sample_needed(MEDIUM_EFFECT)  # 32: fewer miss even a medium one


class Seen(Protocol):
    """Protocol of an estimate: mean, standard error and n, such as a paired difference."""

    @property
    def se(self) -> float:
        """Standard error, clustered by sequence."""

    @property
    def n(self) -> int:
        """Number of values in the mean."""


def more_needed(found: Seen, gain: float, *, confidence: float) -> int | None:
    """Sample size to detect `gain`, if new values vary as those seen do; None if nothing varies or `gain` ≤ 0."""
    if not (found.n and found.se > 0 and gain > 0):
        return None
    sd = found.se * math.sqrt(found.n)  # clustering is in it: as many sequences as now, for each position
    return sample_needed(gain / sd, confidence=confidence)


def sequences_of(clusters: np.ndarray) -> int:
    """Number of distinct sequences among the clusters."""
    return len(np.unique(clusters))


# ---------------------------------------------------------------------- means of many groups at once


def credible_means(
    item: np.ndarray, values: np.ndarray, *, n_items: int, weight: np.ndarray | None = None
) -> np.ndarray:
    """Mean of every item [V], believed as far as its numbers carry; the overall mean for an item never taken.

    Bühlmann and Straub 1970, from the values of n decisions; a value of weight w has the variance σ²/w.
    """
    n = len(values)
    if not n:
        return np.zeros(n_items)
    weight = np.ones(n) if weight is None else weight
    counts, mean = np.bincount(item, weights=weight, minlength=n_items), float(np.average(values, weights=weight))
    total = np.bincount(item, weights=weight * values, minlength=n_items)
    means = np.divide(total, counts, out=np.full(n_items, mean), where=counts > 0)
    seen = int((counts > 0).sum())
    if seen < 2 or n <= seen:  # nothing to compare, or no item twice
        return np.full(n_items, mean)
    within = float((weight * (values - means[item]) ** 2).sum()) / (n - seen)
    between = float((counts * (means - mean) ** 2).sum()) - (seen - 1) * within
    between /= counts.sum() - float((counts**2).sum()) / counts.sum()
    if between <= 0:
        return np.full(n_items, mean)
    return np.asarray(mean + counts / (counts + within / between) * (means - mean))
