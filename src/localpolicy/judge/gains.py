"""The best policy of a column against the second best, on the same positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from localpolicy.judge.breakdown import Valued
from localpolicy.measure.significance import Paired, paired_bootstrap, paired_family


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
