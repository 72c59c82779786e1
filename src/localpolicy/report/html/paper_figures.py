"""The paper's figures: a metric and JS against a hyperparameter, and bars by number of events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from localpolicy.report.html.charts import CONFIG, DARK, GREY, Datum

COLOURS = ("#0072b2", "#d98f00", "#009e73", "#882255")
PANEL = (320, 240)  # width and height


def dial(points: Sequence[Datum], *, symbol: str, floor: float | None, title: str) -> dict[str, Any]:
    """Two panels over a hyperparameter: nDCG@20 by event, and JS with its floor.

    A point is {"x", "series", "y", "low", "high"}; the series "JS" makes the second panel.
    """
    series = list(dict.fromkeys(point["series"] for point in points if point["series"] != "JS"))
    colour = alt.Color("series:N", scale=alt.Scale(domain=series, range=list(COLOURS[: len(series)])), title=None)
    metrics = [point for point in points if point["series"] != "JS"]
    left = _panel(metrics, symbol, "validation nDCG@20", colour)
    js = [point for point in points if point["series"] == "JS"]
    right = _panel(js, symbol, "validation JS, in nats", alt.value(DARK), zero=True)
    if floor is not None:
        base = alt.Chart(alt.InlineData([{"y": floor, "said": f"noise floor {floor:.3f}"}]))
        rule = base.mark_rule(color=GREY, strokeDash=[5, 4]).encode(y="y:Q")
        low = floor < max(point["y"] for point in js) / 8  # no room between it and the axis
        words = base.mark_text(align="left", dx=4, dy=-7 if low else 9, color=DARK, fontStyle="italic").encode(
            x=alt.value(0), y="y:Q", text="said:N"
        )
        right = right + rule + words
    return _spec(left | right, title)


def _panel(points: Sequence[Datum], symbol: str, title: str, colour: Any, *, zero: bool = False) -> Any:
    base = alt.Chart(alt.InlineData(list(points)))
    values = sorted({point["x"] for point in points})
    air = (values[-1] / values[0]) ** 0.06 if len(values) > 1 else 2.0  # on a log scale, the same on both sides
    scale = alt.Scale(type="log", domain=[values[0] / air, values[-1] * air], nice=False)
    x = alt.X("x:Q", scale=scale, axis=alt.Axis(values=values, format="~g"), title=symbol)
    y = alt.Y("y:Q", scale=alt.Scale(zero=zero), title=title)
    lines = base.mark_line(point=alt.OverlayMarkDef(size=60, filled=True)).encode(x=x, y=y, color=colour)
    bars = base.mark_rule(opacity=0.7).encode(x=x, y=alt.Y("low:Q", title=title), y2="high:Q", color=colour)
    return (bars + lines).properties(width=PANEL[0], height=PANEL[1])


def bars(rows: Sequence[Datum], *, policies: Sequence[str], title: str) -> dict[str, Any]:
    """Grouped bars: one panel per event, one group per bucket, stars over the best.

    A row is {"event", "bucket", "n", "place", "policy", "y", "low", "high", "stars"}.
    """
    panels = [
        _bars([row for row in rows if row["event"] == event], event, policies)
        for event in dict.fromkeys(row["event"] for row in rows)
    ]
    # Shared offsets would give the bars of one panel the other's width.
    return _spec(alt.hconcat(*panels).resolve_scale(xOffset="independent"), title)


def _bars(rows: Sequence[Datum], event: str, policies: Sequence[str]) -> Any:
    rows = [{**row, "bucket": f"{row['bucket']}|n = {row['n']:,}"} for row in rows]
    base = alt.Chart(alt.InlineData(rows))
    order = list(dict.fromkeys(row["bucket"] for row in sorted(rows, key=lambda row: row["place"])))
    axis = alt.Axis(labelAngle=0, labelExpr="split(datum.label, '|')")  # two lines
    x = alt.X("bucket:N", sort=order, title=f"{event}s per sequence (n sequences)", axis=axis)
    offset = alt.XOffset("policy:N", sort=list(policies))
    colour = alt.Color(
        "policy:N", scale=alt.Scale(domain=list(policies), range=list(COLOURS[: len(policies)])), title=None
    )
    title = f"{event} nDCG@20 per sequence"
    drawn = base.mark_bar().encode(x=x, xOffset=offset, y=alt.Y("y:Q", title=title), color=colour)
    errors = [
        base.mark_rule(color=colour, strokeWidth=width).encode(
            x=x, xOffset=offset, y=alt.Y("low:Q", title=title), y2="high:Q"
        )
        for colour, width in (("white", 4.0), ("black", 1.5))  # seen on any fill, and on paper
    ]
    stars = base.mark_text(dy=-8, fontSize=13).encode(
        x=x, xOffset=offset, y=alt.Y("high:Q", title=title), text="stars:N"
    )
    return alt.layer(drawn, *errors, stars).properties(width=PANEL[0] + 60, height=PANEL[1])


def _spec(chart: Any, title: str) -> dict[str, Any]:
    spec: dict[str, Any] = chart.properties(title=alt.Title(title, fontSize=13, fontWeight="normal")).to_dict()
    spec["config"] = CONFIG  # in place of the caller's theme
    return spec
