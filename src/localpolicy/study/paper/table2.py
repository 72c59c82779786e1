"""Table 2: what the data sets hold, found beside published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from localpolicy.data.expected import compare
from localpolicy.data.readers import READERS
from localpolicy.study.paper.inputs import DataSet


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

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        return {
            data.name: {**data.to_dict(), "found": self.found(data), "published": self.expected(data)}
            for data in self.sets
        }
