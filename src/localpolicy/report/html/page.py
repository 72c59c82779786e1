"""Pages and pictures: HTML from the templates of this folder, and files."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from localpolicy.errors import ConfigError
from localpolicy.report.contents import Contents
from localpolicy.report.numbers import percent
from localpolicy.report.table import Table
from localpolicy.runtime.files import whole_file, write_text

# Colours of a notebook: its own paper and ink, light or dark.
NOTEBOOK = (
    ":scope { --paper: inherit; --raised: #8881; --ink: inherit; --soft: #777; --line: #8884; --yes: #0b6b4f; "
    "--no: #a33a00; --shade: #8885; }"
)
# JupyterLab has rules of its own for tables in outputs, which are stronger than those of a page: texts to the right.
OVER_THE_NOTEBOOK = """
:scope:scope:scope table { margin: 0; table-layout: auto; }
:scope:scope:scope :is(th, td) { text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
:scope:scope:scope .number { text-align: right; }
:scope:scope:scope :is(tbody th:first-child, thead th.number, .words) { min-width: 0; }
"""


def asset(name: str) -> str:
    """A file of this folder."""
    return files("localpolicy.report.html").joinpath(name).read_text(encoding="utf-8")


@cache
def templates() -> Environment:
    """The templates of this folder: all text is escaped unless a template calls it safe."""
    environment = Environment(
        loader=FunctionLoader(asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals["asset"] = asset
    environment.filters |= {"breaking": _breaking, "breaking_dots": _breaking_dots, "percent": percent}
    return environment


def render(name: str, **values: Any) -> str:
    """A whole page, with one line end at its end."""
    return templates().get_template(name).render(values).strip() + "\n"


def _breaking(name: str) -> Markup:
    """A name that may break after an underscore; 𝓛_μ as the paper writes it."""
    return Markup(escape(name).replace("_", Markup("_<wbr>")).replace("𝓛_<wbr>μ", Markup("𝓛<sub>μ</sub>")))


def _breaking_dots(title: str) -> Markup:
    """A heading that may break after a dot."""
    return Markup(escape(title).replace(".", Markup(".<wbr>")))


def table(content: Table, *, identity: str, sortable: bool = False) -> str:
    """A table as HTML; sorting needs the page's script."""
    macros: Any = templates().get_template("macros.html").module
    return str(macros.table(content, identity, sortable))


def tables_page(tables: Sequence[Table], *, title: str) -> str:
    """A page of tables."""
    return render("tables.html", title=title, tables=tables)


def notebook(content: Table) -> str:
    """A table for a notebook: the page's own rules, kept to this one element."""
    rules = re.findall(r"/\* tables \*/(.*?)/\* end of tables \*/", asset("style.css"), re.DOTALL)
    style = f"@scope (.localpolicy) {{ {NOTEBOOK} {''.join(rules)} {OVER_THE_NOTEBOOK} }}"
    return f'<div class="localpolicy"><style>{style}</style>{table(content, identity="table")}</div>'


WIDTH = 720
EXTRA = ("altair", "vl_convert")  # modules of the extra `report`
MISSING = "no pictures were drawn: they need altair and vl-convert (pip install 'localpolicy[report]')."


def can_draw() -> bool:
    """Whether the extra `report` is there."""
    return all(find_spec(name) is not None for name in EXTRA)


def write_picture(spec: dict[str, Any], path: Path | str) -> Path:
    """Draw a Vega-Lite spec as the file's ending says."""
    if not can_draw():
        raise ConfigError(MISSING)
    import vl_convert

    path, text = Path(path), json.dumps(_static(spec))
    if path.suffix not in (".svg", ".png"):
        raise ConfigError(f"{path}: a picture is .svg or .png.")
    with whole_file(path) as partial:
        if path.suffix == ".svg":
            partial.write_text(vl_convert.vegalite_to_svg(text), encoding="utf-8")
        else:
            partial.write_bytes(vl_convert.vegalite_to_png(text, scale=2))
    return path


def _static(spec: dict[str, Any]) -> dict[str, Any]:
    """A page's chart takes the width it is given and finds room for names by script; a file can do neither."""
    drawn: dict[str, Any] = json.loads(json.dumps(spec))
    if drawn.get("width") == "container":
        drawn["width"] = WIDTH
    drawn["config"] = {**drawn.get("config", {}), "background": "white"}
    for layer in drawn.get("layer", []):
        if layer.get("name") == "names":
            layer["mark"] |= {"align": "left", "dx": 8, "dy": -8}
    return drawn


def write_report(contents: Contents, path: Path | str) -> Path:
    """Draw `contents` as one self-contained HTML file. Equal contents give equal bytes."""
    try:
        from localpolicy.report.html.assemble import page
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in EXTRA:
            raise
        raise ConfigError(f"A report needs {error.name}: pip install 'localpolicy[report]'.") from None
    path = Path(path)
    write_text(path, page(contents))
    return path
