"""Pages and pictures, as files: HTML is made by the templates in html/, charts are drawn by the extra `report`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from localpolicy.errors import ConfigError
from localpolicy.report.comparison_tables import at_k_table, policies_table, sources_table, weights_table
from localpolicy.report.contents import Contents, Section
from localpolicy.report.table import Cell, Table, percent
from localpolicy.runtime.files import whole_file, write_text

if TYPE_CHECKING:
    from localpolicy.report.charts import Series


def asset(name: str) -> str:
    """A file of the folder html."""
    return files("localpolicy.report").joinpath("html", name).read_text(encoding="utf-8")


@cache
def templates() -> Environment:
    """The templates: all text is escaped unless a template calls it safe."""
    environment = Environment(
        loader=FunctionLoader(asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals["asset"] = asset
    environment.filters["percent"] = percent
    return environment


def render(name: str, **values: Any) -> str:
    """A template filled in, without blanks around it."""
    return templates().get_template(name).render(values).strip()


def tables_page(tables: Sequence[Table], *, title: str) -> str:
    """A page of tables."""
    return render("tables.html", title=title, tables=tables) + "\n"


def notebook(content: Table) -> str:
    """A table for a notebook."""
    rules = re.findall(r"/\* tables \*/(.*?)/\* end of tables \*/", asset("style.css"), re.DOTALL)
    return render("notebook.html", content=content, rules="".join(rules))


WIDTH = 720
EXTRA = ("altair", "vl_convert")  # modules of the extra `report`
MISSING = "no pictures were drawn: they need altair and vl-convert (pip install 'localpolicy[report]')."


def can_draw() -> bool:
    """Whether the extra `report` is there."""
    return all(find_spec(name) is not None for name in EXTRA)


def write_picture(spec: dict[str, Any], path: Path) -> Path:
    """Draw a Vega-Lite spec as SVG or PNG, as the file's ending says."""
    import vl_convert

    text = json.dumps(_static(spec))
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


# ---------------------------------------------------------------------- a whole report


def write_report(contents: Contents, path: Path | str) -> Path:
    """Draw `contents` as one self-contained HTML file. Equal contents give equal bytes."""
    try:
        text = report_page(contents)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in EXTRA:
            raise
        raise ConfigError(f"A report needs {error.name}: pip install 'localpolicy[report]'.") from None
    path = Path(path)
    write_text(path, text)
    return path


def report_page(contents: Contents) -> str:
    """The HTML text: what each section has, put in order by its template."""
    from localpolicy.report.charts import all_series

    drawn = enumerate(zip(contents.sections, all_series(contents), strict=True), start=1)
    parts = [_drawn(section, series, f"s{index}") for index, (section, series) in drawn]
    specs = _embedded({chart.identity: chart.spec for part in parts for chart in part["charts"]})
    script = library().replace("</script", "<\\/script").replace("<!--", "<\\!--")  # cannot end its element
    values = {"title": contents.title, "contents": contents, "parts": parts, "specs": specs, "library": script}
    return render("report.html", **values) + "\n"


def _drawn(section: Section, series: Sequence[Series], name: str) -> dict[str, Any]:
    """The charts and tables of a section; what it does not have is empty."""
    from localpolicy.report.frontier import frontier, histogram
    from localpolicy.report.lines import curves, round_charts, segment_charts

    names = {each.policy.name: Cell(each.policy.name, value=each.policy.name, series=each) for each in series}
    charts = {
        "frontier": [chart] if (chart := frontier(section, series, f"{name}-frontier")) else [],
        "rounds": round_charts(section, series, f"{name}-rounds"),
        "curves": curves(series, f"{name}-curves"),
        "spread": [chart] if (chart := histogram(section, series, f"{name}-spread")) else [],
        "segments": segment_charts(section, series, f"{name}-segments"),
    }
    return {
        "section": section,
        "identity": name,
        "series": series,
        **charts,
        "charts": [chart for drawings in charts.values() for chart in drawings],
        "comparison": policies_table(section, names) if section.policies else None,
        "at_k": at_k_table(section, names) if section.at_k else None,
        "weights": weights_table(section, names),
        "sources": sources_table(section),
    }


@cache
def library() -> str:
    """Vega, Vega-Lite and vega-embed, in the version that Altair writes for, if it is bundled."""
    import altair
    import vl_convert

    wanted = ".".join(altair.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    version = wanted if wanted in vl_convert.get_vegalite_versions() else None
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version))


def _embedded(content: object) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
