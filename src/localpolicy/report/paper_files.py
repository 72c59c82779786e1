"""`paper`: one of the paper's tables or figures, made, written in every form, and given back."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from localpolicy.errors import Stopped
from localpolicy.report.page import MISSING, can_draw, tables_page, write_picture
from localpolicy.report.paper import breakdown_tables, dial_tables, table1_tables, table2_table, table3_tables
from localpolicy.report.table import Table
from localpolicy.results import Result
from localpolicy.runtime.files import write_json, write_text
from localpolicy.study.arms import Study
from localpolicy.study.paper_data import DataSet, data_sets, studies
from localpolicy.study.paper_recipe import TUNED, Recipe
from localpolicy.study.paper_tables import PaperTable, dial_figure, table1, table3
from localpolicy.study.settings import paper_config

LOG = logging.getLogger(__name__)
DIALS = {  # the setting a figure turns, and where it does by default
    "figure-beta": ("beta", {"betas": (0.03, 0.1, 0.3, 1.0, 3.0), "seeds": 1}),
    "figure-lambda": ("td_weight", {"lambdas": (0.1, 0.3, 1.0, 3.0, 10.0), "seeds": 1}),
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
    if what == "table2":
        sets = data_sets(config, folder, what)
        content = {data.name: data.counts() for data in sets}
        return _written(what, [table2_table(data) for data in sets], content, folder)
    usual: dict[str, dict[str, Any]] = {
        "figure-breakdown": {"policies": tuple(TUNED)},
        **{name: dial for name, (_, dial) in DIALS.items()},
    }
    return made(what, Recipe.of(config, what, **usual.get(what, {})), studies(config, folder, what), folder)


def made(what: str, recipe: Recipe, studies: Sequence[tuple[DataSet, Study]], out: Path) -> PaperResult:
    """Trained, measured, drawn and written, on each data set."""
    if what in DIALS:
        results = [dial_figure(*study, recipe, DIALS[what][0]) for study in studies]
    else:
        results = [(table1 if what == "table1" else table3)(*study, recipe) for study in studies]
    shown = {"table1": table1_tables, "table3": table3_tables, "figure-breakdown": breakdown_tables}
    tables = [table for result in results for table in shown.get(what, dial_tables)(result)]
    content = {result.data.name: result.to_dict() for result in results}
    named = {result.data.name: f"{what}-{result.data.folder}" if results[1:] else what for result in results}
    drawn = [
        draw(result, out, named[result.data.name]) for result in results if what.startswith("figure") and result.rows
    ]
    if what == "figure-breakdown":
        content = {name: one["breakdown"] for name, one in content.items()}
    return _written(what, tables, content, out, results, drawn)


def _written(
    name: str,
    tables: list[Table],
    content: Any,
    out: Path,
    results: Sequence[PaperTable] = (),
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
        write_text(files[form], text)
    every = [*files.values(), *(path for pictures in drawn for path in pictures)]
    LOG.info("written: %s", ", ".join(map(str, every)))
    return PaperResult(name, tables, content, every, tuple(arm for result in results for arm in result.missing))


def draw(figure: PaperTable, out: Path, name: str) -> list[Path]:
    """SVG and PNG; a line where nothing can be drawn."""
    if not can_draw():
        LOG.warning(MISSING)
        return []
    from localpolicy.report.paper_figures import breakdown_spec, dial_spec

    spec = dial_spec(figure) if figure.over else breakdown_spec(figure)
    return [write_picture(spec, out / f"{name}.{form}") for form in ("svg", "png")]
