"""Pages, their tables, and pictures: HTML is made by the templates in html/, charts by the extra `report`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localpolicy.errors import ConfigError
from localpolicy.judge.comparison import TRUE_GAIN
from localpolicy.measure.divergence import beyond_floor
from localpolicy.measure.number_text import corrected, decimals, known, percent, sentences
from localpolicy.report.contents import Contents, PolicyInfo, Section
from localpolicy.report.gate import checks_table
from localpolicy.report.table import Cell, Column, Mark, Table
from localpolicy.report.tables import EVERY_K, side_by_side
from localpolicy.report.templates import render
from localpolicy.runtime.files import whole_file, write_text

if TYPE_CHECKING:
    from localpolicy.report.charts import Series


def tables_page(tables: Sequence[Table], *, title: str) -> str:
    return render("tables.html", title=title, tables=tables) + "\n"


WIDTH = 720
EXTRA = ("altair", "vl_convert")  # modules of the extra `report`
MISSING = "no pictures were drawn: they need altair and vl-convert (pip install 'localpolicy[report]')."


def can_draw() -> bool:
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
    """Copy of a chart's spec with fixed sizes for a file: a page sizes its charts by script."""
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
    from localpolicy.report.charts import all_series

    drawn = enumerate(zip(contents.sections, all_series(contents), strict=True), start=1)
    parts = [_drawn(section, series, f"s{index}") for index, (section, series) in drawn]
    specs = _embedded({chart.identity: chart.spec for part in parts for chart in part["charts"]})
    script = library().replace("</script", "<\\/script").replace("<!--", "<\\!--")  # cannot end its element
    values = {"title": contents.title, "contents": contents, "parts": parts, "specs": specs, "library": script}
    return render("report.html", **values) + "\n"


def _drawn(section: Section, series: Sequence[Series], name: str) -> dict[str, Any]:
    """Charts and tables of a section for the template; empty if the section has no data for them."""
    from localpolicy.report.frontier import frontier, histogram, trade
    from localpolicy.report.lines import curves, round_charts, segment_charts, weights_table

    names = {each.policy.name: Cell(each.policy.name, value=each.policy.name, series=each) for each in series}
    charts = {
        "frontier": [chart] if (chart := frontier(section, series, f"{name}-frontier")) else [],
        "trade": [chart] if (chart := trade(section, series, f"{name}-trade")) else [],
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
        "checks": replace(checks_table(section.checks), title="What was asked") if section.checks else None,
        "comparison": policies_table(section, names) if section.policies else None,
        "at_k": at_k_table(section, names) if section.at_k else None,
        "weights": weights_table(section, names),
        "sources": sources_table(section),
    }


@cache
def library() -> str:
    """JavaScript bundle of Vega, Vega-Lite and vega-embed, in Altair's version if vl_convert has that one."""
    import altair
    import vl_convert

    wanted = ".".join(altair.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    version = wanted if wanted in vl_convert.get_vegalite_versions() else None
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version))


def _embedded(content: object) -> str:
    """JSON text escaped so that it cannot end its script element."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


# ---------------------------------------------------------------------- its tables: intervals, and marks


BETTER = Mark("▲", "significantly better", "up")
WORSE = Mark("▼", "significantly worse", "down")
LEVEL = Mark("≈", "within the noise between two seeds")
BLIND = Mark("≈!", "within noise by JS, but it ranks differently", "down")
MARKS = {1: BETTER, -1: WORSE, 0: None}


def policies_table(section: Section, names: Mapping[str, Cell]) -> Table:
    """Table of all policies by all metrics, with the logging policy's own value below."""
    columns = {
        "true J": Column("J(π)", "true reward per decision"),
        TRUE_GAIN: Column("gain", "J(π) − J(μ)"),
        section.value: Column("value", f"per {section.unit}, by {section.value}"),
        **{figure: Column(said) for figure, said in section.columns.items() if figure != section.value},
        "JS": Column("JS", "nats"),
        "KL": Column("KL", "nats"),
        "logp": Column("likelihood", "mean log π among what could be shown"),
        (coverage := f"coverage@{section.lists}"): Column(coverage, "of the catalogue"),
        "entropy": Column("entropy", "nats"),
    }
    shown = {figure: column for figure, column in columns.items() if any(map(known, _means(section, figure)))}
    foot = []
    if section.logging_value is not None and "true J" in shown:
        level = Cell.of(section.logging_value, decimals(_means(section, "true J")))
        foot = [[Cell("the logging policy μ", value="the logging policy μ"), level, *[Cell("")] * (len(shown) - 1)]]
    note, title = _page_note(section, shown), "Policies side by side"
    return side_by_side(title, names, shown, lambda *at: _page_cell(section, *at), note, foot)


