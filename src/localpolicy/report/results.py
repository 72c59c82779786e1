"""How each kind of result is shown: one function for its tables, one for its page.

They are registered with `localpolicy.results` when this module is loaded.
"""

from __future__ import annotations

from pathlib import Path

from localpolicy.data.store import Prepared
from localpolicy.judge.comparison import Comparison
from localpolicy.judge.gate import Gate
from localpolicy.measure.baselines import BaselineRun
from localpolicy.measure.evaluation import Evaluation
from localpolicy.model.lists import Lists
from localpolicy.report.comparison import write_comparison
from localpolicy.report.gate import gate_contents, gate_table
from localpolicy.report.go import go_tables, write_go
from localpolicy.report.html.page import tables_page, write_report
from localpolicy.report.loop import loop_contents, loop_tables, trajectories
from localpolicy.report.quality import counts_table
from localpolicy.report.sweep import sweep_contents, sweep_tables
from localpolicy.report.table import Table
from localpolicy.report.tables import comparison_tables, evaluation_tables, lists_table, run_table
from localpolicy.results import Result, tables_of, write_page
from localpolicy.runs.run import Run
from localpolicy.runtime.files import whole_file
from localpolicy.study.go import GoResult
from localpolicy.study.rounds import Loop
from localpolicy.study.sweep import Sweep


@tables_of.register
def _(result: Evaluation) -> list[Table]:
    return evaluation_tables(result)


@tables_of.register
def _(result: Comparison) -> list[Table]:
    return comparison_tables(result)


@tables_of.register
def _(result: Gate) -> list[Table]:
    return [gate_table(result)]


@tables_of.register
def _(result: GoResult) -> list[Table]:
    return go_tables(result)


@tables_of.register
def _(result: Sweep) -> list[Table]:
    return sweep_tables(result)


@tables_of.register
def _(result: Loop) -> list[Table]:
    return loop_tables(result, trajectories(result))


@tables_of.register
def _(result: Lists) -> list[Table]:
    return [lists_table(result)]


@tables_of.register
def _(result: Run) -> list[Table]:
    return [run_table(result)] if result.finished and not isinstance(result, BaselineRun) else []


@tables_of.register
def _(result: Prepared) -> list[Table]:
    return [counts_table(result)]


@write_page.register
def _(result: Result, path: Path) -> Path:
    """Any result: its tables as a page."""
    tables = tables_of(result)
    with whole_file(path) as partial:
        partial.write_text(tables_page(tables, title=tables[0].title if tables else repr(result)), encoding="utf-8")
    return path


@write_page.register
def _(result: Comparison, path: Path) -> Path:
    write_comparison(result, path)
    return path


@write_page.register
def _(result: Gate, path: Path) -> Path:
    return write_report(gate_contents(result), path)


@write_page.register
def _(result: GoResult, path: Path) -> Path:
    write_go(result, path)
    return path


@write_page.register
def _(result: Sweep, path: Path) -> Path:
    return write_report(sweep_contents(result), path)


@write_page.register
def _(result: Loop, path: Path) -> Path:
    return write_report(loop_contents(result, trajectories(result)), path)
