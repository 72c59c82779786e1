"""Is one policy better than another on the same positions? Paired tests, and honesty about how many were made.

The paired t-test over positions is the paper's. Positions of one sequence are not independent, so the test that
counts here sums differences by sequence first; the bootstrap draws whole sequences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from scipy.special import ndtr, stdtr  # scipy.stats takes half a second to import

from localpolicy.measure.estimate import (
    CONFIDENCE,
    Estimate,
    Interval,
    as_json,
    cluster_sums,
    mean_estimate,
    sequences_of,
    t_reach,
    wilson,
)
from localpolicy.measure.position_metrics import LENGTHS, bins

MOST_UNITS = 2_000  # drawn from by the bootstrap
Key = TypeVar("Key", bound=Hashable)
End = TypeVar("End", bound=tuple[float, float])  # low and high
LEVELS = ((0.001, "***"), (0.01, "**"), (0.05, "*"))  # the stars of the paper's figures


def _level(p: float) -> str:
    return f"{p:g}".removeprefix("0")


STARS = f"({', '.join(f'{mark} {_level(p)}' for p, mark in reversed(LEVELS))})"  # as notes of tables say it
SIGNIFICANT = f"p < {_level(LEVELS[-1][0])}"


@dataclass(frozen=True)
class Paired:
    """Paired test: the difference first - second on the same positions, with interval and p-values."""

    difference: float
    se: float  # clustered by sequence
    low: float  # of the decision's interval: corrected as `holm_p` is
    high: float
    p: float  # two-sided; t-test on sums by sequence
    plain_p: float  # the same over positions, as in the paper
    n: int
    holm_p: float  # corrected for the family of tests it belongs to; `p` where it was made alone

    @classmethod
    def around(cls, known: Interval) -> Paired:
        """Build from an interval alone; p-values and standard error are NaN."""
        none = math.nan
        return cls(known.mean, none, known.low, known.high, none, none, 0, none)

    @property
    def numbers(self) -> tuple[float, float, float, int]:
        """The difference, both ends of its interval, and n."""
        return self.difference, self.low, self.high, self.n

    @property
    def sign(self) -> int:
        """+1 or -1 if the difference is significant at the requested confidence, else 0."""
        return int(self.low > 0) - int(self.high < 0)

    @property
    def alike(self) -> bool:
        """Whether the two are equal at every position, so that no interval is meaningful."""
        return self.se == 0 and abs(self.difference) < 1e-12

    @property
    def stars(self) -> str:
        """Significance stars of the corrected p-value: * below .05, ** below .01, *** below .001.

        One star where the interval excludes 0 and there is no p-value, as of values.
        """
        if math.isnan(self.holm_p):
            return "*" if self.sign else ""
        return next((mark for level, mark in LEVELS if self.holm_p < level), "")

    def __neg__(self) -> Paired:
        """Test of second - first."""
        return replace(self, difference=-self.difference, low=-self.high, high=-self.low)

    def to_dict(self) -> dict[str, Any]:
        return {**{name: as_json(value) for name, value in vars(self).items()}, "stars": self.stars}


Values = tuple[np.ndarray, np.ndarray, np.ndarray]  # of two policies on the same positions, and the sequence of each


def paired(first: np.ndarray, second: np.ndarray, clusters: np.ndarray, *, confidence: float = CONFIDENCE) -> Paired:
    """Paired t-test: t = mean(d) / se(d), with C - 1 degrees of freedom for C sequences."""
    return paired_family({None: (first, second, clusters)}, confidence=confidence)[None]


def paired_family(values: Mapping[Key, Values], *, confidence: float = CONFIDENCE) -> dict[Key, Paired]:
    """Paired tests with Holm's correction over all of them, in p-values and in intervals.

    Holm compares p with α / m', where m' falls from the number of tests to 1. The interval is that of confidence
    1 - α / m': it excludes 0 exactly where the corrected p-value is below α.
    """
    gaps = {key: _Gap.of(*each) for key, each in values.items()}
    factors = holm_factors([gap.p for gap in gaps.values()])
    return {
        key: gap.tested(1 - (1 - confidence) / factor, float(np.minimum(1.0, factor * gap.p)))
        for (key, gap), factor in zip(gaps.items(), factors, strict=True)
    }


class _Gap(NamedTuple):
    """Moments of a paired test: mean and error of the differences, number of sequences, largest value."""

    seen: Estimate
    sequences: int
    largest: float

    @classmethod
    def of(cls, first: np.ndarray, second: np.ndarray, clusters: np.ndarray) -> _Gap:
        gap = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
        seen, sequences = mean_estimate(gap, clusters), sequences_of(clusters)
        if sequences > 1 and np.ptp(gap) == 0:
            seen = seen._replace(se=0.0)  # rounding of the mean would leave an error of 1e-18
        return cls(seen, sequences, max(1.0, float(np.abs([first, second]).max(initial=0.0))))

    @property
    def p(self) -> float:
        if self.sequences > 1 and self.seen.se == 0:
            # The level at which the interval of `tested` ends at 0: z² / (C + z²) of the largest value is the mean.
            share = abs(self.seen.mean) / self.largest
            return 0.0 if share >= 1 else 2 * float(ndtr(-math.sqrt(self.sequences * share / (1 - share))))
        return _two_sided(self.seen.mean, self.seen.se, self.sequences - 1)

    def tested(self, confidence: float, holm_p: float) -> Paired:
        (mean, se, n, plain_se), freedom = self.seen, self.sequences - 1
        reach = t_reach(freedom, confidence) * se if freedom > 0 else math.nan
        if se == 0:
            # All differences seen are equal, which is no certainty about those not seen: as many as 0 of C allows may
            # be as far out as the values go.
            reach = wilson(0, self.sequences, confidence=confidence)[1] * self.largest
        return Paired(mean, se, mean - reach, mean + reach, self.p, _two_sided(mean, plain_se, n - 1), n, holm_p)


def _two_sided(mean: float, se: float, freedom: int) -> float:
    """P(|T| >= |mean / se|), T Student's with n - 1 degrees of freedom."""
    if freedom < 1 or math.isnan(se):
        return math.nan
    if se == 0:
        return 1.0 if mean == 0 else 0.0
    return 2 * float(stdtr(freedom, -abs(mean / se)))


