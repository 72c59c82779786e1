"""A whole page, put together from its parts (extra `report`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape

import altair as alt
import vl_convert

from localpolicy.measure.divergence import beyond_floor
from localpolicy.measure.estimate import Interval
from localpolicy.measure.off_policy.overlap import LEAST_EFFECTIVE
from localpolicy.report.contents import CheckedClaim, Contents, PolicyRow, Section
from localpolicy.report.html.charts import Chart, SeriesStyle, series_styles
from localpolicy.report.html.frontier import frontier
from localpolicy.report.html.lines import NOTE, curve_tables, curves, round_charts, round_tables
from localpolicy.report.html.page import asset, definitions, figure, folded, sample_lists, skeleton, table
from localpolicy.report.html.spread import histogram, histogram_table, segment_charts, segment_tables
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


@cache
def library() -> str:
    """Vega, Vega-Lite and vega-embed, in the version that Altair writes for, if it is bundled."""
    wanted = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    version = wanted if wanted in vl_convert.get_vegalite_versions() else None
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version))


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
