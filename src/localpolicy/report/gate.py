"""A verdict shown: every check with its reason."""

from __future__ import annotations

from localpolicy.evaluation.gate import Verdict
from localpolicy.report.table import Cell, Table


def gate_table(verdict: Verdict) -> Table:
    """Every check, under the answer."""
    marks = {"yes": "yes", "no": "NO", "cannot tell": "cannot tell", "not asked": "–"}
    rows = [[Cell(check.name), Cell(marks[check.outcome]), Cell(check.reason)] for check in verdict.checks]
    title = f"{verdict.answer.upper()}: {verdict.evaluation.name} instead of {verdict.against}"
    note = " ".join([verdict.sentence, *(f"Note: {note}." for note in verdict.notes)])
    return Table(title, ["check", "ok", "why"], rows, note)
