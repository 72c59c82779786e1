"""A whole page, put together from its parts (extra `report`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import altair as alt
import vl_convert

from localpolicy.measure.divergence import beyond_floor
from localpolicy.measure.estimate import Interval
from localpolicy.measure.off_policy.overlap import LEAST_EFFECTIVE
from localpolicy.report.contents import Contents, PolicyRow, SampleLists, Section
from localpolicy.report.html.charts import Chart, SeriesStyle, series_styles
from localpolicy.report.html.frontier import frontier
from localpolicy.report.html.lines import NOTE, curve_tables, curves, round_charts, round_tables
from localpolicy.report.html.page import render, table
from localpolicy.report.html.spread import histogram, histogram_table, segment_charts, segment_tables
from localpolicy.report.table import (
    NOTHING,
    Cell,
    Column,
    Mark,
    Table,
    decimals,
    excludes_zero,
    interval_cell,
    known,
    number_cell,
    share_cell,
    word_cell,
)


@cache
def library() -> str:
    """Vega, Vega-Lite and vega-embed, in the version that Altair writes for, if it is bundled."""
    wanted = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    version = wanted if wanted in vl_convert.get_vegalite_versions() else None
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version))


SHARES = {"effective_share": "effective share", "clipped_share": "clipped share"}
SIZES = {"mean": "mean", "q5": "5 %", "q50": "median", "q95": "95 %", "max": "largest"}

BETTER = Mark("▲", "better, beyond chance", "up")
WORSE = Mark("▼", "worse, beyond chance", "down")
LEVEL = Mark("≈", "within the noise between two seeds")
BLIND = Mark("≈!", "within noise by JS, but it ranks differently", "down")
SCARCE = Mark("!", "few positions decide", "down")
MARKS = {1: BETTER, -1: WORSE, 0: None}


@dataclass(frozen=True)
class Figures:
    """A column of figures with intervals."""

    column: Column
    of: Callable[[PolicyRow], Interval | None]
    mark: Callable[[PolicyRow], Mark | None] = lambda row: None


def comparison(section: Section, styles: Sequence[SeriesStyle], identity: str) -> str:
    """All policies side by side; the logging policy's own value below them."""
    shown = [figures for figures in _figures(section) if any(_has(figures.of(row)) for row in section.rows)]
    level = section.logging_value
    digits = [decimals([_mean(figures.of(row)) for row in section.rows]) for figures in shown]
    if [figures.column.title for figures in shown[:2]] == ["J(π)", "gain"]:
        digits[1] = digits[0]  # a difference has as many decimals as the values it comes from
    columns = [Column("policy", numeric=False), *(figures.column for figures in shown)]
    rows = [
        [
            named(row, style),
            *(
                interval_cell(figures.of(row), many, figures.mark(row))
                for figures, many in zip(shown, digits, strict=True)
            ),
        ]
        for row, style in zip(section.rows, styles, strict=True)
    ]
    if any(known(row.coverage) for row in section.rows):
        columns.append(Column(f"coverage@{section.lists}", "of the catalogue"))
        rows = [[*cells, share_cell(row.coverage)] for cells, row in zip(rows, section.rows, strict=True)]
    if any(known(row.entropy) for row in section.rows):
        columns.append(Column("entropy", "nats"))
        many = decimals([row.entropy for row in section.rows], 3)
        rows = [[*cells, number_cell(row.entropy, many)] for cells, row in zip(rows, section.rows, strict=True)]
    foot = []
    if level is not None and shown and shown[0].column.title == "J(π)":
        blank = [Cell("")] * (len(columns) - 2)
        foot = [[word_cell("the logging policy μ"), interval_cell(level, digits[0]), *blank]]
    content = Table("Policies side by side", columns, rows, _note(section, shown), foot)
    return table(content, identity=identity, sortable=True)


def at_k(section: Section, styles: Sequence[SeriesStyle], identity: str) -> str:
    """Every policy at k = 5, 10 and 20; empty if no row has them."""
    names = list(dict.fromkeys(name for row in section.rows for name in row.at_k))
    if not names:
        return ""
    digits = [decimals([_mean(row.at_k.get(name)) for row in section.rows]) for name in names]
    rows = [
        [
            named(row, style),
            *(interval_cell(row.at_k.get(name), many) for name, many in zip(names, digits, strict=True)),
        ]
        for row, style in zip(section.rows, styles, strict=True)
    ]
    columns = [Column("policy", numeric=False), *map(Column, names)]
    note = "Intervals of 95 %. None of these is tested: with more columns each would need a larger difference."
    return table(Table("Ranking at k = 5, 10 and 20", columns, rows, note), identity=identity, sortable=True)


