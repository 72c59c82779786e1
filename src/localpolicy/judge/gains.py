"""Differences between policies on the same positions: the best against the second best, and each over a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from localpolicy.judge.breakdown import Valued
from localpolicy.measure.estimate import finite
from localpolicy.measure.significance import Paired, holm, paired, paired_bootstrap, stars

SURE = 0.05  # largest corrected p-value of a difference that is called significant


class Lead(NamedTuple):
    """The best of a column against the second best, as in the paper's tables."""

    best: str
    second: str
    test: Paired
    bootstrap_p: float
    holm_p: float  # over the columns of the table

    @property
    def stars(self) -> str:
        """How sure the lead is, corrected for the number of columns."""
        return stars(self.holm_p)

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        rest = {"bootstrap_p": self.bootstrap_p, "holm_p": finite(self.holm_p), "stars": self.stars}
        return {"best": self.best, "second": self.second, **self.test.to_dict(), **rest}


@dataclass(frozen=True)
class Gain:
    """A policy's mean minus the baseline's on the same positions."""

    mean: float
    low: float  # 95 % interval of this difference alone
    high: float
    se: float  # clustered by sequence
    p: float
    holm_p: float  # corrected for all gains of the comparison
    n: int

    @classmethod
    def of(cls, test: Paired, holm_p: float) -> Gain:
        """The gain that a paired test measured."""
        return cls(test.difference, test.low, test.high, test.se, test.p, holm_p, test.n)

    @property
    def sign(self) -> int:
        """+1 or -1 where the corrected test is significant at 5 %, else 0."""
        return int(np.sign(self.mean)) if self.holm_p < SURE else 0

    @property
    def stars(self) -> str:
        """How sure the gain is, corrected for all gains of the comparison."""
        return stars(self.holm_p)

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {**{name: finite(value) for name, value in vars(self).items()}, "stars": self.stars}


def column_leads(policies: Sequence[Valued], columns: Sequence[str]) -> dict[str, Lead]:
    """By column: the best against the second best on the same positions."""
    if len(policies) < 2:
        return {}
    leads = {}
    for column in columns:
        order = sorted(policies, key=lambda policy: -policy.estimate(column).mean)
        (best, clusters), (second, _) = order[0].values(column), order[1].values(column)
        if len(best):
            p = paired_bootstrap(best, second, clusters)
            leads[column] = Lead(order[0].name, order[1].name, paired(best, second, clusters), p, np.nan)
    corrected = holm([lead.test.p for lead in leads.values()])
    return {name: lead._replace(holm_p=p) for (name, lead), p in zip(leads.items(), corrected, strict=True)}
