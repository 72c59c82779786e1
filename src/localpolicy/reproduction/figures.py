"""The paper's figures: a metric and JS against a hyperparameter, and bars by number of events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from localpolicy.measure.estimate import Interval
from localpolicy.measure.significance import Bucket
from localpolicy.report.charts import CONFIG, DARK, GREY, Datum, bar
from localpolicy.reproduction.recipe import EVENTS, POLICIES, SYMBOLS, TUNED
from localpolicy.reproduction.tables import DIALLED, PaperTable

COLOURS = ("#0072b2", "#d98f00", "#009e73", "#882255")
PANEL = (320, 240)  # width and height


def dial_spec(table: PaperTable) -> dict[str, Any]:
    """Vega-Lite spec over a hyperparameter with two panels: nDCG@20 by event, and JS with its floor."""
    symbol, shown = SYMBOLS[table.over], {name.partition(".")[0]: _points(table, name) for name in DIALLED}
    js = shown.pop("JS")
    colour = alt.Color("series:N", scale=_colours(list(shown)), title=None)
    # By value first: that is the order in which points are drawn.
    left = _panel(
        [each for at in zip(*shown.values(), strict=True) for each in at], symbol, "validation nDCG@20", colour
    )
    right = _panel(js, symbol, "validation JS, in nats", alt.value(DARK), zero=True)
    if table.floor is not None:
        floor = table.floor["validation"].mean
        base = alt.Chart(alt.InlineData([{"y": floor, "said": f"noise floor {floor:.3f}"}]))
        rule = base.mark_rule(color=GREY, strokeDash=[5, 4]).encode(y="y:Q")
        low = floor < max(point["y"] for point in js) / 8  # no room between it and the axis
        words = base.mark_text(align="left", dx=4, dy=-7 if low else 9, color=DARK, fontStyle="italic").encode(
            x=alt.value(0), y="y:Q", text="said:N"
        )
        right = right + rule + words
    return _spec(left | right, table)


def _points(table: PaperTable, name: str) -> list[Datum]:
    """Chart data of one series over the hyperparameter: nDCG@20 of an event, or JS."""
    series, _, figure = name.partition(".")
    values = {row.key: row.estimate(name, table.split) for row in table.rows}
    return [
        {"x": float(at), "series": series, "y": value.mean, **bar(Interval.from_estimate(value), figure or series)}
        for at, value in values.items()
    ]


def _panel(points: Sequence[Datum], symbol: str, title: str, colour: Any, *, zero: bool = False) -> Any:
    values = sorted({point["x"] for point in points})
    air = (values[-1] / values[0]) ** 0.06 if len(values) > 1 else 2.0  # on a log scale, the same on both sides
    scale = alt.Scale(type="log", domain=[values[0] / air, values[-1] * air], nice=False)
    x = alt.X("x:Q", scale=scale, axis=alt.Axis(values=values, format="~g"), title=symbol)
    base = alt.Chart(alt.InlineData(list(points))).encode(x=x, color=colour)
    y = alt.Y("y:Q", scale=alt.Scale(zero=zero), title=title)
    lines = base.mark_line(point=alt.OverlayMarkDef(size=60, filled=True)).encode(y=y)
    bars = base.mark_rule(opacity=0.7).encode(y=alt.Y("low:Q", title=title), y2="high:Q")
    return (bars + lines).properties(width=PANEL[0], height=PANEL[1])


def breakdown_spec(table: PaperTable) -> dict[str, Any]:
    """Vega-Lite spec of grouped bars: a panel per event, a group per bucket, stars over the best."""
    policies = [POLICIES[name] for name in TUNED if table.row(name) is not None]
    panels = [_bars(buckets, event, policies) for event in EVENTS if (buckets := table.breakdown(event))]
    # Shared offsets would give the bars of one panel the other's width.
    return _spec(alt.hconcat(*panels).resolve_scale(xOffset="independent"), table)


def _bars(buckets: Sequence[Bucket], event: str, policies: Sequence[str]) -> Any:
    rows = [
        {
            "event": event,
            "bucket": f"{bucket.label.removeprefix(f'{event} ')}|n = {estimate.n:,}",
            "n": estimate.n,
            "place": index,
            "policy": name,
            "y": estimate.mean,
            **bar(Interval.students(estimate.mean, estimate.se, estimate.n), "nDCG@20"),
            "stars": bucket.stars if bucket.best == name else "",
        }
        for index, bucket in enumerate(buckets)
        for name, estimate in bucket.means.items()
    ]
    order = list(dict.fromkeys(row["bucket"] for row in rows))
    axis = alt.Axis(labelAngle=0, labelExpr="split(datum.label, '|')")  # two lines
    x = alt.X("bucket:N", sort=order, title=f"{event}s per sequence (n sequences)", axis=axis)
    base = alt.Chart(alt.InlineData(rows)).encode(x=x, xOffset=alt.XOffset("policy:N", sort=list(policies)))
    title, colour = f"{event} nDCG@20 per sequence", alt.Color("policy:N", scale=_colours(policies), title=None)
    drawn = base.mark_bar().encode(y=alt.Y("y:Q", title=title), color=colour)
    errors = [
        base.mark_rule(color=colour, strokeWidth=width).encode(y=alt.Y("low:Q", title=title), y2="high:Q")
        for colour, width in (("white", 4.0), ("black", 1.5))  # seen on any fill, and on paper
    ]
    stars = base.mark_text(dy=-8, fontSize=13).encode(y=alt.Y("high:Q", title=title), text="stars:N")
    return alt.layer(drawn, *errors, stars).properties(width=PANEL[0] + 60, height=PANEL[1])


def _colours(names: Sequence[str]) -> alt.Scale:
    return alt.Scale(domain=list(names), range=list(COLOURS[: len(names)]))


def _spec(chart: Any, table: PaperTable) -> dict[str, Any]:
    name = f"{table.data.name}: FAST VERSION" if table.recipe.fast else table.data.name
    spec: dict[str, Any] = chart.properties(title=alt.Title(name, fontSize=13, fontWeight="normal")).to_dict()
    spec["config"] = CONFIG  # in place of the caller's theme
    return spec
