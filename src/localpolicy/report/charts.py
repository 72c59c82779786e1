"""What the charts of a page share: one colour and shape per objective, and turning Altair into a spec.

Colours are of the palettes of Okabe & Ito and of Paul Tol, which colour-blind readers can tell apart; the shape says
the same again. Policies of one objective (its values of β) differ in the fill of their points and the dash of their
lines, so that no two look the same. Every view and parameter is named by us: Altair numbers the nameless ones by a
counter of the process, and equal contents must give equal bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Literal

import altair as alt

from localpolicy.measure.estimate import Interval
from localpolicy.measure.number_text import NOTHING, known
from localpolicy.report.contents import Contents, PolicyInfo
from localpolicy.report.table import Cell, Column, Table

OBJECTIVES = {
    "mle": ("#6b7078", "circle"),
    "reward_weighted": ("#d98f00", "square"),
    "ips": ("#d55e00", "triangle-up"),
    "pg": ("#c4689a", "diamond"),
    "ips_pg": ("#882255", "triangle-down"),
    "lpi_cb": ("#0072b2", "circle"),
    "lpi_rl": ("#0072b2", "diamond"),
    "sqn": ("#009e73", "square"),
    "sac": ("#3d9fd9", "triangle-up"),
}
OTHERS = (
    ("#8a8a2b", "cross"),
    ("#332288", "triangle-right"),
    ("#2f8f80", "triangle-left"),
    ("#661100", "cross"),
    ("#aa4499", "triangle-right"),
)
DASHES: tuple[tuple[int, ...], ...] = ((1, 0), (6, 3), (2, 2), (9, 3, 2, 3), (4, 1), (12, 4), (1, 3))

Datum = dict[str, Any]
MarkType = Literal["area", "line", "point", "rect", "rule", "text"]


@dataclass(frozen=True)
class Series:
    """A policy with its colour, shape, fill and dash in charts; policies of one objective share colour and shape."""

    policy: PolicyInfo
    colour: str
    shape: str
    fill: str
    dash: tuple[int, ...]


def all_series(contents: Contents) -> list[list[Series]]:
    """Drawing styles of the policies of each section; an objective looks the same in all sections."""
    objectives = dict.fromkeys(policy.objective for section in contents.sections for policy in section.policies)
    strangers = [name for name in objectives if name not in OBJECTIVES]
    look = OBJECTIVES | dict(zip(strangers, cycle(OTHERS), strict=False))
    return [[_series(policy, look, section.policies) for policy in section.policies] for section in contents.sections]


def _series(policy: PolicyInfo, look: Mapping[str, tuple[str, str]], beside: Sequence[PolicyInfo]) -> Series:
    kin = [each.name for each in beside if each.objective == policy.objective]
    (colour, shape), index = look[policy.objective], kin.index(policy.name)
    white = 0.9 * index / (len(kin) - 1) if index else 0.0  # mixed into the fill
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    fill = "#" + "".join(f"{round(part + (255 - part) * white):02x}" for part in parts)
    return Series(policy, colour, shape, fill, DASHES[index % len(DASHES)])


NOT_THERE = {"epoch": "it was not validated there", "round": "it had stopped before"}
LABEL_LIMIT = 30  # characters of a name drawn next to its point
SHARE = re.compile(r"^([^*+]*[ .])?((HR|nDCG|MRR|coverage)(@\d+)?|effective share)$")  # figures between 0 and 1
NOT_NEGATIVE = re.compile(r"^(JS|KL|entropy)\b")

CONFIG: dict[str, Any] = {
    "font": "system-ui, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif",
    "background": "transparent",
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 10,
        "labelPadding": 6,
        "labelFlush": False,
        "domain": False,
        "ticks": False,
        "tickCount": 6,
        "gridColor": "#e4e4e0",
        "labelColor": "#5b6068",
        "titleColor": "#5b6068",
    },
    "text": {"fontSize": 12},
}

GREY, DARK = "#8a8f98", "#5b6068"  # of what is not a policy; legible on light and dark paper


@dataclass(frozen=True)
class Chart:
    """A Vega-Lite chart with its caption, title and table of numbers."""

    identity: str
    spec: dict[str, Any]
    caption: str
    title: str = ""
    heading: str = ""  # of the block it stands in, where that depends on the data
    wide: bool = False
    numbers: Table | None = None  # what it draws

    @property
    def policies(self) -> set[str]:
        return {datum["policy"] for datum in self.spec["datasets"]["values"]}


def looks(series: Sequence[Series]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Altair encodings of a policy's style, for lines and for points."""

    def of(style: str) -> dict[str, Any]:
        drawn_as = [getattr(each, style) for each in series]
        scale = alt.Scale(domain=[each.policy.name for each in series], range=drawn_as)
        return {"shorthand": "policy:N", "scale": scale, "legend": None}

    line = {"color": alt.Color(**of("colour")), "strokeDash": alt.StrokeDash(**of("dash"))}
    point = {"fill": alt.Fill(**of("fill")), "stroke": alt.Stroke(**of("colour")), "shape": alt.Shape(**of("shape"))}
    return line, point


