"""The tables of a section: policies side by side, their weights, and where they came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localpolicy.measure.divergence import beyond_floor
from localpolicy.measure.estimate import Interval
from localpolicy.measure.off_policy.overlap import LEAST_EFFECTIVE
from localpolicy.report.contents import PolicyRow, Section
from localpolicy.report.html.charts import SeriesStyle
from localpolicy.report.html.markup import table
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
