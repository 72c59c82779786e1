"""`paper`: one of the paper's tables or figures, made, written in every form, and given back."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from localpolicy.errors import Stopped
from localpolicy.report.html.page import MISSING, can_draw, tables_page, write_picture
from localpolicy.report.paper import table1_table, table2_tables, table3_tables
from localpolicy.report.table import Cell, Table, with_error
from localpolicy.report.tables import bucket_table
from localpolicy.results import Result
from localpolicy.runtime.files import whole_file, write_json
from localpolicy.study.arms import Study
from localpolicy.study.paper.data import DataSet, Table2
from localpolicy.study.paper.recipe import TUNED, Recipe
from localpolicy.study.paper.settings import PaperConfig, paper_config
from localpolicy.study.paper.table1 import table1
from localpolicy.study.paper.table3 import EVENTS, SYMBOLS, DialFigure, Table3, dial_figure, table3

LOG = logging.getLogger(__name__)
DIALS = {  # the setting a figure turns, and where it does by default
    "figure-beta": ("beta", {"betas": (0.03, 0.1, 0.3, 1.0, 3.0)}),
    "figure-lambda": ("td_weight", {"lambdas": (0.1, 0.3, 1.0, 3.0, 10.0)}),
}


@dataclass(frozen=True, repr=False)
class PaperResult(Result):
    """A table or figure of the paper: on each data set, beside what was published."""

    name: str
    tables: list[Table]
    content: dict[str, Any]
    files: list[Path]
    missing: tuple[str, ...] = ()  # what the time limit left over

    def summary(self) -> str:
        """What it is, and where it lies."""
        return f"{self.name} of {', '.join(self.content)}, in {self.files[0].parent}"

    def to_dict(self) -> dict[str, Any]:
        """By data set."""
        return self.content

    def to_arrow(self) -> pa.Table:
        """The cells of all tables as text: table, row, column, cell."""
        cells = [
            {"table": table.title, "row": number, "column": head.title, "cell": cell.plain()}
            for table in self.tables
            for number, row in enumerate(table.rows)
            for head, cell in zip(table.heads, row, strict=False)
        ]
        return pa.Table.from_pylist(cells)

    def refuse_missing(self) -> None:
        """Raise where the time limit left something over."""
        if self.missing:
            more = f" and {len(self.missing) - 1} more" if len(self.missing) > 1 else ""
            raise Stopped(f"still to be trained: {self.missing[0]}{more}. The same command goes on.")


def paper(what: str, *, out: Path | str, **settings: Any) -> PaperResult:
    """Make `table1`, `table2`, `table3`, `figure-beta`, `figure-lambda` or `figure-breakdown` in the folder `out`.

    `settings` are those of `lpi paper`, by their names. A call that was stopped goes on where it was.
    """
    config, folder = paper_config(what, settings), Path(out)
    if what in DIALS:
        key, usual = DIALS[what]
        return dialled(what, key, config.recipe(seeds=1, **usual), config.studies(folder, what), folder)
    if what == "table2":
        counts = Table2(config.data_sets(folder, what))
        return _written(what, table2_tables(counts), counts.to_dict(), folder)
    return {"table1": _table1, "table3": _table3, "figure-breakdown": _breakdown}[what](what, config, folder)


def _table1(what: str, config: PaperConfig, out: Path) -> PaperResult:
    results = [table1(*study, config.bandit_recipe()) for study in config.studies(out, what)]
    return _written(what, [table1_table(result) for result in results], _by_data(results), out, results)


def _table3(what: str, config: PaperConfig, out: Path) -> PaperResult:
    results = [table3(*study, config.recipe()) for study in config.studies(out, what)]
    tables = [table for result in results for table in table3_tables(result)]
    return _written(what, tables, _by_data(results), out, results)


def _breakdown(what: str, config: PaperConfig, out: Path) -> PaperResult:
    recipe = config.recipe(policies=tuple(TUNED))
    results = [table3(*study, recipe) for study in config.studies(out, what)]
    drawn = [draw(result, out, _figure_name(what, result.data, results)) for result in results if result.rows]
    tables = [table for result in results for table in breakdown_tables(result)]
    content = {name: one["breakdown"] for name, one in _by_data(results).items()}
    return _written(what, tables, content, out, results, drawn)


def dialled(what: str, key: str, recipe: Recipe, studies: Sequence[tuple[DataSet, Study]], out: Path) -> PaperResult:
    """LPI over one of its hyperparameters."""
    results = [dial_figure(*study, recipe, key) for study in studies]
    drawn = [draw(result, out, _figure_name(what, result.data, results)) for result in results if result.points]
    return _written(what, [dial_table(result) for result in results], _by_data(results), out, results, drawn)


def _by_data(results: Sequence[Any]) -> dict[str, Any]:
    return {result.data.name: result.to_dict() for result in results}


def _figure_name(name: str, data: DataSet, results: Sequence[Any]) -> str:
    return name if len(results) == 1 else f"{name}-{data.folder}"


def _written(
    name: str,
    tables: list[Table],
    content: Any,
    out: Path,
    results: Sequence[Any] = (),
    drawn: Sequence[Sequence[Path]] = (),
) -> PaperResult:
    """Write the tables in every form."""
    files = {form: out / f"{name}.{form}" for form in ("json", "md", "tex", "html")}
    texts = {
        "html": tables_page(tables, title=tables[0].title),
        "md": "\n".join(table.markdown() for table in tables),
        "tex": "\n".join(table.latex() for table in tables),
    }
    write_json(files["json"], content)
    for form, text in texts.items():
        with whole_file(files[form]) as file:
            file.write_text(text, encoding="utf-8")
    every = [*files.values(), *(path for pictures in drawn for path in pictures)]
    LOG.info("written: %s", ", ".join(map(str, every)))
    return PaperResult(name, tables, content, every, tuple(arm for result in results for arm in result.missing))


# ---------------------------------------------------------------------- the figures


def dial_table(dial: DialFigure) -> Table:
    """The numbers behind the picture."""
    symbol = SYMBOLS[dial.key]
    rows = [
        [Cell(f"{symbol}={value:g}"), *(Cell(with_error(*dial.figure(seeds, name))) for name in (*EVENTS, "JS"))]
        for value, seeds in dial.points.items()
    ]
    other = next(mark for key, mark in SYMBOLS.items() if key != dial.key)
    floor = "" if dial.floor is None else f" Noise floor of JS: {dial.floor['validation'].mean:.4f}."
    fast = "FAST VERSION. " if dial.fast else ""
    incomplete = f" NOT COMPLETE: {len(dial.missing)} arms are still to be trained." if dial.missing else ""
    failed = "".join(f" {name} could not be trained: {reason}" for name, reason in dial.failed.items())
    about = f"LPI at {other}=1, validation split; errors by sequence."
    note = f"{fast}{dial.data.about} {about}{floor}{incomplete}{failed}"
    heads = [symbol, "purchase nDCG@20", "click nDCG@20", "JS"]
    return Table(f"LPI over {symbol}: {dial.data.name}", heads, rows, note)


def breakdown_tables(table: Table3) -> list[Table]:
    """nDCG@20 per sequence by number of events: the numbers behind the picture."""
    fast = "FAST VERSION. " if table.recipe.fast else ""
    note = (
        f"{fast}{table.data.about} Test split, means over sequences. Stars: the largest against the second, "
        "paired t-test (* .05, ** .01, *** .001), Holm-corrected over the columns."
    )
    return [
        bucket_table(f"nDCG@20 by number of {event}s: {table.data.name}", table.breakdown(event), note)
        for event in EVENTS
    ]


def draw(figure: DialFigure | Table3, out: Path, name: str) -> list[Path]:
    """SVG and PNG; a line where nothing can be drawn."""
    if not can_draw():
        LOG.warning(MISSING)
        return []
    from localpolicy.report.html.paper_figures import breakdown_spec, dial_spec

    spec = dial_spec(figure) if isinstance(figure, DialFigure) else breakdown_spec(figure)
    return [write_picture(spec, out / f"{name}.{form}") for form in ("svg", "png")]
