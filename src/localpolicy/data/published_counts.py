"""Published counts of data sets, compared with the counts found, and the likely reason if they differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

ROUNDED = 0.005  # published figures have three digits

# Where a figure can be looked up. COUNTED: nobody who published the data states it, but several public repositories
# that counted the original files agree on it.
PAPER, README, COUNTED, UNVERIFIED = "the paper", "its README", "counted by others", "published, not verified"


@dataclass(frozen=True)
class Count:
    """One published count. `what` is sequences, items, events, or the name of an event."""

    what: str
    value: int
    rounded: bool = False  # published with three digits
    note: str = ""
    source: str = UNVERIFIED

    def agrees(self, count: int) -> bool:
        """Whether the found count equals the published one, to its published digits."""
        return abs(count - self.value) <= (ROUNDED * self.value if self.rounded else 0)


@dataclass(frozen=True)
class Edition:
    """One release of a data set: the rows its files hold, and the counts that its recipe leaves."""

    name: str
    rows: int  # rows of the files that are events
    counts: tuple[Count, ...]
    source: str = UNVERIFIED  # of `rows`


class CountCheck(TypedDict):
    """A found count and the published one."""

    what: str
    found: int
    expected: int
    agrees: bool
    note: str


def compare(manifest: Mapping[str, Any], editions: Sequence[Edition], preset: Mapping[str, Any]) -> dict[str, Any]:
    """Counts of a manifest and of the nearest edition, with the likely reason if they differ."""
    if not editions:
        return {}
    counts, settings, rows = manifest["counts"], manifest["settings"], sum(manifest["rows"].values())
    measured = {
        "sequences": counts["sequences"],
        "items": counts["items"],
        "events": sum(counts["events"].values()),
        **counts["events"],
    }

    def likeness(edition: Edition) -> tuple[int, float]:
        agreeing = sum(count.agrees(measured.get(count.what, 0)) for count in edition.counts)
        return agreeing, -abs(math.log(edition.rows / max(rows, 1)))

    edition = max(editions, key=likeness)
    compared: list[CountCheck] = [
        CountCheck(
            what=count.what,
            found=measured.get(count.what, 0),
            expected=count.value,
            agrees=count.agrees(measured.get(count.what, 0)),
            note=f"{count.source}: {count.note}" if count.note else count.source,
        )
        for count in edition.counts
    ]
    reason = ""
    if not all(row["agrees"] for row in compared):
        changed = [f"{name}={settings[name]}" for name, value in preset.items() if settings[name] != value]
        if rows != edition.rows:
            held = f"the files hold {rows:,} usable rows and the original {edition.rows:,} ({edition.source})"
            reason = f"{held}: a sample, another release, or simulated"
        elif changed:
            reason = f"settings differ from the recipe's: {', '.join(changed)}"
        else:
            reason = "the files hold as many rows as the original: the recipe differs from the published one"
    return {"edition": edition.name, "counts": compared, "reason": reason}
