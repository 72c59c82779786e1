"""A whole page, put together from its parts (extra `report`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import altair as alt
import vl_convert

from localpolicy.measure.divergence import beyond_floor
from localpolicy.measure.estimate import Interval
from localpolicy.measure.off_policy.overlap import LEAST_EFFECTIVE
from localpolicy.report.contents import Contents, PolicyInfo, SampleLists, Section
from localpolicy.report.html.charts import Chart, SeriesStyle, series_styles
from localpolicy.report.html.frontier import frontier
from localpolicy.report.html.lines import NOTE, curves, round_charts
from localpolicy.report.html.page import render, table
from localpolicy.report.html.spread import histogram, segment_charts
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
)  # fmt: skip


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


Shown = tuple[Column, list[Cell]]  # a column, and its cell of each policy


def _figures(
    section: Section, column: Column, name: str, *, mark: Callable[[str], Mark | None] = lambda policy: None,
    digits: int | None = None,
) -> Shown:  # fmt: skip
    """A column of figures with intervals."""
    figures = {policy.name: section.figure(policy.name, name) for policy in section.policies}
    digits = _digits(figures.values()) if digits is None else digits
    return column, [interval_cell(figure, digits, mark(policy)) for policy, figure in figures.items()]


def _digits(figures: Iterable[Interval | None]) -> int:
    return decimals([None if figure is None else figure.mean for figure in figures])


def _policies(
    title: str, policies: Sequence[PolicyInfo], styles: Sequence[SeriesStyle], shown: Sequence[Shown], *,
    identity: str, note: str, foot: Sequence[Sequence[Cell]] = (),
) -> str:  # fmt: skip
    """One row per policy, its name beside its symbol."""
    named = zip(policies, styles, strict=True)
    names = [Cell(policy.name, value=policy.name, picture=style.swatch()) for policy, style in named]
    body = [list(cells) for cells in zip(names, *(cells for _, cells in shown), strict=True)]
    columns = [Column("policy", numeric=False), *(column for column, _ in shown)]
    return table(Table(title, columns, body, note, foot), identity=identity, sortable=True)


def comparison(section: Section, styles: Sequence[SeriesStyle], identity: str) -> str:
    """All policies side by side, by every figure that any has; the logging policy's own value below them."""
    policies, level, coverage = section.policies, section.logging_value, f"coverage@{section.lists}"
    truths = [section.figure(policy.name, "true J") for policy in policies]
    # A difference has as many decimals as the values it comes from.
    digits = _digits(truths) if any(truth and known(truth.mean) for truth in truths) else None

    def near(policy: str) -> Mark | None:
        if policy in section.unseen_by_js:
            return BLIND
        return LEVEL if beyond_floor(section.figure(policy, "JS"), section.floor) is False else None

    def sign(policy: str, name: str) -> Mark | None:
        gain = section.gains.get(policy, {}).get(name)
        return MARKS[0 if gain is None else gain.sign]

    entropies = [section.mean(policy.name, "entropy") for policy in policies]
    columns = [
        _figures(section, Column("J(π)", "true reward"), "true J"),
        _figures(
            section, Column("gain", "J(π) − J(μ)"), "true gain", digits=digits,
            mark=lambda policy: MARKS[excludes_zero(section.figure(policy, "true gain"))],
        ),
        *(
            _figures(section, Column(said), name, mark=partial(sign, name=name))
            for name, said in section.columns.items()
        ),
        _figures(section, Column("JS", "nats"), "JS", mark=near),
        _figures(section, Column("KL", "nats"), "KL"),
        _figures(section, Column("likelihood", "mean log π"), "logp"),
        (Column(coverage, "of the catalogue"), [share_cell(section.mean(each.name, coverage)) for each in policies]),
        (Column("entropy", "nats"), [number_cell(entropy, decimals(entropies, 3)) for entropy in entropies]),
    ]  # fmt: skip
    shown = [(column, cells) for column, cells in columns if any(cell.value is not None for cell in cells)]
    titles, foot = [column.title for column, _ in shown], []
    if level is not None and digits is not None:
        foot = [[word_cell("the logging policy μ"), interval_cell(level, digits), *[Cell("")] * (len(shown) - 1)]]
    note = _note(section, titles)
    return _policies("Policies side by side", policies, styles, shown, identity=identity, note=note, foot=foot)


def at_k(section: Section, styles: Sequence[SeriesStyle], identity: str) -> str:
    """Every policy at k = 5, 10 and 20; empty if none is measured there."""
    shown = [_figures(section, Column(said), name) for name, said in section.at_k.items()]
    note = "Intervals of 95 %. None of these is tested: with more columns each would need a larger difference."
    title = "Ranking at k = 5, 10 and 20"
    return _policies(title, section.policies, styles, shown, identity=identity, note=note) if shown else ""


