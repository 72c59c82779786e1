"""Pages and pictures: what every page shares, small pieces of HTML, and files. All text is escaped here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from localpolicy.errors import ConfigError
from localpolicy.report.contents import Contents, SampleLists
from localpolicy.report.table import Cell, Column, Mark, Table, percent
from localpolicy.runtime.files import whole_file

# Colours of a notebook: its own paper and ink, light or dark.
NOTEBOOK = (
    ":scope { --paper: inherit; --raised: #8881; --ink: inherit; --soft: #777; --line: #8884; --yes: #0b6b4f; "
    "--no: #a33a00; }"
)

# Nothing may be fetched, whatever a name in the data says. Vega compiles its expressions, hence 'unsafe-eval'.
POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"


def asset(name: str) -> str:
    """A file of this folder."""
    return files("localpolicy.report.html").joinpath(name).read_text(encoding="utf-8")


def skeleton(title: str, body: str) -> str:
    """A whole page around its body."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n'
        f"<style>\n{asset('style.css')}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )


def tables_page(tables: Sequence[Table], *, title: str) -> str:
    """A page of tables."""
    return skeleton(title, f'<header><h1 class="title">{escape(title)}</h1></header>\n<main>{blocks(tables)}</main>\n')


def notebook(content: Table) -> str:
    """A table for a notebook: the page's own rules, kept to this one element."""
    rules = re.findall(r"/\* tables \*/(.*?)/\* end of tables \*/", asset("style.css"), re.DOTALL)
    style = f"@scope (.localpolicy) {{ {NOTEBOOK} {''.join(rules)} }}"
    return f'<div class="localpolicy"><style>{style}</style>{table(content, identity="table")}</div>'


def blocks(tables: Sequence[Table]) -> str:
    """Tables one below the other."""
    return "".join(f'<div class="block">{table(content, identity=f"table-{index + 1}")}</div>\n'
                   for index, content in enumerate(tables))  # fmt: skip


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


MOST = 12  # histories on a page
RECENT = 12  # items of a history


def sample_lists(samples: Sequence[SampleLists]) -> str:
    """Each history with the lists of every policy; what the first list lacks is marked."""
    shown = "".join(_sample(sample, index + 1) for index, sample in enumerate(samples[:MOST]))
    marks = '<p class="aside">Most recent item last. + marks an item that the first list lacks.</p>'
    left = len(samples) - MOST
    return marks + shown + (f'<p class="aside">{left} more histories are not shown.</p>' if left > 0 else "")


def _sample(sample: SampleLists, number: int) -> str:
    earlier = len(sample.history) - RECENT
    items = "".join(f"<li>{escape(item)}</li>" for item in sample.history[-RECENT:])
    before = f'<li class="earlier">{earlier} earlier</li>' if earlier > 0 else ""
    history = f'<ol class="history">{before}{items}</ol>' if sample.history else '<p class="aside">no history yet</p>'
    names = list(sample.lists)
    known = {item for item, _ in sample.lists[names[0]]} if names else set()
    most = max((chance for ranked in sample.lists.values() for _, chance in ranked), default=0.0)
    columns = "".join(
        _list(name, sample.lists[name], known if number else None, most) for number, name in enumerate(names)
    )
    return (
        f'<section class="sample"><h4>History {number}{hidden(", oldest first")}</h4>{history}'
        f'<div class="lists">{columns}</div></section>'
    )


def _list(name: str, ranked: Sequence[tuple[str, float]], known: set[str] | None, most: float) -> str:
    lines = "".join(_line(item, chance, known, most) for item, chance in ranked)
    return f"<div><h5>{escape(name)}</h5><ol>{lines}</ol></div>"


def _line(item: str, chance: float, known: set[str] | None, most: float) -> str:
    fresh = known is not None and item not in known
    mark = (
        f'<span class="mark" title="not in the first list">+{hidden(" not in the first list")}</span>' if fresh else ""
    )
    width = 100 * chance / most if most > 0 else 0.0
    return (
        f'<li><span class="item">{escape(item)}{mark}</span><span class="chance">{percent(chance)}</span>'
        f'<span class="bar" style="width:{width:.1f}%"></span></li>'
    )


WIDTH = 720
MISSING = "no pictures were drawn: they need altair and vl-convert (pip install 'localpolicy[report]')."


def can_draw() -> bool:
    """Whether the extra `report` is there."""
    return all(find_spec(name) is not None for name in ("altair", "vl_convert"))


def write_picture(spec: dict[str, Any], path: Path | str, *, width: int = WIDTH) -> Path:
    """Draw a Vega-Lite spec as the file's ending says."""
    if not can_draw():
        raise ConfigError(MISSING)
    import vl_convert

    path, text = Path(path), json.dumps(_static(spec, width))
    if path.suffix not in (".svg", ".png"):
        raise ConfigError(f"{path}: a picture is .svg or .png.")
    with whole_file(path) as partial:
        if path.suffix == ".svg":
            partial.write_text(vl_convert.vegalite_to_svg(text), encoding="utf-8")
        else:
            partial.write_bytes(vl_convert.vegalite_to_png(text, scale=2))
    return path


def _static(spec: dict[str, Any], width: int) -> dict[str, Any]:
    """A page's chart takes the width it is given and finds room for names by script; a file can do neither."""
    drawn: dict[str, Any] = json.loads(json.dumps(spec))
    if drawn.get("width") == "container":
        drawn["width"] = width
    drawn["config"] = {**drawn.get("config", {}), "background": "white"}
    for layer in drawn.get("layer", []):
        if layer.get("name") == "names":
            layer["mark"] |= {"align": "left", "dx": 8, "dy": -8}
    return drawn


EXTRA = ("altair", "vl_convert")  # modules of the extra `report`


def write_report(contents: Contents, path: Path | str) -> Path:
    """Draw `contents` as one self-contained HTML file. Equal contents give equal bytes."""
    try:
        from localpolicy.report.html.assemble import page
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in EXTRA:
            raise
        raise ConfigError(f"A report needs {error.name}: pip install 'localpolicy[report]'.") from None
    path = Path(path)
    with whole_file(path) as partial:
        partial.write_text(page(contents), encoding="utf-8", newline="\n")
    return path
