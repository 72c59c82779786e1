"""The frontier: reward against the distance from the logging policy, so that the dial β is seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt

from localpolicy.measure.estimate import Interval
from localpolicy.report.contents import PolicyRow, Section
from localpolicy.report.html.charts import (
    COLOUR,
    DARK,
    FILL,
    GREY,
    SHAPE,
    STROKE,
    Chart,
    Datum,
    SeriesStyle,
    domain,
    drawn,
    layer,
    shortened,
    style_of,
)
from localpolicy.report.table import decimals, ends, fixed, floor_text, interval_text, joined, known

HEIGHT = 420
SAID = 6  # names in a caption


@dataclass(frozen=True)
class RewardAxis:
    """What stands upright: the truth, or a metric."""

    name: str
    truth: bool

    def of(self, row: PolicyRow) -> Interval | None:
        """The row's figure."""
        figure = row.truth if self.truth else row.metrics.get(self.name)
        return figure if figure is not None and known(figure.mean) else None


def upright(section: Section) -> RewardAxis | None:
    """The true reward where any row has one, else the main metric, else nothing."""
    if any(row.truth for row in section.rows):
        return RewardAxis("J(π)", truth=True)
    metrics = dict.fromkeys(name for row in section.rows for name in row.metrics)
    if not metrics:
        return None
    return RewardAxis(section.main_metric if section.main_metric in metrics else next(iter(metrics)), truth=False)


def frontier(section: Section, styles: Sequence[SeriesStyle], identity: str) -> Chart | None:
    """One point per policy that has both a figure and a divergence."""
    axis = upright(section)
    if axis is None:
        return None
    shown = [
        (row, style_of(row, style, key), y, row.js)
        for key, (row, style) in enumerate(zip(section.rows, styles, strict=True))
        if (y := axis.of(row)) is not None and row.js is not None and known(row.js.mean)
    ]
    if not shown:
        return None
    digits_y, digits_x = decimals([y.mean for _, _, y, _ in shown]), decimals([x.mean for _, _, _, x in shown])
    points: list[Datum] = [
        {
            **style,
            "objective": row.objective,
            "beta": 0.0 if row.beta is None else float(row.beta),
            **_bounds("x", x, "JS"),
            **_bounds("y", y, axis.name),
            "x_text": interval_text(x, digits_x),
            "y_text": interval_text(y, digits_y),
            "gain_text": interval_text(row.gain),
        }
        for row, style, y, x in shown
    ]
    level = section.logging_value if axis.truth else None
    scales = _scales(points, level, section.floor)
    layers = [
        *(_floor_layers(scales) if section.floor else []),
        *(_level_layers(scales) if level else []),
        *_point_layers(axis, scales, gains=any(row.gain for row in section.rows), dials=bool(_dials(points))),
    ]
    best = max(shown, key=lambda entry: entry[2].mean)
    nearest = min(shown, key=lambda entry: entry[3].mean)
    summary = (
        f"Highest {axis.name}: {best[0].name} with {fixed(best[2].mean, digits_y)} "
        f"at JS {fixed(best[3].mean, digits_x)}. "
        f"Nearest to the reference: {nearest[0].name} with {fixed(nearest[2].mean, digits_y)} "
        f"at JS {fixed(nearest[3].mean, digits_x)}."
    )
    return Chart(
        identity,
        drawn(
            layers,
            {
                "points": points,
                "dials": _dials(points),
                "floor": _floor(section),
                "level": _level(level, digits_y),
            },
            height=HEIGHT,
            description=f"Scatter of {axis.name} against JS divergence, {len(shown)} policies. {summary}",
        ),
        f"{summary} {_caption(section, points, len(shown))}",
        HEIGHT,
        heading=f"{'Reward' if axis.truth else axis.name} against distance from the log",
        wide=True,
    )


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
        said.append("Names that find no room are left out: point at a mark, or style in the table.")
    drawn_keys = {point["key"] for point in points}
    left = [shortened(row.name) for key, row in enumerate(section.rows) if key not in drawn_keys]
    more = [f"{len(left) - SAID} more"] if len(left) > SAID else []
    if left:
        said.append(f"Not drawn, because a figure or a divergence is missing: {joined(left[:SAID] + more)}.")
    return " ".join(said)


def _bounds(name: str, interval: Interval, figure: str) -> Datum:
    low, high = ends(interval, figure)
    return {name: float(interval.mean), f"{name}_low": low, f"{name}_high": high}


@dataclass(frozen=True)
class Scales:
    """Both scales, shared by every layer."""

    x: alt.Scale
    y: alt.Scale


