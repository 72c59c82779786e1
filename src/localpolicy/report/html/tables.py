"""The tables of a section: policies side by side, their weights, and where they came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from localpolicy.evaluation.estimate import Interval
from localpolicy.report.contents import PolicyRow, Section
from localpolicy.report.html.markup import Cell, Column, estimate, hidden, name_of, number, share, table, text
from localpolicy.report.html.palette import Look
from localpolicy.report.numbers import beyond_floor, excludes_zero, joined, known, places

FEW = 0.1  # an effective share below this is marked: a tenth of the log decides
SHARES = {"effective_share": "effective share", "clipped_share": "clipped share"}
SIZES = {"mean": "mean", "q5": "5 %", "q50": "median", "q95": "95 %", "max": "largest"}

BETTER = f'<span class="mark up" title="better: the interval excludes 0">▲{hidden(" better")}</span>'
WORSE = f'<span class="mark down" title="worse: the interval excludes 0">▼{hidden(" worse")}</span>'
LEVEL = f'<span class="mark" title="not surely beyond the noise floor">≈{hidden(" not beyond noise")}</span>'
SCARCE = f'<span class="mark down" title="a tenth of the log decides">!{hidden(" few positions decide")}</span>'
MARKS = {1: BETTER, -1: WORSE, 0: ""}


@dataclass(frozen=True)
class Figures:
    """A column of figures with intervals."""

    column: Column
    of: Callable[[PolicyRow], Interval | None]
    mark: Callable[[PolicyRow], str] = lambda row: ""


def comparison(section: Section, looks: Sequence[Look], identity: str) -> str:
    """All policies side by side; the logging policy's own value below them."""
    shown = [one for one in _figures(section) if any(_has(one.of(row)) for row in section.rows)]
    level = section.logging_value
    digits = [places([_mean(one.of(row)) for row in section.rows]) for one in shown]
    if [one.column.title for one in shown[:2]] == ["J(π)", "gain"]:
        digits[1] = digits[0]  # a difference has the places of what it is a difference of
    columns = [Column("policy", numeric=False), *(one.column for one in shown)]
    rows = [
        [
            named(row, look),
            *(estimate(one.of(row), many, one.mark(row)) for one, many in zip(shown, digits, strict=True)),
        ]
        for row, look in zip(section.rows, looks, strict=True)
    ]
    if any(known(row.coverage) for row in section.rows):
        columns.append(Column("coverage", "of the catalogue"))
        rows = [[*cells, share(row.coverage)] for cells, row in zip(rows, section.rows, strict=True)]
    if any(known(row.entropy) for row in section.rows):
        columns.append(Column("entropy", "nats"))
        many = places([row.entropy for row in section.rows], 3)
        rows = [[*cells, number(row.entropy, many)] for cells, row in zip(rows, section.rows, strict=True)]
    foot = []
    if level is not None and shown and shown[0].column.title == "J(π)":
        blank = [Cell("")] * (len(columns) - 2)
        foot = [[text("the logging policy μ"), estimate(level, digits[0]), *blank]]
    return table(_caption(section, shown), columns, rows, identity=identity, foot=foot, sortable=True)


def _figures(section: Section) -> list[Figures]:
    def near(row: PolicyRow) -> str:
        return LEVEL if beyond_floor(row.js, section.floor) is False else ""

    def metric(name: str) -> Figures:
        return Figures(
            Column(name),
            lambda row: row.metrics.get(name),
            lambda row: MARKS[excludes_zero(row.differences.get(name))],
        )

    return [
        Figures(Column("J(π)", "true reward"), lambda row: row.truth),
        Figures(Column("gain", "J(π) − J(μ)"), lambda row: row.gain, lambda row: MARKS[excludes_zero(row.gain)]),
        *(metric(name) for name in dict.fromkeys(name for row in section.rows for name in row.metrics)),
        Figures(Column("JS", "nats"), lambda row: row.js, near),
        Figures(Column("KL", "nats"), lambda row: row.kl),
    ]


def _caption(section: Section, shown: Sequence[Figures]) -> str:
    titles = {one.column.title for one in shown}
    said = ["Policies side by side; a figure without an interval is exact."]
    against = ["the logging policy (gain)"] if "gain" in titles else []
    against += (
        [f"{section.baseline or 'the reference'} (metrics)"] if any(row.differences for row in section.rows) else []
    )
    if against:
        said.append(f"▲ better, ▼ worse than {joined(against)}: the 95 % interval of the difference excludes 0.")
    if "JS" in titles and section.floor:
        said.append("≈ not surely further from the reference than another seed (the interval reaches the noise floor).")
    if "JS" in titles and section.reference:
        said.append(f"JS and KL are taken from {section.reference}.")
    return " ".join(said)


def named(row: PolicyRow, look: Look) -> Cell:
    """A policy's name beside its mark."""
    return Cell(f'<span class="policy">{look.swatch()}<span>{name_of(row.name)}</span></span>', row.name)


def weights(section: Section, looks: Sequence[Look], identity: str) -> str:
    """How the objective weighed the log, at the epoch that was kept; nothing where no row says."""
    rows = [(row, look) for row, look in zip(section.rows, looks, strict=True) if row.weights]
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
    for row, look in rows:
        cells = [named(row, look)]
        if epochs:
            cells.append(number(row.selected_epoch, 0))
        cells += [share(row.weights.get(key), _scarce(key, row)) for key in shares]
        cells += [number(row.weights.get(key), places([row.weights.get(key)], 3)) for key in sizes]
        body.append(cells)
    caption = (
        "Weights of logged positions at the epoch kept. A small effective share (marked ! below "
        f"{FEW:.0%}) or a large clipped share means that β no longer says what it seems to say."
    )
    return table(caption, columns, body, identity=identity, sortable=True)


def _scarce(key: str, row: PolicyRow) -> str:
    return SCARCE if key == "effective_share" and row.weights.get(key, 1.0) < FEW else ""


def sources(section: Section, identity: str) -> str:
    """Where each policy's run lies and what its weights' digest is; nothing where no row says."""
    rows = [row for row in section.rows if row.run or row.digest or row.selected_by]
    if not rows:
        return ""
    columns = [Column(name, numeric=False) for name in ("policy", "epoch kept by", "run", "digest of its weights")]
    body = [[text(row.name), text(row.selected_by or "–"), _code(row.run), _code(row.digest)] for row in rows]
    return table("Runs behind the policies", columns, body, identity=identity)


def _code(content: str | None) -> Cell:
    return Cell(f"<code>{escape(content)}</code>", content) if content else Cell("–")


def _has(interval: Interval | None) -> bool:
    return interval is not None and known(interval.mean)


def _mean(interval: Interval | None) -> float | None:
    return None if interval is None else interval.mean
