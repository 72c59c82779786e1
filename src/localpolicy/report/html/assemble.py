"""A whole page, put together from its parts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from localpolicy.report.contents import CheckedClaim, Contents, PolicyRow, Section
from localpolicy.report.html.bundle import library
from localpolicy.report.html.charts import Chart, SeriesStyle, series_styles
from localpolicy.report.html.frontier import frontier
from localpolicy.report.html.lines import NOTE, curve_tables, curves, round_charts, round_tables
from localpolicy.report.html.markup import definitions, figure, folded
from localpolicy.report.html.samples import sample_lists
from localpolicy.report.html.skeleton import asset, skeleton
from localpolicy.report.html.spread import histogram, histogram_table, segment_charts, segment_tables
from localpolicy.report.html.tables import comparison, sources, weights

VERDICTS = {
    True: ("yes", "✓", "holds"),
    False: ("no", "✗", "does not hold"),
    None: ("open", "?", "cannot tell"),
}
BEHIND = "The numbers behind it"


def page(contents: Contents) -> str:
    """The HTML text."""
    drawn: dict[str, object] = {}
    sections = "".join(
        _section(section, styles, f"s{index + 1}", drawn, alone=len(contents.sections) == 1)
        for index, (section, styles) in enumerate(zip(contents.sections, series_styles(contents), strict=True))
    )
    settings = folded("Settings", definitions(contents.settings), "facts") if contents.settings else ""
    return skeleton(
        contents.title,
        f"<header><h1>{escape(contents.title)}</h1>"
        f'<p class="verdict"><span class="unseen">Verdict: </span>{escape(contents.verdict)}</p>'
        f"{_numbers(contents)}{_next_step(contents)}{_menu(contents)}"
        "<noscript><p>The charts need JavaScript; every number they show is in the tables.</p></noscript></header>\n"
        f"<main>{sections}</main>\n<footer>{asset('reading.html')}{settings}</footer>\n"
        f'<script type="application/json" id="chart-specs">{_embedded(drawn)}</script>\n'
        f"<script>{_script(library())}</script>\n<script>\n{asset('draw.js')}{asset('sort.js')}</script>\n",
    )


def _numbers(contents: Contents) -> str:
    """The numbers behind the answer."""
    cards = "".join(
        f'<li><span class="value">{escape(number.value)}</span> <span class="name">{escape(number.name)}</span>'
        f'<span class="meaning">{escape(number.meaning)}</span></li>'
        for number in contents.numbers
    )
    return f'<ul class="numbers" aria-label="The numbers behind it">{cards}</ul>' if cards else ""


def _next_step(contents: Contents) -> str:
    return f'<p class="next"><b>Next:</b> {escape(contents.next_step)}</p>' if contents.next_step else ""


def _menu(contents: Contents) -> str:
    links = [(f"s{index + 1}", section.title) for index, section in enumerate(contents.sections)]
    links = [*(links if len(links) > 1 else []), ("glossary", "Glossary")]
    items = "".join(f'<li><a href="#{target}">{escape(title)}</a></li>' for target, title in links)
    return f'<nav aria-label="On this page"><ul>{items}</ul></nav>'


def _section(
    section: Section, styles: Sequence[SeriesStyle], identity: str, drawn: dict[str, object], *, alone: bool
) -> str:
    """One comparison; its charts' specs are added to `drawn`. `alone`: the page has no other."""

    def block(charts: Sequence[Chart]) -> str:
        drawn.update({chart.identity: chart.spec for chart in charts})
        figures = "".join(
            figure(chart.identity, chart.caption, height=chart.height, title=chart.title) for chart in charts
        )
        return figures if any(chart.wide for chart in charts) else f'<div class="grid">{figures}</div>'

    parts = [f'<h2>{escape(section.title)}</h2><p class="about">{escape(section.about)}</p>']
    if chart := frontier(section, styles, f"{identity}-frontier"):
        first = identity == "s1"  # the first picture belongs to the answer
        level = "h2" if first else "h3"
        heading = f"{section.title}: {chart.heading}" if first and not alone else chart.heading
        picture = f'<div class="picture"><{level}>{escape(heading)}</{level}>{block([chart])}</div>'
        parts.insert(0 if first else 1, picture)
    if section.findings:
        findings = "".join(_finding(finding) for finding in section.findings)
        parts.append(f'<h3>Findings</h3><ul class="findings">{findings}</ul>')
    if lines := round_charts(section, styles, f"{identity}-rounds"):
        numbers = folded(BEHIND, round_tables(section, f"{identity}-by-round"))
        legend = _legend(section.rows, styles, [bool(row.rounds) for row in section.rows], line=True)
        note = f'<p class="aside">{escape(NOTE)}</p>'
        parts.append(f"<h3>Round after round</h3>{legend}{block(lines)}{note}{numbers}")
    if section.rows:
        parts.append(f"<h3>Comparison</h3>{comparison(section, styles, f'{identity}-comparison')}")
    if lines := curves(section, styles, f"{identity}-curves"):
        numbers = folded(BEHIND, curve_tables(section, f"{identity}-epochs"))
        legend = _legend(section.rows, styles, [bool(row.curve or row.stages) for row in section.rows], line=True)
        parts.append(f"<h3>Training</h3>{legend}{block(lines)}{numbers}")
    if chart := histogram(section, styles, f"{identity}-spread"):
        numbers = folded(BEHIND, histogram_table(section, f"{identity}-bins"))
        parts.append(f"<h3>Distance, context by context</h3>{block([chart])}{numbers}")
    if cuts := segment_charts(section, styles, f"{identity}-segments"):
        numbers = folded(BEHIND, segment_tables(section, f"{identity}-parts"))
        legend = _legend(section.rows, styles, [bool(row.segments) for row in section.rows])
        parts.append(f"<h3>Where it wins and loses</h3>{legend}{block(cuts)}{numbers}")
    if section.samples:
        parts.append(f"<h3>What would be shown</h3>{sample_lists(section.samples)}")
    if weighed := weights(section, styles, f"{identity}-weights"):
        parts.append(f"<h3>Weights</h3>{weighed}")
    facts = definitions(section.facts) if section.facts else ""
    if behind := facts + sources(section, f"{identity}-runs"):
        parts.append(folded("Facts, settings and digests", behind, "facts"))
    return f'<section class="comparison" id="{identity}">{"".join(parts)}</section>'


def _finding(finding: CheckedClaim) -> str:
    kind, sign, words = VERDICTS[finding.holds]
    return (
        f'<li class="{kind}"><span class="tag"><span aria-hidden="true">{sign}</span> {words}</span>'
        f'<div><p class="claim">{escape(finding.claim)}</p><p class="because">{escape(finding.because)}</p></div></li>'
    )


def _legend(
    rows: Sequence[PolicyRow], styles: Sequence[SeriesStyle], shown: Sequence[bool], *, line: bool = False
) -> str:
    """Which mark is which policy."""
    entries = "".join(
        f'<li class="policy">{style.swatch(line=line)}<span>{escape(row.name)}</span></li>'
        for row, style, wanted in zip(rows, styles, shown, strict=True)
        if wanted
    )
    return f'<ul class="legend" aria-label="Legend">{entries}</ul>'


def _embedded(content: object) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _script(code: str) -> str:
    """Code that cannot end the script element it stands in."""
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")
