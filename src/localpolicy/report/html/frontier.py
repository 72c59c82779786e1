"""The frontier: reward against the distance from the logging policy, so that the dial β is seen."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from localpolicy.measure.estimate import Interval
from localpolicy.report.contents import Section
from localpolicy.report.html.charts import (
    COLOUR,
    DARK,
    GREY,
    LOOK,
    Chart,
    Datum,
    SeriesStyle,
    bar,
    domain,
    drawn,
    layer,
    shortened,
    style_of,
    words,
)  # fmt: skip
from localpolicy.report.numbers import decimals, fixed, floor_text, interval_text, joined, known

HEIGHT = 420
SAID = 6  # names in a caption


TRUTH = "true J"


def upright(section: Section) -> str | None:
    """The figure that stands upright: the truth where it is known, else the one that decides, else the first."""
    measured = [
        name
        for name in (TRUTH, section.main, *section.columns)
        if any(section.figure(policy.name, name) for policy in section.policies)
    ]
    return measured[0] if measured else None


def frontier(section: Section, styles: Sequence[SeriesStyle], identity: str) -> Chart | None:
    """One point per policy that has both a figure and a divergence."""
    figure = upright(section)
    if figure is None:
        return None
    truth, axis = figure == TRUTH, "J(π)" if figure == TRUTH else section.said(figure)
    shown = [
        (policy, style_of(policy, style, key), y, x)
        for key, (policy, style) in enumerate(zip(section.policies, styles, strict=True))
        if (y := section.figure(policy.name, figure)) is not None and known(y.mean)
        if (x := section.figure(policy.name, "JS")) is not None and known(x.mean)
    ]
    if not shown:
        return None
    digits_y, digits_x = decimals([y.mean for _, _, y, _ in shown]), decimals([x.mean for _, _, _, x in shown])
    points: list[Datum] = [
        {
            **style,
            "objective": policy.objective,
            "beta": 0.0 if policy.beta is None else float(policy.beta),
            **_bounds("x", x, "JS"),
            **_bounds("y", y, axis),
            "x_text": interval_text(x, digits_x),
            "y_text": interval_text(y, digits_y),
            "gain_text": interval_text(section.figure(policy.name, "true gain")),
        }
        for policy, style, y, x in shown
    ]
    level, floor = section.logging_value if truth else None, section.floor
    data = {"points": points, "dials": _dials(points), "floor": list[Datum](), "level": list[Datum]()}
    if floor is not None and known(floor.mean):
        data["floor"] = [{"from": 0.0, **_bounds("x", floor, "JS"), "said": floor_text(section)}]
    if level is not None and known(level.mean):
        said = f"J(μ) = {interval_text(level, digits_y)}"
        data["level"] = [{**_bounds("y", level, "J(π)"), "said": said}]
    best, nearest = max(shown, key=lambda entry: entry[2].mean), min(shown, key=lambda entry: entry[3].mean)
    summary = " ".join(
        f"{what}: {policy.name} with {fixed(y.mean, digits_y)} at JS {fixed(x.mean, digits_x)}."
        for what, (policy, _, y, x) in ((f"Highest {axis}", best), ("Nearest to the reference", nearest))
    )
    return Chart(
        identity,
        drawn(
            _layers(section, axis, points, level, dials=bool(data["dials"])), data, height=HEIGHT,
            description=f"Scatter of {axis} against JS divergence, {len(shown)} policies. {summary}",
        ),
        f"{summary} {_caption(section, points, len(shown))}",
        HEIGHT,
        heading=f"{'Reward' if truth else axis} against distance from the log",
        wide=True,
    )  # fmt: skip


def _caption(section: Section, points: Sequence[Datum], shown: int) -> str:
    said = []
    if section.reference:
        said.append(f"Divergence is taken from {section.reference}.")
    if section.floor:
        said.append(
            "Left of the noise floor JS cannot tell a policy from another seed of the reference; its ranking may "
            "still differ."
        )
    if any(_families(points).values()):
        said.append("A line joins the policies of one objective in order of β.")
    said.append("Bars are 95 % intervals; where none is seen, it is smaller than the point or the figure is exact.")
    if shown > 12:
        said.append("Names that find no room are left out: point at a mark, or look it up in the table.")
    drawn_keys = {point["key"] for point in points}
    left = [shortened(policy.name) for key, policy in enumerate(section.policies) if key not in drawn_keys]
    more = [f"{len(left) - SAID} more"] if len(left) > SAID else []
    if left:
        said.append(f"Not drawn, because a figure or a divergence is missing: {joined(left[:SAID] + more)}.")
    return " ".join(said)


def _families(points: Sequence[Datum]) -> dict[str, list[Datum]]:
    """Objectives that stand there with at least two values of β, in its order."""
    by_objective: dict[str, list[Datum]] = {}
    for point in points:
        if point["beta"]:
            by_objective.setdefault(point["objective"], []).append(point)
    return {
        name: sorted(members, key=lambda point: (point["beta"], point["key"]))
        for name, members in by_objective.items()
        if len({point["beta"] for point in members}) > 1
    }


def _dials(points: Sequence[Datum]) -> list[Datum]:
    return [
        {"objective": name, "colour": point["colour"], "order": order, "x": point["x"], "y": point["y"]}
        for name, members in _families(points).items()
        for order, point in enumerate(members)
    ]


def _bounds(name: str, interval: Interval, figure: str) -> Datum:
    return {name: float(interval.mean), **bar(interval, figure, f"{name}_")}


def _layers(
    section: Section, axis: str, points: Sequence[Datum], level: Interval | None, *, dials: bool
) -> list[alt.Chart]:
    """The noise floor, the level of J(μ), and the policies with their intervals and names."""
    floor = section.floor
    widths = [point["x_high"] for point in points] + ([floor.high] if floor and known(floor.high) else [])
    heights = [point[end] for point in points for end in ("y_low", "y_high")]
    heights += [value for value in (level.low, level.mean, level.high) if known(value)] if level else []
    left, right = min(0.0, *(point["x_low"] for point in points)), max(widths) * 1.1 or 0.1
    across = alt.Scale(domain=[left, right], nice=False)
    along = alt.Scale(domain=domain(heights, padding=0.12), nice=False, zero=False)

    def of_x(field: str) -> alt.X:
        return alt.X(f"{field}:Q", scale=across)

    def of_y(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", scale=along)

    layers = []
    if floor:  # a shade up to it, a rule at it, and its name
        shade = layer("floor_shade", "floor").mark_rect(color=GREY, opacity=0.13, aria=False)
        band = layer("floor_band", "floor").mark_rect(color=GREY, opacity=0.22, aria=False)
        rule = layer("floor_rule", "floor").mark_rule(color=GREY, strokeWidth=1.2, aria=False)
        name = words("floor", align="left", dx=6, dy=4)
        layers += [
            shade.encode(x=of_x("from"), x2="x:Q"),
            band.encode(x=of_x("x_low"), x2="x_high:Q"),
            rule.encode(x=of_x("x")),
            name.encode(x=of_x("x"), y=alt.value(0), text="said:N"),
        ]
    if level:
        band = layer("level_band", "level").mark_rect(color=GREY, opacity=0.15, aria=False)
        rule = layer("level_rule", "level").mark_rule(color=DARK, strokeDash=[5, 4], aria=False)
        name = words("level", align="right", dx=-4, dy=5)
        layers += [
            band.encode(y=of_y("y_low"), y2="y_high:Q"),
            rule.encode(y=of_y("y")),
            name.encode(y=of_y("y"), x=alt.value("width"), text="said:N"),
        ]
    x = alt.X("x:Q", scale=across, title="JS divergence from the reference μ̂, in nats")
    y = alt.Y("y:Q", scale=along, title="true expected reward J(π)" if axis == "J(π)" else axis)
    gained = any(section.figure(policy.name, "true gain") for policy in section.policies)
    tips = [
        alt.Tooltip("policy:N", title="policy"),
        alt.Tooltip("y_text:N", title=axis),
        *([alt.Tooltip("gain_text:N", title="gain over μ")] if gained else []),
        alt.Tooltip("x_text:N", title="JS"),
    ]
    if dials:  # lines without any point break the placing of names
        joins = layer("dials", "dials").mark_line(strokeWidth=1.6, opacity=0.55, aria=False)
        layers.append(joins.encode(x=x, y=y, order="order:Q", detail="objective:N", color=COLOUR))
    rules = [layer(name, "points").mark_rule(strokeWidth=1.4, opacity=0.7, aria=False) for name in ("across", "along")]
    marks = layer("points", "points").mark_point(size=95, filled=True, strokeWidth=1.6, opacity=1)
    # The page's script finds room for each name. Policies' colours are too light for letters of this size.
    names = layer("names", "points").mark_text(fontSize=12, color=DARK, aria=False)
    return [
        *layers,
        rules[0].encode(x=of_x("x_low"), x2="x_high:Q", y=y, color=COLOUR),
        rules[1].encode(x=x, y=of_y("y_low"), y2="y_high:Q", color=COLOUR),
        marks.encode(x=x, y=y, tooltip=tips, **LOOK),
        names.encode(x=x, y=y, text="label:N"),
    ]
