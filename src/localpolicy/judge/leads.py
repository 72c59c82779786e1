"""The best policy against the second best on the same positions: of a column, and by how many events a sequence has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from localpolicy.measure.estimate import Estimate, as_json, mean_estimate
from localpolicy.measure.significance import Paired, paired_bootstrap, paired_family
from localpolicy.measure.summary import bins

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
    test: Paired | None  # the best against the second best, corrected over the buckets

    @property
    def stars(self) -> str:
        """The paper's marks."""
        return "" if self.test is None else self.test.stars

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {**{name: as_json(value) for name, value in vars(self).items()}, "stars": self.stars}


def breakdown(policies: Sequence[Valued], event: str, *, metric: str = "nDCG@20") -> list[Bucket]:
    """Sequence-level means of `metric` over positions of `event`, by how many such positions a sequence has.

    Positions are those evaluated, so the count is of the window's events with enough history.
    """
    per_sequence = {}
    for policy in policies:
        values, sequence = policy.values(f"{event}.{metric}")
        ids, index = np.unique(sequence, return_inverse=True)
        count = np.bincount(index)
        per_sequence[policy.name] = np.bincount(index, weights=values) / count
    shown = {label: here for label, here in bins(event, count, BUCKETS).items() if here.any()}
    means = {
        label: {name: mean_estimate(values[here], ids[here]) for name, values in per_sequence.items()}
        for label, here in shown.items()
    }
    order = {label: sorted(each, key=lambda name: -each[name].mean) for label, each in means.items()}
    tests = paired_family(
        {
            label: (per_sequence[best][here], per_sequence[second][here], ids[here])
            for label, here in shown.items()
            for best, second in [order[label][:2]]
        }
        if len(policies) > 1
        else {}
    )
    return [Bucket(label, means[label], order[label][0], tests.get(label)) for label in shown]


class Lead(NamedTuple):
    """The best of a column against the second best, as in the paper's tables."""

    best: str
    second: str
    test: Paired  # corrected over the columns of the table
    bootstrap_p: float

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {"best": self.best, "second": self.second, **self.test.to_dict(), "bootstrap_p": self.bootstrap_p}


def column_leads(policies: Sequence[Valued], columns: Sequence[str]) -> dict[str, Lead]:
    """By column: the best against the second best on the same positions."""
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