def _scales(points: Sequence[Datum], level: Interval | None, floor: Interval | None) -> Scales:
    widths = [point["x_high"] for point in points] + ([floor.high] if floor and known(floor.high) else [])
    heights = [point[end] for point in points for end in ("y_low", "y_high")]
    heights += [value for value in (level.low, level.mean, level.high) if known(value)] if level else []
    right = max(widths) * 1.1 or 0.1
    return Scales(
        alt.Scale(domain=[min(0.0, *(point["x_low"] for point in points)), right], nice=False),
        alt.Scale(domain=domain(heights, padding=0.12), nice=False, zero=False),
    )


def _floor(section: Section) -> list[Datum]:
    if section.floor is None or not known(section.floor.mean):
        return []
    return [{"from": 0.0, **_bounds("x", section.floor, "JS"), "said": floor_text(section)}]


def _floor_layers(scales: Scales) -> list[alt.Chart]:
    """A shade up to the floor, a rule at it, and its name."""
    x = alt.X("x:Q", scale=scales.x)
    shade = layer("floor_shade", "floor").mark_rect(color=GREY, opacity=0.13, aria=False)
    band = layer("floor_band", "floor").mark_rect(color=GREY, opacity=0.22, aria=False)
    rule = layer("floor_rule", "floor").mark_rule(color=GREY, strokeWidth=1.2, aria=False)
    words = layer("floor_words", "floor").mark_text(
        align="left", baseline="top", dx=6, dy=4, fontStyle="italic", color=DARK, aria=False
    )
    return [
        shade.encode(x=alt.X("from:Q", scale=scales.x), x2="x:Q"),
        band.encode(x=alt.X("x_low:Q", scale=scales.x), x2="x_high:Q"),
        rule.encode(x=x),
        words.encode(x=x, y=alt.value(0), text="said:N"),
    ]


def _level(level: Interval | None, digits: int) -> list[Datum]:
    if level is None or not known(level.mean):
        return []
    return [{**_bounds("y", level, "J(π)"), "said": f"J(μ) = {interval_text(level, digits)}"}]


def _level_layers(scales: Scales) -> list[alt.Chart]:
    """A rule at J(μ), its interval, and its name."""
    y = alt.Y("y:Q", scale=scales.y)
    band = layer("level_band", "level").mark_rect(color=GREY, opacity=0.15, aria=False)
    rule = layer("level_rule", "level").mark_rule(color=DARK, strokeDash=[5, 4], aria=False)
    words = layer("level_words", "level").mark_text(
        align="right", baseline="top", dx=-4, dy=5, fontStyle="italic", color=DARK, aria=False
    )
    return [
        band.encode(y=alt.Y("y_low:Q", scale=scales.y), y2="y_high:Q"),
        rule.encode(y=y),
        words.encode(y=y, x=alt.value("width"), text="said:N"),
    ]


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


def _point_layers(axis: RewardAxis, scales: Scales, *, gains: bool, dials: bool) -> list[alt.Chart]:
    x = alt.X("x:Q", scale=scales.x, title="JS divergence from the reference μ̂, in nats")
    y = alt.Y("y:Q", scale=scales.y, title="true expected reward J(π)" if axis.truth else axis.name)
    tips = [
        alt.Tooltip("policy:N", title="policy"),
        alt.Tooltip("y_text:N", title=axis.name),
        *([alt.Tooltip("gain_text:N", title="gain over μ")] if gains else []),
        alt.Tooltip("x_text:N", title="JS"),
    ]
    joins = layer("dials", "dials").mark_line(strokeWidth=1.6, opacity=0.55, aria=False)
    across = layer("across", "points").mark_rule(strokeWidth=1.4, opacity=0.7, aria=False)
    along = layer("along", "points").mark_rule(strokeWidth=1.4, opacity=0.7, aria=False)
    marks = layer("points", "points").mark_point(size=95, filled=True, strokeWidth=1.6, opacity=1)
    # The page's script finds room for each name. Policies' colours are too light for letters of this size.
    names = layer("names", "points").mark_text(fontSize=12, color=DARK, aria=False)
    return [
        # Lines without any point break the placing of names.
        *([joins.encode(x=x, y=y, order="order:Q", detail="objective:N", color=COLOUR)] if dials else []),
        across.encode(x=alt.X("x_low:Q", scale=scales.x), x2="x_high:Q", y=y, color=COLOUR),
        along.encode(x=x, y=alt.Y("y_low:Q", scale=scales.y), y2="y_high:Q", color=COLOUR),
        marks.encode(x=x, y=y, fill=FILL, stroke=STROKE, shape=SHAPE, tooltip=tips),
        names.encode(x=x, y=y, text="label:N"),
    ]
