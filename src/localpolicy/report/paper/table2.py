"""Table 2 shown: one table per data set."""

from __future__ import annotations

from localpolicy.report.table import Cell, Table
from localpolicy.study.paper.inputs import DataSet
from localpolicy.study.paper.table2 import Table2

SHOWN = {"sequences": "# of sequences", "items": "# of items", "click": "# of clicks", "purchase": "# of purchases"}


def table2_tables(counts: Table2) -> list[Table]:
    """One table per data set."""
    return [_table(counts, data) for data in counts.sets]


def _table(counts: Table2, data: DataSet) -> Table:
    counted, expected = counts.found(data), counts.expected(data)
    there = {row["what"]: row for row in expected.get("counts", [])}
    names = [name for name in SHOWN if name in counted or name in there] + [name for name in there if name not in SHOWN]
    rows = []
    for name in names:
        row = there.get(name)
        count = row["found"] if row is not None else counted.get(name, 0)
        agrees = "—" if row is None else "yes" if row["agrees"] else "no"
        published = "—" if row is None else f"{row['expected']:,}"
        note = "" if row is None else row["note"]
        rows.append(
            [Cell(SHOWN.get(name, f"# of {name}")), Cell(f"{count:,}"), Cell(published), Cell(agrees), Cell(note)]
        )
    reason = expected.get("reason") or ""
    note = f"{data.about}{f' Where counts differ: {reason}.' if reason else ''}"
    return Table(f"Table 2: {data.name}", ["", "found", "published", "agree", "note"], rows, note)
