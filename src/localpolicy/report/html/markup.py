"""Small pieces of HTML: tables that a screen reader can walk, figures, definition lists. All text is escaped here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from localpolicy.report.table import Cell, Column, Mark, Table

NARROW = 3  # columns that a narrow window has room for; a wider table shows each row as a block there
WORDS = 30  # characters; a longer cell holds a sentence, which may take several lines


def table(content: Table, *, identity: str, sortable: bool = False) -> str:
    """A table with its title above and its note below; the first cell of a row names it.

    Sorting needs the page's script.
    """
    columns = content.heads
    head = "".join(_heading(column, sortable) for column in columns)
    body = "".join(_row(row, columns) for row in content.rows)
    foot = f"<tfoot>{''.join(_row(row, columns) for row in content.foot)}</tfoot>" if content.foot else ""
    kinds = [*(["sortable"] if sortable else []), *(["wide"] if len(columns) > NARROW else [])]
    kind = f' class="{" ".join(kinds)}"' if kinds else ""
    note = f'<p class="below">{escape(content.note)}</p>' if content.note else ""
    return (
        f'<div class="scroll" role="region" aria-labelledby="{identity}" tabindex="0" style="--columns:{len(columns)}">'
        f'<table{kind}><caption id="{identity}">{escape(content.title)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody>{foot}</table></div>{note}"
    )


def _heading(column: Column, sortable: bool) -> str:
    label = escape(column.title).replace(".", ".<wbr>")
    inner = f'<button type="button">{label}</button>' if sortable else label
    note = f'<span class="note">{escape(column.note)}</span>' if column.note else ""
    order = ' aria-sort="none"' if sortable else ""
    return f'<th scope="col"{_numeric(column)}{order}>{inner}{note}</th>'


def _row(row: Sequence[Cell], columns: Sequence[Column]) -> str:
    """A row; one whose name is indented belongs to the row above it."""
    under = ' class="under"' if row[0].text.startswith("  ") else ""
    return f"<tr{under}>{''.join(_cell(cell, columns[index], index) for index, cell in enumerate(row))}</tr>"


def _cell(cell: Cell, column: Column, index: int) -> str:
    value = "" if cell.value is None else f' data-value="{escape(str(cell.value))}"'
    if index == 0:
        return f'<th scope="row"{_numeric(column)}{value}>{_shown(cell)}</th>'
    label = f' data-column="{escape(column.title)}"'
    return f"<td{_numeric(column)}{value}{label}>{_shown(cell)}</td>"


def _shown(cell: Cell) -> str:
    text = name_of(cell.text).replace("𝓛_<wbr>μ", "𝓛<sub>μ</sub>")
    if cell.code:
        text = f"<code>{escape(cell.text)}</code>"
    elif cell.picture:
        text = f'<span class="policy">{cell.picture}<span>{text}</span></span>'
    elif len(cell.text) > WORDS:
        text = f'<span class="words">{text}</span>'
    text = f"<b>{text}</b>" if cell.best else text
    stars = f"<sup>{cell.stars}</sup>" if cell.stars else ""
    kind = "range ends" if cell.around.startswith("[") else "range"
    around = f'<span class="{kind}">{escape(cell.around)}</span>' if cell.around else ""
    bar = "" if cell.bar is None else f'<span class="bar" style="width:{100 * cell.bar:.1f}%"></span>'
    return text + stars + (mark(cell.mark) if cell.mark else "") + around + bar


def mark(content: Mark) -> str:
    """A sign that says what it means when pointed at, or read aloud."""
    kind = f"mark {content.kind}".rstrip()
    meaning = escape(content.meaning)
    return f'<span class="{kind}" title="{meaning}">{escape(content.sign)}{hidden(f" {content.meaning}")}</span>'


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
