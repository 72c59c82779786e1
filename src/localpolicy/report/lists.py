"""Recommended lists as a table."""

from __future__ import annotations

from localpolicy.model.lists import Lists
from localpolicy.report.table import Table, cells

MOST = 10  # lists and ranks shown; `to_frame()` has all


def lists_table(lists: Lists) -> Table:
    """One row per history, best item first."""
    shown = min(MOST, lists.indices.shape[1])
    rows = [cells(str(number), *map(str, items[:shown])) for number, items in enumerate(lists.items[:MOST])]
    left = len(lists.items) - MOST
    note = f"{left:,} more histories: see to_frame()." if left > 0 else ""
    return Table(f"{len(lists.items):,} lists", ["history", *map(str, range(1, shown + 1))], rows, note)