def _figures(section: Section) -> list[Figures]:
    def near(row: PolicyRow) -> Mark | None:
        if row.unseen_by_js:
            return BLIND
        return LEVEL if beyond_floor(row.js, section.floor) is False else None

    def metric(name: str) -> Figures:
        return Figures(
            Column(name),
            lambda row: row.metrics.get(name),
            lambda row: MARKS[row.differences[name].sign if name in row.differences else 0],
        )

    return [
        Figures(Column("J(π)", "true reward"), lambda row: row.truth),
        Figures(Column("gain", "J(π) − J(μ)"), lambda row: row.gain, lambda row: MARKS[excludes_zero(row.gain)]),
        *(metric(name) for name in dict.fromkeys(name for row in section.rows for name in row.metrics)),
        Figures(Column("JS", "nats"), lambda row: row.js, near),
        Figures(Column("KL", "nats"), lambda row: row.kl),
        Figures(Column("likelihood", "mean log π"), lambda row: row.likelihood),
    ]


def _note(section: Section, shown: Sequence[Figures]) -> str:
    titles = {figures.column.title for figures in shown}
    said = ["Intervals of 95 %; a figure without one is exact."]
    if "gain" in titles:
        said.append("Gain: ▲ better, ▼ worse than the logging policy; the 95 % interval excludes 0.")
    if any(row.differences for row in section.rows):
        said.append(
            f"Metrics: ▲ better, ▼ worse than {section.baseline or 'the reference'}; paired t-test by sequence, "
            "p < .05, Holm-corrected over all metrics and policies of this table."
        )
    if "JS" in titles and section.floor:
        said.append("≈: the distance from the reference is within seed noise.")
    if any(row.unseen_by_js for row in section.rows):
        said.append(
            "≈!: within seed noise by JS, but its ranking differs beyond chance. JS compares whole distributions; it "
            "hardly sees the order of the first few items. Read it beside the metrics and the likelihood."
        )
    if "JS" in titles and section.reference:
        said.append(f"JS and KL are taken from {section.reference}.")
    return " ".join(said)


def named(row: PolicyRow, style: SeriesStyle) -> Cell:
    """A policy's name beside its symbol."""
    return Cell(row.name, value=row.name, picture=style.swatch())


def weights(section: Section, styles: Sequence[SeriesStyle], identity: str) -> str:
    """How the objective weighed the log at the selected epoch; empty if no row has weights."""
    rows = [(row, style) for row, style in zip(section.rows, styles, strict=True) if row.weights]
    if not rows:
        return ""
    shares = [key for key in SHARES if any(key in row.weights for row, _ in rows)]
    sizes = [key for key in SIZES if any(key in row.weights for row, _ in rows)]
    epochs = any(row.selected_epoch is not None for row, _ in rows)
    columns = [
        Column("policy", numeric=False),
        *([Column("epoch kept")] if epochs else []),
        *(Column(SHARES[key], "of positions") for key in shares),
        *(Column(SIZES[key], "weight") for key in sizes),
    ]
    body = []
    for row, style in rows:
        cells = [named(row, style)]
        if epochs:
            cells.append(number_cell(row.selected_epoch, 0))
        cells += [share_cell(row.weights.get(key), _scarce(key, row)) for key in shares]
        cells += [number_cell(row.weights.get(key), decimals([row.weights.get(key)], 3)) for key in sizes]
        body.append(cells)
    note = (
        "At the epoch kept. A small effective share (marked ! below "
        f"{LEAST_EFFECTIVE:.0%}) or a large clipped share means that β has less effect than its value suggests."
    )
    return table(Table("Weights of logged positions", columns, body, note), identity=identity, sortable=True)


def _scarce(key: str, row: PolicyRow) -> Mark | None:
    return SCARCE if key == "effective_share" and row.weights.get(key, 1.0) < LEAST_EFFECTIVE else None


