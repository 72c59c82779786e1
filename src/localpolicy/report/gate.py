"""A verdict shown: every check with its reason."""

from __future__ import annotations

from localpolicy.evaluation.gate import Verdict
from localpolicy.report.table import Cell, Table


def gate_table(verdict: Verdict) -> Table:
    """Every check."""
    marks = {True: "yes", False: "NO", None: "not known"}
    rows = [[Cell(check.name), Cell(marks[check.passed]), Cell(check.reason)] for check in verdict.checks]
    answer = "DEPLOY" if verdict.deploy else "DO NOT DEPLOY"
    return Table(
        f"{answer}: {verdict.evaluation.name} instead of {verdict.deployed.name}", ["check", "ok", "why"], rows
    )
