"""`paper`: one of the paper's tables or figures, made, written in every form, and given back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from localpolicy.errors import Stopped
from localpolicy.measure.estimate import Interval
from localpolicy.measure.number_text import NOTHING, fixed, interval_text
from localpolicy.measure.significance import STARS
from localpolicy.report.page import MISSING, can_draw, tables_page, write_picture
from localpolicy.report.table import Cell, Table, best_cell
from localpolicy.report.tables import bucket_table
from localpolicy.reproduction.data_sets import DataSet, data_sets, studies
from localpolicy.reproduction.recipe import EVENTS, SYMBOLS, TUNED, Recipe
from localpolicy.reproduction.settings import paper_config
from localpolicy.reproduction.table3 import choices, difference_text, references_of, state_of, table3_tables
from localpolicy.reproduction.tables import (
    BESIDE,
    DIALLED,
    FIGURES,
    REFERENCES,
    REWARDS,
    PaperTable,
    dial_figure,
    table1,
    table3,
)
from localpolicy.results import Result
from localpolicy.runtime.files import write_json, write_text
from localpolicy.study.arms import Study

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class PaperResult(Result):
    """Result of `paper`: a table or figure on each data set, next to the published numbers."""

    name: str
    tables: list[Table]
    content: dict[str, Any]
    files: list[Path]
    missing: tuple[str, ...] = ()  # what the time limit left over

    def summary(self) -> str:
        """One line: the table or figure, its data sets, and the folder it was written to."""
        return f"{self.name} of {', '.join(self.content)}, in {self.files[0].parent}"

    def to_dict(self) -> dict[str, Any]:
        """Tables by data set."""
        return self.content

    def to_arrow(self) -> pa.Table:
        """Table of the cells of all tables as text: table, row, column, cell."""
        cells = [
            {"table": table.title, "row": number, "column": head.title, "cell": cell.plain()}
            for table in self.tables
            for number, row in enumerate(table.body)
            for head, cell in zip(table.heads, row, strict=False)
        ]
        return pa.Table.from_pylist(cells)

    def refuse_missing(self) -> None:
        """Raise Stopped if the time limit left arms untrained."""
        if self.missing:
            more = f" and {len(self.missing) - 1} more" if len(self.missing) > 1 else ""
            raise Stopped(f"still to be trained: {self.missing[0]}{more}. The same command continues.")


def paper(what: str, *, out: Path | str, **settings: Any) -> PaperResult:
    """Make `table1`, `table2`, `table3`, `figure-beta`, `figure-lambda` or `figure-breakdown` in the folder `out`.

    `settings` are those of `lpi paper`, by their names. A call that was stopped continues where it was.
    """
    config, folder = paper_config(what, settings), Path(out)
    if what == "table2":
        sets = data_sets(config, folder, what)
        content = {data.name: data.counts() for data in sets}
        return _written(what, [table2_table(data) for data in sets], content, folder)
    return made(what, Recipe.of(config, what, **TRAINED[what][2]), studies(config, folder, what), folder)


def made(what: str, recipe: Recipe, studies: Sequence[tuple[DataSet, Study]], out: Path) -> PaperResult:
    """Train, measure, draw and write a table or figure on each data set; return it."""
    train, shown, _ = TRAINED[what]
    results = [train(*study, recipe) for study in studies]
    tables = [table for result in results for table in shown(result)]
    content = {result.data.name: result.to_dict() for result in results}
    if what == "figure-breakdown":
        content = {name: one["breakdown"] for name, one in content.items()}
    drawn: list[Path] = []
    for result in results if what.startswith("figure") else ():
        drawn += draw(result, out, f"{what}-{result.data.folder}" if results[1:] else what) if result.rows else []
    return _written(what, tables, content, out, drawn, [arm for result in results for arm in result.missing])


def _written(
    name: str, tables: list[Table], content: Any, out: Path, drawn: Sequence[Path] = (), missing: Sequence[str] = ()
) -> PaperResult:
    """Write the tables as JSON, Markdown, LaTeX and HTML; return them with the paths of all files."""
    files = {form: out / f"{name}.{form}" for form in ("json", "md", "tex", "html")}
    write_json(files["json"], content)
    write_text(files["html"], tables_page(tables, title=tables[0].title))
    write_text(files["md"], "\n".join(table.markdown() for table in tables))
    write_text(files["tex"], "\n".join(table.latex() for table in tables))
    every = [*files.values(), *drawn]
    LOG.info("written: %s", ", ".join(map(str, every)))
    return PaperResult(name, tables, content, every, tuple(missing))


def draw(figure: PaperTable, out: Path, name: str) -> list[Path]:
    """Write a figure as SVG and PNG; log a line if it cannot be drawn."""
    if not can_draw():
        LOG.warning(MISSING)
        return []
    from localpolicy.reproduction.figures import breakdown_spec, dial_spec

    spec = dial_spec(figure) if figure.over else breakdown_spec(figure)
    return [write_picture(spec, out / f"{name}.{form}") for form in ("svg", "png")]


# ---------------------------------------------------------------------- Table 1


def table1_tables(table: PaperTable) -> list[Table]:
    """Table 1 with our numbers and the published ones."""
    every = [row.estimate("iAR@1").mean for row in table.rows]
    rows: list[list[str | Cell]] = []
    for row in table.rows:
        ar, iar, js, entropy, shown = (row.estimate(name).mean for name in (*FIGURES, *BESIDE))
        best, theirs = best_cell(iar, every, digits=3), [_printed(table, row.key, name) for name in FIGURES]
        ours: list[str | Cell] = [row.name, fixed(ar), best, fixed(js, 3), fixed(entropy, 2), f"{shown:.1%}"]
        rows.append([*ours, *(theirs if table.published else [])])
    published = [f"published {name}" for name in FIGURES if table.published]
    heads = ["policy", *FIGURES, "entropy", "shown first", *published]
    main = Table(f"Table 1: {table.data.name}", heads, rows, _table1_note(table))
    return [main, *([bandit_gains(table)] if len(table.rows) > 1 else []), choices(table)]


def bandit_gains(table: PaperTable) -> Table:
    """Table of paired differences in reward: each row less the references, and LPI at the chosen β less its rivals.

    The references are μ̂ at the settings of LPI, so that tuning is not taken for a gain: μ̂'s own row shows what that is.
    """
    others = [row.key for row in table.rows if not row.key.startswith("lpi_cb")]
    chosen = [row.key for row in table.rows if row.key.startswith("lpi_cb") and row.grid]
    pairs = [(row.key, REFERENCES) for row in table.rows]
    pairs += [(key, low) for key in chosen for low in others if low != "mle"]
    tests, rows = table.differences(pairs, REWARDS), list[list[str | Cell]]()
    for high, low in table.both(pairs):
        cells: list[str | Cell] = [f"{high.name} − {low.name}"]
        for name in REWARDS:
            test = tests.get((high.key, low.key, name))
            keys = (high.key, "mle" if low.key == REFERENCES else low.key)
            there = [table.published.get(key, {}).get(name) for key in keys]
            apart = [each.value for each in there if each is not None]
            cells.append(NOTHING if test is None else f"{difference_text(test)}{test.stars}")
            cells.append(NOTHING if len(apart) < 2 or keys[0] == keys[1] else f"{apart[0] - apart[1]:+.3f}")
        rows.append(cells if table.published else cells[:1] + cells[1::2])
    beside = ["published difference"] if table.published else []
    heads = ["difference", *(head for name in REWARDS for head in (name, *beside))]
    note = (
        "Test split, means over seeds; 95 % intervals, paired and clustered by user. Stars: paired t-test "
        f"{STARS}. Both are Holm-corrected over the table."
    )
    return Table(f"Differences in reward: {table.data.name}", heads, rows, note)


def _printed(table: PaperTable, key: str, name: str) -> str:
    """Text of the published number and its difference from ours."""
    there, distance = table.published.get(key, {}).get(name), table.distance(key, name)
    beside = "" if distance is None else f" ({distance:+.1f} s.e.)"
    return NOTHING if there is None else f"{there.value:.3f}{beside}"


def _table1_note(table: PaperTable) -> str:
    parts = state_of(table, "a small network, short contexts, few epochs; it says that the recipe runs.")
    if table.rows:
        errors = ", ".join(f"{name} {max(row.estimate(name).se for row in table.rows):.4f}" for name in FIGURES)
        counts = sorted({len(row.seeds) for row in table.rows})
        parts.append(
            f"Largest standard errors, clustered by user: {errors}; seeds at each row: {' or '.join(map(str, counts))}."
        )
    if table.quality:
        parts.append(
            f"The imputation orders {table.quality['order']:.0%} of held-out pairs rightly (an item's mean rating: "
            f"{table.quality['item mean order']:.0%}); iAR@1 is no better than that. 'Shown first': share of items "
            "that are some user's first."
        )
    parts += references_of(table)
    if table.published and not table.data.original:
        parts.append("Published figures are of the Netflix Prize: context alone, a difference means nothing.")
    return " ".join(parts)


# ---------------------------------------------------------------------- Table 2


MOST_EVENTS = 10  # kinds of events that have a row each; ratings may have more
SHOWN = {"sequences": "# of sequences", "items": "# of items", "click": "# of clicks", "purchase": "# of purchases"}


def table2_table(data: DataSet) -> Table:
    """Table of a data set's counts, found and published."""
    content = data.counts()
    counted, expected = content["found"], content["published"]
    there = {row["what"]: row for row in expected.get("counts", [])}
    others = [name for name in counted if name not in SHOWN and name not in there]  # of a log not the paper's
    if len(others) > MOST_EVENTS:
        counted, others = {**counted, "other events": sum(counted[name] for name in others)}, ["other events"]
    rows = []
    for name in dict.fromkeys((*SHOWN, *there, *others)):
        title = SHOWN.get(name, f"# of {name}")
        if (row := there.get(name)) is not None:
            agrees = "yes" if row["agrees"] else "no"
            rows.append([title, f"{row['found']:,}", f"{row['expected']:,}", agrees, row["note"]])
        elif name in counted:
            rows.append([title, f"{counted[name]:,}", NOTHING, NOTHING, ""])
    reason = f" Where counts differ: {expected['reason']}." if expected.get("reason") else ""
    heads = ["", "found", "published", "agree", "note"]
    return Table(f"Table 2: {data.name}", heads, rows, f"{data.about}{reason}")