def at_k_table(section: Section, names: Mapping[str, Cell]) -> Table:
    note = "Intervals of 95 %. None of these is tested: with more columns each would need a larger difference."
    columns = {figure: Column(said) for figure, said in section.at_k.items()}
    return side_by_side(EVERY_K, names, columns, lambda *of: _page_cell(section, *of, marked=False), note)


def _page_cell(section: Section, policy: str, figure: str, *, marked: bool = True) -> Cell:
    if figure.startswith("coverage"):
        return Cell(percent(section.mean(policy, figure)), value=section.mean(policy, figure))
    # A difference has as many decimals as the values it comes from.
    digits = decimals(_means(section, "true J" if figure == TRUE_GAIN else figure))
    mark = _mark(section, policy, figure) if marked else None
    return Cell.of(section.figure(policy, figure), digits, mark)


def _means(section: Section, figure: str) -> list[float | None]:
    return [section.mean(policy.name, figure) for policy in section.policies]


def _mark(section: Section, policy: str, figure: str) -> Mark | None:
    if figure == "JS":
        level = LEVEL if beyond_floor(section.figure(policy, "JS"), section.floor) is False else None
        return BLIND if policy in section.unseen_by_js else level
    gain = section.gains.get(policy, {}).get(figure)
    return MARKS[0 if gain is None else gain.sign]


def _page_note(section: Section, shown: Mapping[str, Column]) -> str:
    gained, value = {figure for gains in section.gains.values() for figure in gains}, section.value
    ranks = next((figure for figure in shown if figure in gained and figure not in (value, TRUE_GAIN)), "")
    untested = [column.title for figure, column in shown.items() if figure not in (*gained, "true J")]
    made = {figure: corrected(count) for figure, count in section.corrected.items()}
    return sentences({
        "Intervals of 95 %; a figure without one is exact.": True,
        f"Gain: ▲ significantly better, ▼ significantly worse than the logging policy{made.get(TRUE_GAIN, '')}.":
            TRUE_GAIN in shown and TRUE_GAIN in gained,
        f"Value: what the policy would earn per {section.unit}, estimated from the log's propensities.": value in shown,
        f"At the value: ▲ significantly better, ▼ significantly worse than {section.baseline}{made.get(value, '')}.":
            value in shown and value in gained,
        f"{'At the other figures' if value in gained else 'Figures'}: ▲ significantly better, ▼ significantly worse "
        f"than {section.baseline or 'the reference'}; paired t-test by sequence{made.get(ranks, '')} (Holm).": ranks,
        f"Not tested: {', '.join(untested)}.": untested and gained,
        f"AR@1 and figures weighted by rewards add up {section.amount}: a list of dear items wins them, though no "
        "more would be sold.": section.amount,
        f"Marks of {', '.join(section.likeliest)}{', but for the value,' if value in gained else ''} are of the "
        "weights of the best held-out likelihood, not of the figures next to them: their epochs were chosen by another "
        "figure, which raises that figure.": section.likeliest,
        "≈: the distance from the reference is within seed noise.": "JS" in shown and section.floor,
        "≈!: within seed noise by JS, but its ranking differs significantly. JS compares whole distributions; it "
        "hardly sees the order of the first few items. Read it together with the metrics and the likelihood.":
            section.unseen_by_js,
        f"JS and KL are taken from {section.reference}.": "JS" in shown and section.reference,
    })  # fmt: skip


def sources_table(section: Section) -> Table | None:
    """Table of the folder and digest of each policy's run; None if no policy has one."""
    rows = [policy for policy in section.policies if policy.run or policy.digest or policy.selected_by]
    if not rows:
        return None
    heads = {"epoch kept by": "selected_by", "run": "run", "digest of its weights": "digest"}
    shown = {head: name for head, name in heads.items() if any(getattr(row, name) for row in rows)}

    def cell(policy: PolicyInfo, name: str) -> Cell:
        return Cell(text, value=text, code=name != "selected_by") if (text := getattr(policy, name)) else Cell("")

    body = [[Cell(row.name, value=row.name), *(cell(row, name) for name in shown.values())] for row in rows]
    return Table("Runs behind the policies", [Column(head, numeric=False) for head in ("policy", *shown)], body)
