"""Distance from the logging policy: reward against it, so that the dial β is seen, and its bars context by context."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import altair as alt

from localpolicy.measure.estimate import Interval
from localpolicy.report import charts
from localpolicy.report.charts import COLOUR, DARK, GREY, Chart, Datum, Series, drawn, layer, shortened, words
from localpolicy.report.contents import PolicyInfo, Section
from localpolicy.report.table import decimals, fixed, interval_text, joined, known, percent

HEIGHT = 420
SAID = 6  # names in a caption
TRUTH = "true J"


def upright(section: Section) -> str | None:
    """The figure that stands upright: the truth where it is known, else the one that decides, else the first."""
    names = (TRUTH, section.main, *section.columns)
    return next((name for name in names if any(section.figure(each.name, name) for each in section.policies)), None)


def frontier(section: Section, series: Sequence[Series], identity: str) -> Chart | None:
    """One point per policy that has both a figure and a divergence."""
    figure = upright(section)
    if figure is None:
        return None
    truth, axis = figure == TRUTH, "J(π)" if figure == TRUTH else section.said(figure)
    shown = [
        (each, y, x)
        for each in series
        if (y := section.figure(each.policy.name, figure)) is not None and known(y.mean)
        if (x := section.figure(each.policy.name, "JS")) is not None and known(x.mean)
    ]
    if not shown:
        return None
    digits_y, digits_x = decimals([y.mean for _, y, _ in shown]), decimals([x.mean for _, _, x in shown])
    points: list[Datum] = [
        {
            **each.datum,
            "objective": each.policy.objective,
            "beta": 0.0 if each.policy.beta is None else float(each.policy.beta),
            **_bounds("x", x, "JS"),
            **_bounds("y", y, axis),
            "x_text": interval_text(x, digits_x),
            "y_text": interval_text(y, digits_y),
            "gain_text": interval_text(section.figure(each.policy.name, "true gain")),
        }
        for each, y, x in shown
    ]
    level, floor = section.logging_value if truth else None, section.floor
    data = {"points": points, "dials": _dials(points), "floor": list[Datum](), "level": list[Datum]()}
    if floor is not None and known(floor.mean):
        data["floor"] = [{"from": 0.0, **_bounds("x", floor, "JS"), "said": _floor_text(section)}]
    if level is not None and known(level.mean):
        said = f"J(μ) = {interval_text(level, digits_y)}"
        data["level"] = [{**_bounds("y", level, "J(π)"), "said": said}]
    best, nearest = max(shown, key=lambda entry: entry[1].mean), min(shown, key=lambda entry: entry[2].mean)
    summary = " ".join(
        f"{what}: {each.policy.name} with {fixed(y.mean, digits_y)} at JS {fixed(x.mean, digits_x)}."
        for what, (each, y, x) in ((f"Highest {axis}", best), ("Nearest to the reference", nearest))
    )
    description = f"Scatter of {axis} against JS divergence, {len(shown)} policies. {summary}"
    spec = drawn(_layers(section, axis, data, level), data, height=HEIGHT, description=description)
    heading = f"{'Reward' if truth else axis} against distance from the log"
    caption = f"{summary} {_caption(section, points, dials=bool(data['dials']))}"
    return Chart(identity, spec, caption, HEIGHT, heading=heading, wide=True)


def _floor_text(section: Section) -> str:
    """The noise floor in words, with as many decimals as the divergences beside it."""
    distances = [section.mean(policy.name, "JS") for policy in section.policies]
    digits = decimals([*distances, section.floor.mean if section.floor else None])
    return f"noise floor {interval_text(section.floor, digits)}"


def _caption(section: Section, points: Sequence[Datum], *, dials: bool) -> str:
    said = []
    if section.reference:
        said.append(f"Divergence is taken from {section.reference}.")
    if section.floor:
        said.append(
            "Left of the noise floor JS cannot tell a policy from another seed of the reference; its ranking may "
            "still differ."
        )
    if dials:
        said.append("A line joins the policies of one objective in order of β.")
    said.append("Bars are 95 % intervals; where none is seen, it is smaller than the point or the figure is exact.")
    if len(points) > 12:
        said.append("Names that find no room are left out: point at a mark, or look it up in the table.")
    drawn_keys = {point["key"] for point in points}
    left = [shortened(policy.name) for key, policy in enumerate(section.policies) if key not in drawn_keys]
    more = [f"{len(left) - SAID} more"] if len(left) > SAID else []
    if left:
        said.append(f"Not drawn, because a figure or a divergence is missing: {joined(left[:SAID] + more)}.")
    return " ".join(said)


def _dials(points: Sequence[Datum]) -> list[Datum]:
    """The line of each objective that stands there with at least two values of β, in its order."""
    by_objective: dict[str, list[Datum]] = {}
    for point in points:
        if point["beta"]:
            by_objective.setdefault(point["objective"], []).append(point)
    return [
        {"objective": name, "colour": point["colour"], "order": order, "x": point["x"], "y": point["y"]}
        for name, members in by_objective.items()
        if len({point["beta"] for point in members}) > 1
        for order, point in enumerate(sorted(members, key=lambda point: (point["beta"], point["key"])))
    ]


def _bounds(name: str, interval: Interval, figure: str) -> Datum:
    return {name: float(interval.mean), **charts.bar(interval, figure, f"{name}_")}


def _layers(section: Section, axis: str, data: dict[str, list[Datum]], level: Interval | None) -> list[alt.Chart]:
    """The noise floor, the level of J(μ), and the policies with their intervals and names."""
    floor, points = section.floor, data["points"]
    widths = [point["x_high"] for point in points] + ([floor.high] if floor and known(floor.high) else [])
    heights = [point[end] for point in points for end in ("y_low", "y_high")]
    heights += [value for value in (level.low, level.mean, level.high) if known(value)] if level else []
    bottom, top = min(heights), max(heights)
    air = 0.12 * (top - bottom) or 0.1 * abs(top) or 1.0
    left, right = min(0.0, *(point["x_low"] for point in points)), max(widths) * 1.1 or 0.1
    across = alt.Scale(domain=[left, right], nice=False)
    along = alt.Scale(domain=[bottom - air, top + air], nice=False, zero=False)

    def of_x(field: str) -> alt.X:
        return alt.X(f"{field}:Q", scale=across)

    def of_y(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", scale=along)

    layers = []
    if floor:  # a shade up to it, a rule at it, and its name
        layers = [
            layer("floor_shade", "floor", "rect", color=GREY, opacity=0.13).encode(x=of_x("from"), x2="x:Q"),
            layer("floor_band", "floor", "rect", color=GREY, opacity=0.22).encode(x=of_x("x_low"), x2="x_high:Q"),
            layer("floor_rule", "floor", "rule", color=GREY, strokeWidth=1.2).encode(x=of_x("x")),
            words("floor", align="left", dx=6, dy=4).encode(x=of_x("x"), y=alt.value(0), text="said:N"),
        ]
    if level:
        layers += [
            layer("level_band", "level", "rect", color=GREY, opacity=0.15).encode(y=of_y("y_low"), y2="y_high:Q"),
            layer("level_rule", "level", "rule", color=DARK, strokeDash=[5, 4]).encode(y=of_y("y")),
            words("level", align="right", dx=-4, dy=5).encode(y=of_y("y"), x=alt.value("width"), text="said:N"),
        ]
    x = alt.X("x:Q", scale=across, title="JS divergence from the reference μ̂, in nats")
    y = alt.Y("y:Q", scale=along, title="true expected reward J(π)" if axis == "J(π)" else axis)
    gained = any(section.figure(policy.name, "true gain") for policy in section.policies)
    tips = charts.tips(policy="policy", y_text=axis, **({"gain_text": "gain over μ"} if gained else {}), x_text="JS")
    if data["dials"]:  # lines without any point break the placing of names
        joins = layer("dials", "dials", "line", strokeWidth=1.6, opacity=0.55)
        layers.append(joins.encode(x=x, y=y, order="order:Q", detail="objective:N", color=COLOUR))
    bars = [layer(name, "points", "rule", strokeWidth=1.4, opacity=0.7) for name in ("across", "along")]
    marks = layer("points", "points", "point", aria=True, size=95, filled=True, strokeWidth=1.6, opacity=1)
    # The page's script finds room for each name. Policies' colours are too light for letters of this size.
    names = layer("names", "points", "text", fontSize=12, color=DARK)
    return [
        *layers,
        bars[0].encode(x=of_x("x_low"), x2="x_high:Q", y=y, color=COLOUR),
        bars[1].encode(x=x, y=of_y("y_low"), y2="y_high:Q", color=COLOUR),
        marks.encode(x=x, y=y, tooltip=tips, **charts.LOOK),
        names.encode(x=x, y=y, text="label:N"),
    ]


# ---------------------------------------------------------------------- context by context


ROW = 44  # pixels
TALLEST = 0.86  # of a row
AIR = 0.4  # of a row, for the words above
TICKS = [digit * 10**power for power in range(-9, 1) for digit in (1, 2, 5)]


def histogram(section: Section, series: Sequence[Series], identity: str) -> Chart | None:
    """Bars of the share of contexts by JS, one row for every policy that has them."""
    known_rows = [each for each in series if _total(each.policy)]
    if not known_rows:
        return None
    rows = [replace(each, key=key) for key, each in enumerate(known_rows)]
    every = [part for each in rows for part in each.policy.js_histogram]
    digits = decimals([min(end - start for start, end, _ in every)], 2)  # tell the narrowest bins apart
    bins: list[Datum] = [
        {
            "key": each.key,
            "from": float(start),
            "to": float(end),
            "base": -float(each.key),
            "top": -float(each.key) + TALLEST * count / max(many for _, _, many in each.policy.js_histogram),
            "range": f"{fixed(start, digits)} to {fixed(end, digits)}",
            "value": count / _total(each.policy),
            "value_text": percent(count / _total(each.policy)),
            "contexts": f"{count:,}",
        }
        for each in rows
        for start, end, count in each.policy.js_histogram
    ]
    furthest = max(end for _, end, _ in every)
    ticks = [0, *(value for value in TICKS if furthest / 300 < value <= furthest)]
    x = alt.X(
        "from:Q",
        title="JS divergence of a context, in nats",
        scale=alt.Scale(type="sqrt", domain=[0.0, furthest], nice=False),
        # So many ticks are asked for, else the library thins the values.
        axis=alt.Axis(values=ticks, tickCount=100, format="~g", labelOverlap="greedy", labelSeparation=6),
    )
    said = ", ".join(f"'{-each.key}': {json.dumps(shortened(each.policy.name, 24))}" for each in rows)
    y = alt.Y(
        "base:Q",
        title=None,
        scale=alt.Scale(domain=[-(len(rows) - 1) - 0.04, 1.0 + AIR], nice=False, zero=False),
        axis=alt.Axis(
            values=[-each.key for each in rows], tickCount=10 * len(rows), labelExpr=f"{{{said}}}['' + datum.value]",
            labelBaseline="bottom", labelLimit=170, labelOverlap=False,
        ),
    )  # fmt: skip
    bars = charts.styled("bars", "bins", "rect", opacity=0.8, strokeWidth=0.5)
    tips = charts.tips(policy="policy", range="range", value_text="share", contexts="contexts")
    layers = [bars.encode(x=x, x2="to:Q", y=y, y2="top:Q", color=COLOUR, tooltip=tips)]
    data = {"bins": [datum for datum in bins if datum["value"]], "styles": [each.datum for each in rows]}
    floor = section.floor
    if floor and known(floor.mean) and floor.mean <= furthest:
        data["floor"] = [{"from": float(floor.mean), "said": _floor_text(section)}]
        layers += [
            layer("floor_rule", "floor", "rule", color=DARK, strokeDash=[5, 4]).encode(x=x),
            words("floor", align="left", dx=6, dy=0).encode(x=x, y=alt.value(0), text="said:N"),
        ]
    height = round(ROW * (len(rows) + AIR))
    description = f"Histograms of the JS divergence over contexts, one row for each of {len(rows)} policies."
    caption = (
        "Share of held-out contexts by their divergence from the reference, on a square-root scale; each row is scaled "
        "to its own tallest bar."
    )
    if floor:
        caption += " The floor is the mean divergence between two estimates of the logging policy."
    spec = drawn(layers, data, height=height, description=description)
    numbers = charts.numbers_of("Share of contexts", "range", rows, bins)
    return Chart(identity, spec, caption, height, wide=True, numbers=numbers)


def _total(policy: PolicyInfo) -> int:
    return sum(count for _, _, count in policy.js_histogram)