def numbers_of(title: str, by: str, values: Sequence[Datum], *, counts: bool = False) -> Table:
    """Table of the numbers in a chart: epochs, rounds, segments or bins down, policies across."""
    names, steps = (list(dict.fromkeys(datum[field] for datum in values)) for field in ("policy", by))
    worded = any(isinstance(step, str) for step in steps)
    rows: list[list[str | Cell]] = []
    for step in steps if worded else sorted(steps):
        here = {datum["policy"]: datum for datum in values if datum[by] == step}
        rows.append([Cell(step if worded else f"{step:g}", value=step)])
        rows[-1] += [next(iter(here.values()))["n"]] if counts else []
        for name in names:
            text, *around = re.split(r" (?=[±\[])", here[name]["value_text"] if name in here else NOTHING, maxsplit=1)
            rows[-1].append(Cell(text, value=here.get(name, {}).get("value"), around="".join(around)))
    heads = [Column(by, numeric=not worded), *([Column("positions")] if counts else [])]
    return Table(
        f"{title} by {by}", [*heads, *map(Column, names)], rows, missing=NOT_THERE.get(by, "it has none there")
    )


def drawn(
    layers: Sequence[alt.Chart], data: Mapping[str, Sequence[Datum]], *, height: int, description: str
) -> dict[str, Any]:
    """Vega-Lite spec of the layers on top of each other, as wide as its container."""
    chart = alt.layer(*layers).properties(width="container", height=height, description=description)
    spec: dict[str, Any] = chart.to_dict()
    spec["datasets"] = {name: list(rows) for name, rows in data.items()}  # by hand: Altair would check every row
    spec["config"] = CONFIG  # in place of the caller's theme
    return spec


def layer(name: str, data: str, mark: MarkType, *, aria: bool = False, **style: Any) -> alt.Chart:
    """Altair layer on a named data set; with `aria` a screen reader gets each mark."""
    style |= {} if aria else {"aria": False}
    return alt.Chart(alt.NamedData(name=data), name=name, mark=alt.MarkDef(type=mark, **style))


def words(data: str, *, align: str, dx: int, dy: int) -> alt.Chart:
    """Text layer that labels the reference lines in the data set `data`."""
    place: dict[str, Any] = {"align": align, "baseline": "top", "dx": dx, "dy": dy}
    return layer(f"{data}_words", data, "text", fontStyle="italic", color=DARK, **place)


def tips(**titles: str) -> list[alt.Tooltip]:
    """Tooltips that show the given fields of a data row under these titles."""
    return [alt.Tooltip(f"{name}:N", title=said) for name, said in titles.items()]


def bar(figure: Interval, name: str, axis: str = "") -> Datum:
    """Ends of an interval's bar, cut off at 0 and 1 if the metric cannot go beyond them."""
    share = SHARE.search(name) is not None
    least = 0.0 if share or NOT_NEGATIVE.search(name) else -math.inf
    low = max(figure.low, least) if known(figure.low) else figure.mean
    high = min(figure.high, 1.0 if share else math.inf) if known(figure.high) else figure.mean
    return {f"{axis}low": float(low), f"{axis}high": float(high)}


def shortened(name: str, limit: int = LABEL_LIMIT) -> str:
    """Name cut to `limit` characters, so that it fits next to a point."""
    return name if len(name) <= limit else name[: limit - 1].rstrip() + "…"
