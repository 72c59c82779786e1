"""What the charts of a page share: a chart with its words, a policy's style as data, and turning Altair into a spec.

Every view and parameter is named by us: Altair numbers the nameless ones by a counter of the process, and equal
contents must give equal bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import altair as alt

from localpolicy.report.contents import PolicyRow
from localpolicy.report.html.palette import SeriesStyle

Datum = dict[str, Any]
STYLE = ("policy", "label", "colour", "fill", "shape", "dash")
LABEL_LIMIT = 30  # characters of a name drawn beside its point

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

COLOUR = alt.Color("colour:N", scale=None)
FILL = alt.Fill("fill:N", scale=None)
STROKE = alt.Stroke("colour:N", scale=None)
SHAPE = alt.Shape("shape:N", scale=None)
DASH = alt.StrokeDash("dash:N", scale=None)


@dataclass(frozen=True)
class Chart:
    """A drawing and the words that go with it."""

    identity: str
    spec: dict[str, Any]
    caption: str
    height: int
    title: str = ""
    heading: str = ""  # of the block it stands in, where that depends on the data
    wide: bool = False


def drawn(
    layers: Sequence[alt.Chart], data: Mapping[str, Sequence[Datum]], *, height: int, description: str
) -> dict[str, Any]:
    """Layers over one another as a Vega-Lite spec that takes the width it is given."""
    chart = alt.layer(*layers).properties(width="container", height=height, description=description)
    spec: dict[str, Any] = chart.to_dict()
    spec["datasets"] = {name: list(rows) for name, rows in data.items()}  # by hand: Altair would check every row
    spec["config"] = CONFIG  # in place of the caller's theme
    return spec


def layer(name: str, data: str) -> alt.Chart:
    """A named view of a named data set."""
    return alt.Chart(alt.NamedData(name=data), name=name)


def styled(name: str, data: str) -> alt.Chart:
    """The same, where rows know their policy by its `key` and the data set `styles` says the rest."""
    styles = alt.LookupData(data=alt.NamedData(name="styles"), key="key", fields=list(STYLE))
    return layer(name, data).transform_lookup(lookup="key", from_=styles)


def style_of(row: PolicyRow, style: SeriesStyle, key: int) -> Datum:
    """Which policy a row is about, and how it is drawn."""
    return {
        "policy": row.name,
        "key": key,
        "label": shortened(row.name),
        "colour": style.colour,
        "fill": style.fill,
        "shape": style.shape,
        "dash": list(style.dash),
    }


def shortened(name: str, limit: int = LABEL_LIMIT) -> str:
    """A name that fits beside a point."""
    return name if len(name) <= limit else name[: limit - 1].rstrip() + "…"


def domain(values: Sequence[float], *, padding: float = 0.08) -> list[float]:
    """From the smallest to the largest value, with some padding."""
    low, high = min(values), max(values)
    air = padding * (high - low) or 0.1 * abs(high) or 1.0
    return [low - air, high + air]


def whole_ticks(first: float, last: float) -> list[int]:
    """Whole, distinct ticks of a count: a number format alone would write 1.5 as a second 2."""
    most = CONFIG["axis"]["tickCount"]  # more are thinned by the library
    steps = (digit * 10**power for power in count() for digit in (1, 2, 5))
    step = next(step for step in steps if last - first < most * step)
    return list(range(math.ceil(first / step) * step, math.floor(last) + 1, step))