# ---------------------------------------------------------------------- the numbers behind the figures


def dial_tables(table: PaperTable) -> list[Table]:
    """Table of LPI over β or λ, one row per value."""
    symbol, other = SYMBOLS[table.over], next(mark for key, mark in SYMBOLS.items() if key != table.over)
    rows = [
        [row.name, *(interval_text(Interval.known(row.estimate(name, table.split)), 4) for name in DIALLED)]
        for row in table.rows
    ]  # fmt: skip
    parts = [*state_of(table), f"LPI at {other}=1, validation split; 95 % intervals, clustered by sequence."]
    if table.floor is not None:
        parts.append(f"Noise floor of JS: {table.floor['validation'].mean:.4f}.")
    heads = [symbol, "purchase nDCG@20", "click nDCG@20", "JS"]
    return [Table(f"LPI over {symbol}: {table.data.name}", heads, rows, " ".join(parts))]


def breakdown_tables(table: PaperTable) -> list[Table]:
    """Table of nDCG@20 per sequence by the number of events in it."""
    about = (
        f"Test split, means over sequences. Stars: the largest against the second, paired t-test {STARS}, "
        "Holm-corrected over the columns."
    )
    note = " ".join([*state_of(table), about])
    return [
        bucket_table(f"nDCG@20 by number of {event}s: {table.data.name}", table.breakdown(event), note)
        for event in EVENTS
    ]


# How each is trained, the tables that show it, and what its recipe has by default.
TRAINED: dict[str, tuple[Callable[..., PaperTable], Callable[[PaperTable], list[Table]], dict[str, Any]]] = {
    "table1": (table1, table1_tables, {}),
    "table3": (table3, table3_tables, {}),
    "figure-breakdown": (table3, breakdown_tables, {"policies": tuple(TUNED)}),
    "figure-beta": (partial(dial_figure, key="beta"), dial_tables, {"betas": (0.03, 0.1, 0.3, 1.0, 3.0), "seeds": 1}),
    "figure-lambda": (
        partial(dial_figure, key="td_weight"), dial_tables, {"lambdas": (0.1, 0.3, 1.0, 3.0, 10.0), "seeds": 1},
    ),
}  # fmt: skip
