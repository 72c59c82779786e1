"""Small pieces of HTML: tables that a screen reader can walk, figures, definition lists. All text is escaped here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from localpolicy.evaluation.estimate import Interval
from localpolicy.report.numbers import NOTHING, fixed, known, percent, range_text


@dataclass(frozen=True)
class Cell:
    """What a cell shows (HTML), and the value it is sorted by."""

    shown: str
    value: float | str | None = None


@dataclass(frozen=True)
class Column:
    """A column's heading, what it means, and whether it holds numbers."""

    title: str
    note: str = ""
    numeric: bool = True


def text(content: str) -> Cell:
    """A cell of words."""
    return Cell(escape(content), content)


def number(value: float | None, digits: int, mark: str = "") -> Cell:
    """A cell of one number."""
    return Cell(fixed(value, digits) + mark, value if known(value) else None)


def share(value: float | None, mark: str = "") -> Cell:
    """A cell of a share, in per cent."""
    return Cell(percent(value) + mark, value if known(value) else None)


def estimate(interval: Interval | None, digits: int, mark: str = "") -> Cell:
    """A cell of a figure with its interval in smaller type."""
    if interval is None or not known(interval.mean):
        return Cell(NOTHING)
    around = range_text(interval, digits)
    kind = "range ends" if around.startswith("[") else "range"
    shown = fixed(interval.mean, digits) + mark + (f'<span class="{kind}">{escape(around)}</span>' if around else "")
    return Cell(shown, interval.mean)


def table(
    caption: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    *,
    identity: str,
    foot: Sequence[Sequence[Cell]] = (),
    sortable: bool = False,
) -> str:
    """A table with a caption; the first cell of a row names it. Sorting needs the page's script."""
    head = "".join(_heading(column, sortable) for column in columns)
    body = "".join(_row(row, columns) for row in rows)
    feet = f"<tfoot>{''.join(_row(row, columns) for row in foot)}</tfoot>" if foot else ""
    kind = ' class="sortable"' if sortable else ""
    return (
        f'<div class="scroll" role="region" aria-labelledby="{identity}" tabindex="0" style="--columns:{len(columns)}">'
        f"<table{kind}>"
        f'<caption id="{identity}">{escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody>{feet}</table></div>"
    )


def _heading(column: Column, sortable: bool) -> str:
    label = escape(column.title)
    inner = f'<button type="button">{label}</button>' if sortable else label
    note = f'<span class="note">{escape(column.note)}</span>' if column.note else ""
    order = ' aria-sort="none"' if sortable else ""
    return f'<th scope="col"{_numeric(column)}{order}>{inner}{note}</th>'


def _row(row: Sequence[Cell], columns: Sequence[Column]) -> str:
    return f"<tr>{''.join(_cell(cell, columns[place], place) for place, cell in enumerate(row))}</tr>"


def _cell(cell: Cell, column: Column, place: int) -> str:
    value = "" if cell.value is None else f' data-value="{escape(str(cell.value))}"'
    if place == 0:
        return f'<th scope="row"{_numeric(column)}{value}>{cell.shown}</th>'
    return f"<td{_numeric(column)}{value}>{cell.shown}</td>"


def _numeric(column: Column) -> str:
    return ' class="number"' if column.numeric else ""


def name_of(policy: str) -> str:
    """A name that may break after an underscore."""
    return escape(policy).replace("_", "_<wbr>")


def hidden(words: str) -> str:
    """Words for a screen reader only."""
    return f'<span class="unseen">{escape(words)}</span>'


def folded(summary: str, content: str, kind: str = "") -> str:
    """A block that opens on demand."""
    name = f' class="{kind}"' if kind else ""
    return f"<details{name}><summary>{escape(summary)}</summary>{content}</details>"


def definitions(facts: Mapping[str, str]) -> str:
    """Names and what they are."""
    pairs = "".join(f"<div><dt>{escape(str(k))}</dt><dd>{escape(str(v))}</dd></div>" for k, v in facts.items())
    return f"<dl>{pairs}</dl>"


def figure(identity: str, caption: str, *, height: int, title: str = "") -> str:
    """The place of a chart; its script fills it, and gives it a description for screen readers."""
    heading = f"<h4>{escape(title)}</h4>" if title else ""
    return (
        f'<figure aria-labelledby="{identity}-caption">{heading}'
        f'<div class="chart" id="{identity}" style="min-height:{height}px"></div>'
        f'<figcaption id="{identity}-caption">{escape(caption)}</figcaption></figure>'
    )