def _note(section: Section, titles: Sequence[str]) -> str:
    said = ["Intervals of 95 %; a figure without one is exact."]
    if "gain" in titles:
        said.append("Gain: ▲ better, ▼ worse than the logging policy; the 95 % interval excludes 0.")
    if any(section.gains.values()):
        said.append(
            f"Metrics: ▲ better, ▼ worse than {section.baseline or 'the reference'}; paired t-test by sequence, "
            "p < .05, Holm-corrected over all metrics and policies of this table."
        )
    if section.likeliest:
        said.append(
            f"Marks of {', '.join(section.likeliest)} are of the weights of the best held-out likelihood, not of the "
            "figures beside them: their epochs were chosen by another figure, which raises that figure."
        )
    if "JS" in titles and section.floor:
        said.append("≈: the distance from the reference is within seed noise.")
    if section.unseen_by_js:
        said.append(
            "≈!: within seed noise by JS, but its ranking differs beyond chance. JS compares whole distributions; it "
            "hardly sees the order of the first few items. Read it beside the metrics and the likelihood."
        )
    if "JS" in titles and section.reference:
        said.append(f"JS and KL are taken from {section.reference}.")
    return " ".join(said)


def weights(section: Section, styles: Sequence[SeriesStyle], identity: str) -> str:
    """How the objective weighed the log at the selected epoch; empty if no policy has weights."""
    weighed = [(policy, style) for policy, style in zip(section.policies, styles, strict=True) if policy.weights]
    if not weighed:
        return ""
    rows = [row for row, _ in weighed]
    shown: list[Shown] = []
    if any(row.selected_epoch is not None for row in rows):
        shown.append((Column("epoch kept"), [number_cell(row.selected_epoch, 0) for row in rows]))
    for key, name in SHARES.items():
        if any(key in row.weights for row in rows):
            cells = [share_cell(row.weights.get(key), _scarce(key, row)) for row in rows]
            shown.append((Column(name, "of positions"), cells))
    for key, name in SIZES.items():
        if any(key in row.weights for row in rows):
            sizes = [row.weights.get(key) for row in rows]
            shown.append((Column(name, "weight"), [number_cell(size, decimals([size], 3)) for size in sizes]))
    note = (
        "At the epoch kept. A small effective share (marked ! below "
        f"{LEAST_EFFECTIVE:.0%}) or a large clipped share means that β has less effect than its value suggests."
    )
    drawn = [style for _, style in weighed]
    return _policies("Weights of logged positions", rows, drawn, shown, identity=identity, note=note)


def _scarce(key: str, policy: PolicyInfo) -> Mark | None:
    return SCARCE if key == "effective_share" and policy.weights.get(key, 1.0) < LEAST_EFFECTIVE else None


def sources(section: Section, identity: str) -> str:
    """The folder and digest of each policy's run; empty if no policy has one."""
    rows = [policy for policy in section.policies if policy.run or policy.digest or policy.selected_by]
    if not rows:
        return ""
    columns = [Column(name, numeric=False) for name in ("policy", "epoch kept by", "run", "digest of its weights")]
    body = [[word_cell(row.name), Cell(row.selected_by or NOTHING), _code(row.run), _code(row.digest)] for row in rows]
    return table(Table("Runs behind the policies", columns, body), identity=identity)


def _code(content: str | None) -> Cell:
    return Cell(content, value=content, code=True) if content else Cell(NOTHING)


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
            sources(section, f"{name}-runs"),
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

    blocks = []
    if charts := round_charts(section, styles, f"{name}-rounds"):
        served = legend(lambda policy: policy.name in in_rounds, line=True)
        blocks.append(Block("Round after round", charts, served, note=NOTE))
    if section.policies:
        blocks.append(Block("Comparison", table=comparison(section, styles, f"{name}-comparison")))
    if ranked := at_k(section, styles, f"{name}-at-k"):
        blocks.append(Block("At other k", table=ranked))
    if charts := curves(section, styles, f"{name}-curves"):
        trained = legend(lambda policy: policy.curve or policy.stages, line=True)
        blocks.append(Block("Training", charts, trained))
    if chart := histogram(section, styles, f"{name}-spread"):
        blocks.append(Block("Distance, context by context", [chart]))
    if charts := segment_charts(section, styles, f"{name}-segments"):
        blocks.append(Block("Where it wins and loses", charts, legend(lambda policy: policy.name in in_segments)))
    if section.samples:
        blocks.append(Block("What would be shown", samples=section.samples))
    if weighed := weights(section, styles, f"{name}-weights"):
        blocks.append(Block("Weights", table=weighed))
    return blocks


def _embedded(content: object) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _script(code: str) -> str:
    """Code that cannot end the script element it stands in."""
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")
