"""Where do gains come from? Means per sequence, by how many clicks or purchases the sequence has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from localpolicy.measure.estimate import Estimate, mean_estimate
from localpolicy.measure.segments import bins
from localpolicy.measure.significance import Paired, paired, stars

BUCKETS = (5, 10, 15)  # the paper's: <= 5, 6-10, 11-15, > 15


class Valued(Protocol):
    """A policy whose values per position are known: an evaluation, or one pooled over seeds."""

    @property
    def name(self) -> str:
        """As tables call it."""
        ...

    def estimate(self, name: str) -> Estimate:
        """The figure called `purchase.nDCG@20`."""
        ...

    def values(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The values behind it [n], and the sequence of each."""
        ...


@dataclass(frozen=True)
class Bucket:
    """Sequences with so many positions of one event."""

    label: str
    means: dict[str, Estimate]  # by policy, over sequences
    best: str
    test: Paired | None  # the best against the second best

    @property
    def stars(self) -> str:
        """The paper's marks."""
        return "" if self.test is None else stars(self.test.p)

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        means = {name: value.to_dict() for name, value in self.means.items()}
        test = None if self.test is None else self.test.to_dict()
        return {"label": self.label, "means": means, "best": self.best, "test": test, "stars": self.stars}


def breakdown(
    policies: Sequence[Valued], event: str, *, metric: str = "nDCG@20", buckets: tuple[int, ...] = BUCKETS
) -> list[Bucket]:
    """Sequence-level means of `metric` over positions of `event`, by how many such positions a sequence has.

    Positions are those evaluated, so the count is of the window's events with enough history.
    """
    per_sequence = {}
    for policy in policies:
        values, sequence = policy.values(f"{event}.{metric}")
        ids, index = np.unique(sequence, return_inverse=True)
        count = np.bincount(index)
        per_sequence[policy.name] = np.bincount(index, weights=values) / count
    return [
        _bucket(label, {name: values[here] for name, values in per_sequence.items()}, ids[here])
        for label, here in bins(event, count, buckets).items()
        if here.any()
    ]


def _bucket(label: str, values: dict[str, np.ndarray], sequence: np.ndarray) -> Bucket:
    means = {name: mean_estimate(value, sequence) for name, value in values.items()}
    order = sorted(means, key=lambda name: -means[name].mean)
    test = paired(values[order[0]], values[order[1]], sequence) if len(order) > 1 else None
    return Bucket(label, means, order[0], test)
