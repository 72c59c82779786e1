"""A whole page, put together from its parts (extra `report`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
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
)  # fmt: skip


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


Shown = tuple[Column, list[Cell]]  # a column, and its cell of each policy
Of = Callable[[PolicyRow], Interval | None]


def _figures(
    rows: Sequence[PolicyRow], column: Column, of: Of, *,
    mark: Callable[[PolicyRow], Mark | None] = lambda row: None, digits: int | None = None,
) -> Shown:  # fmt: skip
    """A column of figures with intervals."""
    figures = [of(row) for row in rows]
    digits = _digits(figures) if digits is None else digits
    return column, [interval_cell(figure, digits, mark(row)) for figure, row in zip(figures, rows, strict=True)]


def _digits(figures: Iterable[Interval | None]) -> int:
    return decimals([None if figure is None else figure.mean for figure in figures])


def _policies(
    title: str, rows: Sequence[PolicyRow], styles: Sequence[SeriesStyle], shown: Sequence[Shown], *, identity: str,
    note: str, foot: Sequence[Sequence[Cell]] = (),
) -> str:  # fmt: skip
    """One row per policy, its name beside its symbol."""
    names = [Cell(row.name, value=row.name, picture=style.swatch()) for row, style in zip(rows, styles, strict=True)]
    body = [list(cells) for cells in zip(names, *(cells for _, cells in shown), strict=True)]
    columns = [Column("policy", numeric=False), *(column for column, _ in shown)]
    return table(Table(title, columns, body, note, foot), identity=identity, sortable=True)


def comparison(section: Section, styles: Sequence[SeriesStyle], identity: str) -> str:
    """All policies side by side, by every figure that any has; the logging policy's own value below them."""
    rows, level = section.rows, section.logging_value
    metrics = dict.fromkeys(name for row in rows for name in row.metrics)
    truths = [row.truth for row in rows]
    # A difference has as many decimals as the values it comes from.
    digits = _digits(truths) if any(truth and known(truth.mean) for truth in truths) else None

    def near(row: PolicyRow) -> Mark | None:
        if row.unseen_by_js:
            return BLIND
        return LEVEL if beyond_floor(row.js, section.floor) is False else None

    def metric(name: str) -> Shown:
        return _figures(
            rows, Column(name), lambda row: row.metrics.get(name),
            mark=lambda row: MARKS[row.differences[name].sign if name in row.differences else 0],
        )  # fmt: skip

    entropies = decimals([row.entropy for row in rows], 3)
    columns = [
        _figures(rows, Column("J(π)", "true reward"), lambda row: row.truth),
        _figures(
            rows, Column("gain", "J(π) − J(μ)"), lambda row: row.gain, mark=lambda row: MARKS[excludes_zero(row.gain)],
            digits=digits,
        ),
        *map(metric, metrics),
        _figures(rows, Column("JS", "nats"), lambda row: row.js, mark=near),
        _figures(rows, Column("KL", "nats"), lambda row: row.kl),
        _figures(rows, Column("likelihood", "mean log π"), lambda row: row.likelihood),
        (Column(f"coverage@{section.lists}", "of the catalogue"), [share_cell(row.coverage) for row in rows]),
        (Column("entropy", "nats"), [number_cell(row.entropy, entropies) for row in rows]),
    ]  # fmt: skip
    shown = [(column, cells) for column, cells in columns if any(cell.value is not None for cell in cells)]
    titles, foot = [column.title for column, _ in shown], []
    if level is not None and digits is not None:
        foot = [[word_cell("the logging policy μ"), interval_cell(level, digits), *[Cell("")] * (len(shown) - 1)]]
    note = _note(section, titles)
    return _policies("Policies side by side", rows, styles, shown, identity=identity, note=note, foot=foot)


def at_k(section: Section, styles: Sequence[SeriesStyle], identity: str) -> str:
    """Every policy at k = 5, 10 and 20; empty if no row has them."""

    def ranked(name: str) -> Shown:
        return _figures(section.rows, Column(name), lambda row: row.at_k.get(name))

    shown = [ranked(name) for name in dict.fromkeys(name for row in section.rows for name in row.at_k)]
    note = "Intervals of 95 %. None of these is tested: with more columns each would need a larger difference."
    title = "Ranking at k = 5, 10 and 20"
    return _policies(title, section.rows, styles, shown, identity=identity, note=note) if shown else ""


def _note(section: Section, titles: Sequence[str]) -> str:
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


def weights(section: Section, styles: Sequence[SeriesStyle], identity: str) -> str:
    """How the objective weighed the log at the selected epoch; empty if no row has weights."""
    weighed = [(row, style) for row, style in zip(section.rows, styles, strict=True) if row.weights]
    if not weighed:
        return ""
    rows = [row for row, _ in weighed]
    shown: list[Shown] = []
    if any(row.selected_epoch is not None for row in rows):
        shown.append((Column("epoch kept"), [number_cell(row.selected_epoch, 0) for row in rows]))
    for key, name in SHARES.items():
        if any(key in row.weights for row in rows):
            cells = [share_cell(row.weights.get(key), _scarce(key, row)) for row in rows]
            shown.append((Column(name, "of positions"), cells))
    for key, name in SIZES.items():
        if any(key in row.weights for row in rows):
            sizes = [row.weights.get(key) for row in rows]
            shown.append((Column(name, "weight"), [number_cell(size, decimals([size], 3)) for size in sizes]))
    note = (
        "At the epoch kept. A small effective share (marked ! below "
        f"{LEAST_EFFECTIVE:.0%}) or a large clipped share means that β has less effect than its value suggests."
    )
    drawn = [style for _, style in weighed]
    return _policies("Weights of logged positions", rows, drawn, shown, identity=identity, note=note)


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
