"""A whole page, put together from its parts (extra `report`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import altair as alt
import vl_convert

from localpolicy.report.comparison_tables import at_k_table, policies_table, sources_table, weights_table
from localpolicy.report.contents import Contents, PolicyInfo, SampleLists, Section
from localpolicy.report.html.charts import Chart, SeriesStyle, series_styles
from localpolicy.report.html.frontier import frontier
from localpolicy.report.html.lines import NOTE, curves, round_charts
from localpolicy.report.html.page import render, table
from localpolicy.report.html.spread import histogram, segment_charts
from localpolicy.report.table import Cell, Table


@cache
def library() -> str:
    """Vega, Vega-Lite and vega-embed, in the version that Altair writes for, if it is bundled."""
    wanted = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    version = wanted if wanted in vl_convert.get_vegalite_versions() else None
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version))


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
    note: str = ""
    samples: Sequence[SampleLists] = ()

    @property
    def numbers(self) -> str:
        """Tables of what the charts draw."""
        return "".join(chart.numbers for chart in self.charts)


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
            _drawn(sources_table(section), f"{name}-runs", sortable=False),
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

    def legend(wanted: Callable[[PolicyInfo], object], *, line: bool = False) -> list[tuple[str, str]]:
        drawn = zip(section.policies, styles, strict=True)
        return [(policy.name, style.swatch(line=line)) for policy, style in drawn if wanted(policy)]

    in_rounds = {row.policy for row in section.measurements if row.round is not None}
    in_segments = {row.policy for row in section.segments}

    drawn = zip(section.policies, styles, strict=True)
    names = {each.name: Cell(each.name, value=each.name, picture=style.swatch()) for each, style in drawn}
    blocks = []
    if charts := round_charts(section, styles, f"{name}-rounds"):
        served = legend(lambda policy: policy.name in in_rounds, line=True)
        blocks.append(Block("Round after round", charts, served, note=NOTE))
    if section.policies:
        blocks.append(Block("Comparison", table=_drawn(policies_table(section, names), f"{name}-comparison")))
    if section.at_k:
        blocks.append(Block("At other k", table=_drawn(at_k_table(section, names), f"{name}-at-k")))
    if charts := curves(section, styles, f"{name}-curves"):
        trained = legend(lambda policy: policy.curve or policy.stages, line=True)
        blocks.append(Block("Training", charts, trained))
    if chart := histogram(section, styles, f"{name}-spread"):
        blocks.append(Block("Distance, context by context", [chart]))
    if charts := segment_charts(section, styles, f"{name}-segments"):
        blocks.append(Block("Where it wins and loses", charts, legend(lambda policy: policy.name in in_segments)))
    if section.samples:
        blocks.append(Block("What would be shown", samples=section.samples))
    if weighed := weights_table(section, names):
        blocks.append(Block("Weights", table=_drawn(weighed, f"{name}-weights")))
    return blocks


def _drawn(content: Table | None, identity: str, *, sortable: bool = True) -> str:
    return "" if content is None else table(content, identity=identity, sortable=sortable)


def _embedded(content: object) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _script(code: str) -> str:
    """Code that cannot end the script element it stands in."""
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")