def bootstrap_means(values: np.ndarray, clusters: np.ndarray, *, draws: int = 2000, seed: int = 0) -> np.ndarray:
    """Σ v / n over sequences drawn with replacement: [draws]."""
    sums, totals = cluster_sums(values, clusters)
    rng = np.random.default_rng(seed)
    if len(sums) > MOST_UNITS:
        # Sequences thrown together at random are as good units as single ones, and the cost no longer grows.
        unit = rng.permutation(len(sums)) % MOST_UNITS
        sums, totals = np.bincount(unit, weights=sums), np.bincount(unit, weights=totals)
    means = np.empty(draws)
    count = len(sums)
    block = max(1, (1 << 20) // count)
    for first in range(0, draws, block):
        size = min(block, draws - first)
        drawn = rng.integers(count, size=(size, count), dtype=np.int32)
        means[first : first + size] = sums[drawn].sum(1) / totals[drawn].sum(1)
    return means


def paired_bootstrap(first: np.ndarray, second: np.ndarray, clusters: np.ndarray, *, draws: int = 2000) -> float:
    """Two-sided p: how often a resampled difference, centred on zero, is at least as far out as the one seen."""
    gap = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    seen = gap.mean()
    centred = bootstrap_means(gap, clusters, draws=draws) - seen
    # One is added to both: a p-value from finitely many draws is never zero.
    return float((1 + (np.abs(centred) >= abs(seen) - 1e-15).sum()) / (draws + 1))


def holm_factors(p_values: Sequence[float]) -> list[float]:
    """Factor by which Holm (1979) multiplies each p-value before it is cut off at 1: from m down to 1.

    p_(i) -> max_{j <= i} min(1, (m - j + 1) p_(j)), over p in rising order; a test not made (NaN) is not counted.
    """
    values = np.asarray(p_values, dtype=np.float64)
    made = np.flatnonzero(~np.isnan(values))
    order = made[np.argsort(values[made], kind="stable")]
    factors = np.full(len(values), math.nan)
    rank = len(order) - np.arange(len(order), dtype=np.float64)
    rising = np.maximum.accumulate(values[order] * rank)
    factors[order] = np.divide(rising, values[order], out=rank, where=values[order] > 0)
    return [float(factor) for factor in factors]


def holm_steps(clear: Mapping[Key, float], interval: Callable[[Key, float], End], confidence: float) -> dict[Key, End]:
    """Interval of each test at the confidence that Holm's procedure gives it, for tests without p-values.

    From the clearest difference on (the largest of `clear`) they have the confidence 1 - α/m, 1 - α/(m - 1), ...;
    after the first that holds 0 none is significant, and the level stays.
    """
    found, tests = {}, len(clear)
    for key in sorted(clear, key=lambda key: -clear[key]):
        low, high = found[key] = interval(key, 1 - (1 - confidence) / tests)
        tests -= tests > 1 and not low <= 0.0 <= high
    return found


# ---------------------------------------------------------------------- the best against the second best


class Valued(Protocol):
    """Protocol of a policy with values per position: an evaluation, or a policy pooled over seeds."""

    @property
    def name(self) -> str:
        """Name in tables."""

    def estimate(self, name: str) -> Estimate:
        """Mean of the metric `purchase.nDCG@20`."""

    def values(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Values per position of a metric [n], and the sequence of each."""


@dataclass(frozen=True)
class Bucket:
    """Sequences with a certain number of positions of one event, with each policy's mean."""

    label: str
    means: dict[str, Estimate]  # by policy, over sequences
    best: str
    test: Paired | None  # the best against the second best, corrected over the buckets

    @property
    def stars(self) -> str:
        """Significance stars of the best policy's lead over the second best; empty without a test."""
        return "" if self.test is None else self.test.stars

    def to_dict(self) -> dict[str, Any]:
        return {**{name: as_json(value) for name, value in vars(self).items()}, "stars": self.stars}


def breakdown(policies: Sequence[Valued], event: str, *, metric: str = "nDCG@20") -> list[Bucket]:
    """Sequence-level means of `metric` over positions of `event`, by how many such positions a sequence has.

    Positions are those evaluated, so the count is of the window's events with enough history.
    """
    per_sequence = {}
    for policy in policies:
        sums, count = cluster_sums(*policy.values(f"{event}.{metric}"))
        per_sequence[policy.name] = sums / count
    ids = np.arange(len(count))
    shown = {label: here for label, here in bins(event, count, LENGTHS).items() if here.any()}
    means = {
        label: {name: mean_estimate(values[here], ids[here]) for name, values in per_sequence.items()}
        for label, here in shown.items()
    }
    order = {label: sorted(each, key=lambda name: -each[name].mean) for label, each in means.items()}
    values = {
        label: (per_sequence[order[label][0]][here], per_sequence[order[label][1]][here], ids[here])
        for label, here in shown.items()
        if len(policies) > 1
    }
    tests = paired_family(values)
    return [Bucket(label, means[label], order[label][0], tests.get(label)) for label in shown]


class Lead(NamedTuple):
    """Paired test of the best policy in a column against the second best, as in the paper's tables."""

    best: str
    second: str
    test: Paired  # corrected over the columns of the table
    bootstrap_p: float

    def to_dict(self) -> dict[str, Any]:
        return {"best": self.best, "second": self.second, **self.test.to_dict(), "bootstrap_p": self.bootstrap_p}


def column_leads(policies: Sequence[Valued], columns: Sequence[str]) -> dict[str, Lead]:
    """Paired test of the best against the second best policy on the same positions, by column."""
    if len(policies) < 2:
        return {}
    order = {column: sorted(policies, key=lambda policy: -policy.estimate(column).mean)[:2] for column in columns}
    values = {
        column: (best.values(column)[0], *second.values(column))
        for column, (best, second) in order.items()
        if best.estimate(column).n
    }
    return {
        column: Lead(order[column][0].name, order[column][1].name, test, paired_bootstrap(*values[column]))
        for column, test in paired_family(values).items()
    }
