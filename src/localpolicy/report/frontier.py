"""Distance from the logging policy: reward against it, so that the dial β is seen, and its bars context by context."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import altair as alt

from localpolicy.measure.estimate import Interval
from localpolicy.measure.number_text import NOTHING, decimals, fixed, interval_text, joined, known, percent, sentences
from localpolicy.measure.significance import Paired
from localpolicy.report import charts
from localpolicy.report.charts import DARK, GREY, Chart, Datum, Series, drawn, layer, shortened, words
from localpolicy.report.contents import Section

HEIGHT = 420
SAID = 6  # names in a caption
TRUTH = "true J"


def upright(section: Section) -> str | None:
    """Name of the metric on the vertical axis: the true J, else the deciding metric, else the first column."""
    names = (TRUTH, section.main, *section.columns)
    return next((name for name in names if any(section.figure(each.name, name) for each in section.policies)), None)


def frontier(section: Section, series: Sequence[Series], identity: str) -> Chart | None:
    """Chart of reward against divergence, one point per policy; None if no policy has both."""
    figure = upright(section) or ""
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
    # Where there is little room, names go first to policies that were trained to be judged, then to the best.
    order = sorted(
        shown,
        key=lambda one: (one[0].policy.run is None, one[0].policy.name == section.baseline, -one[1].mean),
    )
    places = {each.policy.name: place for place, (each, _, _) in enumerate(order)}
    betas = defaultdict[str, set[float]](set)
    for each, _, _ in shown:
        betas[each.policy.objective] |= {float(each.policy.beta)} if each.policy.beta else set()
    points: list[Datum] = [
        {
            "policy": each.policy.name,
            "label": shortened(each.policy.name),
            "place": places[each.policy.name],
            "objective": each.policy.objective,
            "beta": each.policy.beta,
            "dial": bool(each.policy.beta) and len(betas[each.policy.objective]) > 1,
            "colour": each.colour,
            **_bounds("x", x, "JS"),
            **_bounds("y", y, axis),
            "x_text": interval_text(x, digits_x),
            "y_text": interval_text(y, digits_y),
            "gain_text": interval_text(section.figure(each.policy.name, "true gain")),
        }
        for each, y, x in shown
    ]
    data = {"points": points, "floor": list[Datum](), "level": list[Datum]()}
    if section.floor is not None and known(section.floor.mean):
        data["floor"] = [{"from": 0.0, **_bounds("x", section.floor, "JS"), "said": _floor_text(section)}]
    if truth and section.logging_value is not None and known(section.logging_value.mean):
        said = f"J(μ) = {interval_text(section.logging_value, digits_y)}"
        data["level"] = [{**_bounds("y", section.logging_value, "J(π)"), "said": said}]
    best, nearest = max(shown, key=lambda entry: entry[1].mean), min(shown, key=lambda entry: entry[2].mean)
    summary = " ".join(
        f"{what}: {each.policy.name} with {fixed(y.mean, digits_y)} at JS {fixed(x.mean, digits_x)}."
        for what, (each, y, x) in ((f"Highest {axis}", best), ("Nearest to the reference", nearest))
    )
    description = f"Scatter of {axis} against JS divergence, {len(shown)} policies. {summary}"
    spec = drawn(_layers(series, axis, data), data, height=HEIGHT, description=description)
    heading = f"{'Reward' if truth else axis} against distance from the log"
    return Chart(identity, spec, f"{summary} {_caption(section, points)}", heading=heading, wide=True)


def _floor_text(section: Section) -> str:
    """Text of the noise floor, with as many decimals as the divergences next to it."""
    distances = [section.mean(policy.name, "JS") for policy in section.policies]
    digits = decimals([*distances, section.floor.mean if section.floor else None])
    return f"noise floor {interval_text(section.floor, digits)}"


def _caption(section: Section, points: Sequence[Datum]) -> str:
    names = {point["policy"] for point in points}
    left = [shortened(policy.name) for policy in section.policies if policy.name not in names]
    left = left[:SAID] + ([f"{len(left) - SAID} more"] if len(left) > SAID else [])
    return sentences({
        f"Divergence is taken from {section.reference}.": section.reference,
        "Left of the noise floor JS cannot distinguish a policy from another seed of the reference; its ranking may "
        "still differ.": section.floor,
        "A line joins the policies of one objective in order of β.": any(point["dial"] for point in points),
        "Bars are 95 % intervals; where none is seen, it is smaller than the point or the figure is exact.": True,
        "Names that find no room are left out: point at a mark, or look it up in the table.": len(points) > 12,
        f"Not drawn, because a figure or a divergence is missing: {left and joined(left)}.": left,
    })  # fmt: skip


def _bounds(name: str, interval: Interval, figure: str) -> Datum:
    return {name: float(interval.mean), **charts.bar(interval, figure, f"{name}_")}


def _layers(series: Sequence[Series], axis: str, data: dict[str, list[Datum]]) -> list[alt.Chart]:
    """Chart layers: the noise floor, the level of J(μ), and the policies with intervals and names."""
    points, floor, level = data["points"], data["floor"], data["level"]
    heights = [each[end] for each in points + level for end in ("y_low", "y_high")]
    bottom, top = min(heights), max(heights)
    air = 0.12 * (top - bottom) or 0.1 * abs(top) or 1.0
    left, right = min(0.0, *(each["x_low"] for each in points)), max(each["x_high"] for each in points + floor)
    across = alt.Scale(domain=[left, right * 1.1 or 0.1], nice=False)
    along = alt.Scale(domain=[bottom - air, top + air], nice=False, zero=False)

    def of_x(field: str) -> alt.X:
        return alt.X(f"{field}:Q", scale=across, title="JS divergence from the reference μ̂, in nats")

    def of_y(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", scale=along, title="true expected reward J(π)" if axis == "J(π)" else axis)

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
    gained = {"gain_text": "gain over μ"} if any(point["gain_text"] != NOTHING for point in points) else {}
    tips = charts.tips(policy="policy", y_text=axis, **gained, x_text="JS")
    x, y, (line, point) = of_x("x"), of_y("y"), charts.looks(series)
    if any(each["dial"] for each in points):  # lines without any point break the placing of names
        joins = layer("dials", "points", "line", strokeWidth=1.6, opacity=0.55).transform_filter("datum.dial")
        colour = alt.Color("colour:N", scale=None)
        layers.append(joins.encode(x=x, y=y, order="beta:Q", detail="objective:N", color=colour))
    bars = [layer(name, "points", "rule", strokeWidth=1.4, opacity=0.7) for name in ("across", "along")]
    marks = layer("points", "points", "point", aria=True, size=95, filled=True, strokeWidth=1.6, opacity=1)
    # The page's script finds room for each name. Policies' colours are too light for letters of this size.
    names = layer("names", "points", "text", fontSize=12, color=DARK)
    return [
        *layers,
        bars[0].encode(x=of_x("x_low"), x2="x_high:Q", y=y, color=line["color"]),
        bars[1].encode(x=x, y=of_y("y_low"), y2="y_high:Q", color=line["color"]),
        marks.encode(x=x, y=y, tooltip=tips, **point),
        names.encode(x=x, y=y, text="label:N"),
    ]


# ---------------------------------------------------------------------- one event against another


def trade(section: Section, series: Sequence[Series], identity: str) -> Chart | None:
    """Chart of gains in one event against gains in another, with a line per objective over β."""
    across, along = (list(section.traded)[1], section.traded[0]) if len(section.traded) > 1 else ("", "")
    shown = [each for each in series if {across, along} <= section.gains.get(each.policy.name, {}).keys()]
    if len(shown) < 2 or not across:
        return None
    both = {each.policy.name: section.gains[each.policy.name] for each in shown}
    digits = decimals([gains[figure].difference for gains in both.values() for figure in (across, along)])
    betas = Counter(each.policy.objective for each in shown if each.policy.beta)
    points: list[Datum] = [{
        "policy": each.policy.name,
        "label": shortened(each.policy.name),
        "place": place,
        "objective": each.policy.objective,
        "beta": each.policy.beta,
        "dial": bool(each.policy.beta) and betas[each.policy.objective] > 1,
        "colour": each.colour,
        **_gained("x", both[each.policy.name][across], digits),
        **_gained("y", both[each.policy.name][along], digits),
    } for place, each in enumerate(shown)]  # fmt: skip
    data = {"points": points, "base": [{"x": 0.0, "y": 0.0, "said": section.baseline}]}
    titles = {"x": f"gain in {section.said(across)}", "y": f"gain in {section.said(along)}"}

    def axis(name: str) -> dict[str, Any]:
        ends = [0.0, *(point[f"{name}_{end}"] for point in points for end in ("low", "high"))]
        air = 0.08 * (max(ends) - min(ends)) or 0.01
        return {"scale": alt.Scale(domain=[min(ends) - air, max(ends) + air], nice=False), "title": titles[name]}

    x, y, (line, point) = alt.X("x:Q", **axis("x")), alt.Y("y:Q", **axis("y")), charts.looks(shown)
    layers = [
        layer("base_across", "base", "rule", color=DARK, strokeDash=[5, 4]).encode(y=y),
        layer("base_along", "base", "rule", color=DARK, strokeDash=[5, 4]).encode(x=x),
        words("base", align="left", dx=4, dy=4).encode(x=x, y=y, text="said:N"),
    ]
    if any(each["dial"] for each in points):
        joins = layer("dials", "points", "line", strokeWidth=1.6, opacity=0.55).transform_filter("datum.dial")
        colour = alt.Color("colour:N", scale=None)
        layers.append(joins.encode(x=x, y=y, order="beta:Q", detail="objective:N", color=colour))
    bars = layer("across", "points", "rule", opacity=0.5), layer("along", "points", "rule", opacity=0.5)
    tips = charts.tips(policy="policy", y_text=titles["y"], x_text=titles["x"])
    layers += [
        bars[0].encode(x=alt.X("x_low:Q", **axis("x")), x2="x_high:Q", y=y, color=line["color"]),
        bars[1].encode(x=x, y=alt.Y("y_low:Q", **axis("y")), y2="y_high:Q", color=line["color"]),
        layer("points", "points", "point", aria=True, size=95, filled=True, opacity=1).encode(
            x=x, y=y, tooltip=tips, **point
        ),
        layer("names", "points", "text", fontSize=12, color=DARK).encode(x=x, y=y, text="label:N"),
    ]
    description = f"Scatter of the {titles['y']} against the {titles['x']}, {len(points)} policies."
    spec = drawn(layers, data, height=HEIGHT, description=description)
    caption = (
        f"Gains over {section.baseline}, where the dashed lines cross; bars are 95 % intervals, corrected as in the "
        "table. Up and to the right is better in both events; a line joins the values of β of one objective."
    )
    heading = f"{section.said(along)} against {section.said(across)}"
    return Chart(identity, spec, caption, heading=heading, wide=True)


def _gained(name: str, gain: Paired, digits: int) -> Datum:
    """Chart data of a gain and its interval on one axis."""
    interval = Interval(gain.difference, gain.low, gain.high)
    ends = {f"{name}_low": float(gain.low), f"{name}_high": float(gain.high)}
    return {name: float(gain.difference), **ends, f"{name}_text": interval_text(interval, digits, signed=True)}


# ---------------------------------------------------------------------- context by context


ROW = 44  # pixels
TALLEST = 0.86  # of a row
AIR = 0.4  # of a row, for the words above
TICKS = [digit * 10**power for power in range(-9, 1) for digit in (1, 2, 5)]


def histogram(section: Section, series: Sequence[Series], identity: str) -> Chart | None:
    """Chart of the share of contexts by JS, one row per policy; None without any."""
    histograms = {each.policy.name: each.policy.js_histogram for each in series}
    totals = {name: sum(count for *_, count in bars) for name, bars in histograms.items()}
    rows = {name: bars for name, bars in histograms.items() if totals[name]}
    if not rows:
        return None
    every = [part for bars in rows.values() for part in bars]
    digits = decimals([min(end - start for start, end, _ in every)], 2)  # tell the narrowest bins apart
    bins: list[Datum] = [
        {
            "policy": name,
            "from": float(start),
            "to": float(end),
            "base": -float(place),
            "top": -float(place) + TALLEST * count / max(many for *_, many in bars),
            "range": f"{fixed(start, digits)} to {fixed(end, digits)}",
            "value": count / totals[name],
            "value_text": percent(count / totals[name]),
            "contexts": f"{count:,}",
        }
        for place, (name, bars) in enumerate(rows.items())
        for start, end, count in bars
    ]
    furthest = max(end for _, end, _ in every)
    ticks = [0, *(value for value in TICKS if furthest / 300 < value <= furthest)]
    x = alt.X(
        "from:Q",
        title="JS divergence of a context, in nats",
        scale=alt.Scale(type="sqrt", domain=[0.0, furthest], nice=False),
        # This many ticks are asked for, else the library thins the values.
        axis=alt.Axis(values=ticks, tickCount=100, format="~g", labelOverlap="greedy", labelSeparation=6),
    )
    labels = json.dumps([shortened(name, 24) for name in rows])
    y = alt.Y(
        "base:Q",
        title=None,
        scale=alt.Scale(domain=[-(len(rows) - 1) - 0.04, 1.0 + AIR], nice=False, zero=False),
        axis=alt.Axis(
            values=[-place for place in range(len(rows))], tickCount=10 * len(rows), labelLimit=170, labelOverlap=False,
            labelExpr=f"{labels}[-datum.value]", labelBaseline="bottom",
        ),
    )  # fmt: skip
    tips = charts.tips(policy="policy", range="range", value_text="share", contexts="contexts")
    line, _ = charts.looks(series)
    drawn_bars = layer("bars", "bins", "rect", opacity=0.8, strokeWidth=0.5)
    layers = [drawn_bars.encode(x=x, x2="to:Q", y=y, y2="top:Q", color=line["color"], tooltip=tips)]
    data = {"bins": [datum for datum in bins if datum["value"]]}
    caption = (
        "Share of held-out contexts by their divergence from the reference, on a square-root scale; each row is scaled "
        "to its own tallest bar."
    )
    if floor := section.floor:
        caption += " The floor is the mean divergence between two estimates of the logging policy."
    if floor and known(floor.mean) and floor.mean <= furthest:
        data["floor"] = [{"from": float(floor.mean), "said": _floor_text(section)}]
        layers += [
            layer("floor_rule", "floor", "rule", color=DARK, strokeDash=[5, 4]).encode(x=x),
            words("floor", align="left", dx=6, dy=0).encode(x=x, y=alt.value(0), text="said:N"),
        ]
    description = f"Histograms of the JS divergence over contexts, one row for each of {len(rows)} policies."
    spec = drawn(layers, data, height=round(ROW * (len(rows) + AIR)), description=description)
    return Chart(identity, spec, caption, wide=True, numbers=charts.numbers_of("Share of contexts", "range", bins))
