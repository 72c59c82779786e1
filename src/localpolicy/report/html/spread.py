"""Where a policy moves and where it wins: bars of JS context by context, and a metric by kind of context."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from localpolicy.measure.estimate import Measurement
from localpolicy.measure.summary import COLD
from localpolicy.report.contents import PolicyInfo, Section
from localpolicy.report.html import charts
from localpolicy.report.html.charts import Chart, Datum, SeriesStyle, drawn, layer, shortened, style_of, styled
from localpolicy.report.numbers import decimals, fixed, floor_text, interval_text, known, percent

ROW = 44  # pixels
TALLEST = 0.86  # of a row
AIR = 0.4  # of a row, for the words above
TICKS = [digit * 10**power for power in range(-9, 1) for digit in (1, 2, 5)]


def histogram(section: Section, styles: Sequence[SeriesStyle], identity: str) -> Chart | None:
    """Bars of the share of contexts by JS, of every policy that has them."""
    rows = [(policy, style) for policy, style in zip(section.policies, styles, strict=True) if _total(policy)]
    if not rows:
        return None
    digits = _bin_digits([row for row, _ in rows])
    bins: list[Datum] = [
        {
            "key": key,
            "from": float(start),
            "to": float(end),
            "base": -float(key),
            "top": -float(key) + TALLEST * count / max(row.js_histogram, key=lambda part: part[2])[2],
            "range": f"{fixed(start, digits)} to {fixed(end, digits)}",
            "value": count / _total(row),
            "value_text": percent(count / _total(row)),
            "contexts": f"{count:,}",
        }
        for key, (row, _) in enumerate(rows)
        for start, end, count in row.js_histogram
    ]
    furthest = max(end for row, _ in rows for _, end, _ in row.js_histogram)
    x = alt.X(
        "from:Q",
        title="JS divergence of a context, in nats",
        scale=alt.Scale(type="sqrt", domain=[0.0, furthest], nice=False),
        axis=alt.Axis(
            values=[0, *(value for value in TICKS if furthest / 300 < value <= furthest)],
            tickCount=100,  # else the library thins the values
            format="~g",
            labelOverlap="greedy",
            labelSeparation=6,
        ),
    )
    names = [shortened(row.name, 24) for row, _ in rows]
    said = "{" + ", ".join(f"'{-key}': {json.dumps(name)}" for key, name in enumerate(names)) + "}"
    y = alt.Y(
        "base:Q",
        title=None,
        scale=alt.Scale(domain=[-(len(rows) - 1) - 0.04, 1.0 + AIR], nice=False, zero=False),
        axis=alt.Axis(
            values=[-key for key in range(len(rows))],
            tickCount=10 * len(rows),  # else the library thins the values
            labelExpr=f"{said}['' + datum.value]",
            labelBaseline="bottom",
            labelLimit=170,
            labelOverlap=False,
        ),
    )
    tips = [alt.Tooltip(f"{name}:N") for name in ("policy", "range", "contexts")]
    tips.insert(2, alt.Tooltip("value_text:N", title="share"))
    bars = styled("bars", "bins").mark_rect(opacity=0.8, strokeWidth=0.5, aria=False)
    layers = [bars.encode(x=x, x2="to:Q", y=y, y2="top:Q", color=charts.COLOUR, tooltip=tips)]
    data = {
        "bins": [datum for datum in bins if datum["value"]],
        "styles": [style_of(row, style, key) for key, (row, style) in enumerate(rows)],
    }
    floor = section.floor
    if floor and known(floor.mean) and floor.mean <= furthest:
        data["floor"] = [{"from": float(floor.mean), "said": floor_text(section)}]
        rule = layer("floor_rule", "floor").mark_rule(color=charts.DARK, strokeDash=[5, 4], aria=False)
        words = charts.words("floor", align="left", dx=6, dy=0)
        layers += [rule.encode(x=x), words.encode(x=x, y=alt.value(0), text="said:N")]
    height = round(ROW * (len(rows) + AIR))
    description = f"Histograms of the JS divergence over contexts, one row for each of {len(rows)} policies."
    caption = (
        "Share of held-out contexts by their divergence from the reference, on a square-root scale; each row is scaled "
        "to its own tallest bar."
    )
    if floor:
        caption += " The floor is the mean divergence between two estimates of the logging policy."
    spec = drawn(layers, data, height=height, description=description)
    numbers = charts.numbers_of("Share of contexts", "range", [row.name for row, _ in rows], bins, identity)
    return Chart(identity, spec, caption, height, wide=True, numbers=numbers)


def _bin_digits(rows: Sequence[PolicyInfo]) -> int:
    """Decimals that tell the narrowest bins apart."""
    return decimals([min(end - start for row in rows for start, end, _ in row.js_histogram)], 2)


def _total(policy: PolicyInfo) -> int:
    return sum(count for _, _, count in policy.js_histogram)


# ---------------------------------------------------------------------- by segment


CAPTION = "Bars are 95 % intervals; within a row, policies stand in the order of the legend."

CUTS = {"history": "history length", "popularity": "popularity of the item taken"}
BOTH = "repeats against new items"


def _cuts(section: Section) -> dict[tuple[str, str], list[dict[str, Measurement]]]:
    """By the way of cutting and the figure: the segments of each policy by name. One segment alone shows nothing."""
    places = {policy.name: key for key, policy in enumerate(section.policies)}
    cuts: dict[tuple[str, str], list[dict[str, Measurement]]] = {}
    for row in section.segments:
        kind, _, part = ("popularity", "", COLD) if row.group == COLD else row.group.partition(" ")
        cut = CUTS.get(kind, BOTH), section.said(row.figure)
        cuts.setdefault(cut, [{} for _ in section.policies])[places[row.policy]][part or row.group] = row
    return {cut: rows for cut, rows in cuts.items() if len(_names(rows)) > 1}


def _names(rows: Sequence[Mapping[str, Measurement]]) -> list[str]:
    return list(dict.fromkeys(name for parts in rows for name in parts))


def _digits(rows: Sequence[Mapping[str, Measurement]]) -> int:
    return decimals([row.mean for parts in rows for row in parts.values()])


def segment_charts(section: Section, styles: Sequence[SeriesStyle], identity: str) -> list[Chart]:
    """One chart per way of cutting and metric."""
    return [
        _segment_chart(section, styles, f"{identity}-{index}", by, metric, rows)
        for index, ((by, metric), rows) in enumerate(_cuts(section).items())
    ]


def _segment_chart(
    section: Section, styles: Sequence[SeriesStyle], identity: str, by: str, metric: str,
    rows: Sequence[Mapping[str, Measurement]],
) -> Chart:  # fmt: skip
    digits, names = _digits(rows), _names(rows)
    values: list[Datum] = [
        {"key": key, "segment": name, "value": row.mean, **charts.bar(row.interval, metric),
         "value_text": interval_text(row.interval, digits), "n": "not said" if row.n is None else f"{row.n:,}"}
        for key, parts in enumerate(rows)
        for name, row in parts.items()
    ]  # fmt: skip
    policies = [key for key, parts in enumerate(rows) if parts]
    data = {"values": values, "styles": [style_of(section.policies[key], styles[key], key) for key in policies]}
    step = 11 if len(policies) <= 12 else 7
    height = round(max(len(names) * (len(policies) + 1.5) * step, 80))
    y: dict[str, Any] = {
        "y": alt.Y(
            "segment:N",
            title=None,
            sort=names,
            scale=alt.Scale(paddingInner=0.2, paddingOuter=0.1),
            axis=alt.Axis(labelLimit=110, grid=True, tickBand="extent"),
        ),
        "yOffset": alt.YOffset("key:O", sort=policies),
    }
    tips = [
        alt.Tooltip("policy:N"),
        alt.Tooltip("segment:N", title=by),
        alt.Tooltip("value_text:N", title=metric or "figure"),
        alt.Tooltip("n:N", title="positions"),
    ]
    scale = alt.Scale(zero=False)
    bars = styled("bars", "values").mark_rule(strokeWidth=1.5, opacity=0.75, aria=False)
    dots = styled("dots", "values").mark_point(size=42 if step > 7 else 24, filled=True, strokeWidth=1.4, opacity=1)
    layers = [
        bars.encode(x=alt.X("low:Q", scale=scale, title=metric), x2="high:Q", color=charts.COLOUR, **y),
        dots.encode(x=alt.X("value:Q", scale=scale), tooltip=tips, **charts.LOOK, **y),
    ]
    description = f"{metric} by {by} for {len(policies)} policies in {len(names)} segments, with 95 % intervals."
    spec = drawn(layers, data, height=height, description=description)
    numbers = charts.numbers_of(
        metric, "segment", [policy.name for policy in section.policies], values, identity, counts=True
    )
    return Chart(identity, spec, CAPTION, height, title=f"{metric}, by {by}", numbers=numbers)
