"""How each kind of result is shown: one function for its tables, one for its page.

They are registered with `localpolicy.results` when this module is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from localpolicy.data.store import Prepared
from localpolicy.judge.claims import Gate
from localpolicy.judge.comparison import Comparison
from localpolicy.measure.evaluation import Evaluation
from localpolicy.model.lists import Lists
from localpolicy.report.comparison import write_comparison
from localpolicy.report.comparison_tables import comparison_tables
from localpolicy.report.gate import gate_contents, gate_table
from localpolicy.report.go import go_tables, guess_table, write_go
from localpolicy.report.loop import loop_contents, loop_tables
from localpolicy.report.page import tables_page, write_report
from localpolicy.report.quality import counts_table
from localpolicy.report.sweep import sweep_contents, sweep_tables
from localpolicy.report.table import Table
from localpolicy.report.tables import evaluation_tables, lists_table, run_table
from localpolicy.results import Result, tables_of, write_page
from localpolicy.runs.baselines import BaselineRun
from localpolicy.runs.run import Run
from localpolicy.runtime.files import write_text
from localpolicy.study.go import GoResult
from localpolicy.study.go_commands import Asked
from localpolicy.study.sweep import Sweep
from localpolicy.study.trajectory import Loop

TABLES: dict[type, Callable[[Any], list[Table]]] = {
    Evaluation: evaluation_tables,
    Comparison: comparison_tables,
    Gate: lambda gate: [gate_table(gate)],
    Asked: lambda asked: [guess_table(asked.guessed, asked.log, asked.titles)],
    GoResult: go_tables,
    Sweep: sweep_tables,
    Loop: loop_tables,
    Lists: lambda lists: [lists_table(lists)],
    Run: lambda run: [run_table(run)] if run.finished and not isinstance(run, BaselineRun) else [],
    Prepared: lambda data: [counts_table(data)],
}
PAGES: dict[type, Callable[[Any, Path], object]] = {
    Result: lambda result, path: _write_tables(result, path),  # any other
    Comparison: write_comparison,
    Gate: lambda gate, path: write_report(gate_contents(gate), path),
    GoResult: write_go,
    Sweep: lambda sweep, path: write_report(sweep_contents(sweep), path),
    Loop: lambda loop, path: write_report(loop_contents(loop), path),
}


def _write_tables(result: Result, path: Path) -> None:
    tables = tables_of(result)
    write_text(path, tables_page(tables, title=tables[0].title if tables else repr(result)))


for _kind, _tables in TABLES.items():
    tables_of.register(_kind, _tables)
for _kind, _page in PAGES.items():
    write_page.register(_kind, _page)
