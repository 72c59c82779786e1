"""Table 2: what the data sets hold, found beside published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from localpolicy.data.expected import compare
from localpolicy.data.readers import READERS
from localpolicy.evaluate.tables import Cell, Table
from localpolicy.experiments.paper.inputs import DataSet

SHOWN = {"sequences": "# of sequences", "items": "# of items", "click": "# of clicks", "purchase": "# of purchases"}


@dataclass(frozen=True)
class Table2:
    """The counts of some data sets."""

    sets: list[DataSet]

    def found(self, data: DataSet) -> dict[str, int]:
        """The counts of one, by what is counted; its own events where it has neither clicks nor purchases."""
        counts = data.data.manifest["counts"]
        return {"sequences": counts["sequences"], "items": counts["items"], **counts["events"]}

    def expected(self, data: DataSet) -> dict[str, Any]:
        """Published counts beside those found, where the source has any."""
        reader = READERS.get(data.source)
        if reader is None or "rows" not in data.data.manifest:
            return {}
        return compare(data.data.manifest, reader.editions, reader.preset)

    def json(self) -> dict[str, Any]:
        """For machines."""
        return {
            data.name: {**data.json(), "found": self.found(data), "published": self.expected(data)}
            for data in self.sets
        }

    def tables(self) -> list[Table]:
        """One table per data set."""
        return [self._table(data) for data in self.sets]

    def _table(self, data: DataSet) -> Table:
        found, expected = self.found(data), self.expected(data)
        there = {row["what"]: row for row in expected.get("counts", [])}
        names = [name for name in SHOWN if name in found or name in there] + [
            name for name in there if name not in SHOWN
        ]
        rows = []
        for name in names:
            row = there.get(name)
            count = row["found"] if row is not None else found.get(name, 0)
            agrees = "—" if row is None else "yes" if row["agrees"] else "no"
            published = "—" if row is None else f"{row['expected']:,}"
            note = "" if row is None else row["note"]
            rows.append(
                [Cell(SHOWN.get(name, f"# of {name}")), Cell(f"{count:,}"), Cell(published), Cell(agrees), Cell(note)]
            )
        reason = expected.get("reason") or ""
        note = f"{data.about}{f' Where counts differ: {reason}.' if reason else ''}"
        return Table(f"Table 2: {data.name}", ["", "found", "published", "agree", "note"], rows, note)