def sources(section: Section, identity: str) -> str:
    """The folder and digest of each policy's run; empty if no row has one."""
    rows = [row for row in section.rows if row.run or row.digest or row.selected_by]
    if not rows:
        return ""
    columns = [Column(name, numeric=False) for name in ("policy", "epoch kept by", "run", "digest of its weights")]
    body = [[word_cell(row.name), Cell(row.selected_by or NOTHING), _code(row.run), _code(row.digest)] for row in rows]
    return table(Table("Runs behind the policies", columns, body), identity=identity)


def _code(content: str | None) -> Cell:
    return Cell(content, value=content, code=True) if content else Cell(NOTHING)


def _has(interval: Interval | None) -> bool:
    return interval is not None and known(interval.mean)


def _mean(interval: Interval | None) -> float | None:
    return None if interval is None else interval.mean


VERDICTS = {
    True: ("yes", "✓", "holds"),
    False: ("no", "✗", "does not hold"),
    None: ("open", "?", "cannot tell"),
}


@dataclass(frozen=True)
class Block:
    """A part of a section under a heading of its own."""

    heading: str
    charts: Sequence[Chart] = ()
    legend: Sequence[tuple[str, str]] = ()  # a policy's name and its symbol
    table: str = ""
    behind: str = ""  # tables of the numbers behind the charts
    note: str = ""
    samples: Sequence[SampleLists] = ()


@dataclass(frozen=True)
class Part:
    """A section as its template needs it."""

    section: Section
    identity: str
    frontier: Chart | None
    blocks: Sequence[Block]
    sources: str

    @property
    def charts(self) -> list[Chart]:
        """All of them."""
        first = [] if self.frontier is None else [self.frontier]
        return [*first, *(chart for block in self.blocks for chart in block.charts)]


def page(contents: Contents) -> str:
    """The HTML text."""
    parts = [
        Part(
            section, name, frontier(section, styles, f"{name}-frontier"), _blocks(section, styles, name),
            sources(section, f"{name}-runs"),
        )
        for name, section, styles in zip(
            (f"s{index + 1}" for index in range(len(contents.sections))), contents.sections, series_styles(contents),
            strict=True,
        )
    ]  # fmt: skip
    specs = {chart.identity: chart.spec for part in parts for chart in part.charts}
    return render(
        "report.html", title=contents.title, contents=contents, parts=parts, verdicts=VERDICTS, specs=_embedded(specs),
        library=_script(library()),
    )  # fmt: skip


def _blocks(section: Section, styles: Sequence[SeriesStyle], name: str) -> list[Block]:
    """What follows the findings, in order; nothing is shown of what a section does not have."""

    def legend(wanted: Callable[[PolicyRow], object], *, line: bool = False) -> list[tuple[str, str]]:
        rows = zip(section.rows, styles, strict=True)
        return [(row.name, style.swatch(line=line)) for row, style in rows if wanted(row)]

    blocks = []
    if charts := round_charts(section, styles, f"{name}-rounds"):
        behind = round_tables(section, f"{name}-by-round")
        blocks.append(Block("Round after round", charts, legend(lambda row: row.rounds, line=True), "", behind, NOTE))
    if section.rows:
        blocks.append(Block("Comparison", table=comparison(section, styles, f"{name}-comparison")))
    if ranked := at_k(section, styles, f"{name}-at-k"):
        blocks.append(Block("At other k", table=ranked))
    if charts := curves(section, styles, f"{name}-curves"):
        trained = legend(lambda row: row.curve or row.stages, line=True)
        blocks.append(Block("Training", charts, trained, behind=curve_tables(section, f"{name}-epochs")))
    if chart := histogram(section, styles, f"{name}-spread"):
        behind = histogram_table(section, f"{name}-bins")
        blocks.append(Block("Distance, context by context", [chart], behind=behind))
    if charts := segment_charts(section, styles, f"{name}-segments"):
        behind = segment_tables(section, f"{name}-parts")
        blocks.append(Block("Where it wins and loses", charts, legend(lambda row: row.segments), behind=behind))
    if section.samples:
        blocks.append(Block("What would be shown", samples=section.samples))
    if weighed := weights(section, styles, f"{name}-weights"):
        blocks.append(Block("Weights", table=weighed))
    return blocks


def _embedded(content: object) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _script(code: str) -> str:
    """Code that cannot end the script element it stands in."""
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")
