"""Metrics by kind of context (history length, popularity, repeats against new items): where a policy wins or loses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt

from localpolicy.measure.estimate import Interval
from localpolicy.report.contents import Section
from localpolicy.report.html.charts import COLOUR, FILL, SHAPE, STROKE, Chart, Datum, drawn, style_of, styled
from localpolicy.report.html.markup import table
from localpolicy.report.html.palette import SeriesStyle
from localpolicy.report.numbers import decimals, ends, interval_text, known
from localpolicy.report.table import Cell, Column, Table, interval_cell, word_cell

CAPTION = "Bars are 95 % intervals; within a row, policies stand in the order of the legend."

Segment = Mapping[str, Any]


def segment_charts(section: Section, styles: Sequence[SeriesStyle], identity: str) -> list[Chart]:
    """One chart per way of cutting and metric."""
    return [
        _chart(section, styles, f"{identity}-{index}", by, metric) for index, (by, metric) in enumerate(_cuts(section))
    ]


def _cuts(section: Section) -> list[tuple[str, str]]:
    return list(
        dict.fromkeys(
            (str(segment["by"]), str(segment.get("metric", "")))
            for row in section.rows
            for segment in row.segments
            if _shown(segment)
        )
    )


def _shown(segment: Segment) -> bool:
    return segment.get("mean") is not None and known(float(segment["mean"]))


def _of(segments: Sequence[Segment], by: str, metric: str) -> Iterator[Segment]:
    return (
        segment
        for segment in segments
        if _shown(segment) and (str(segment["by"]), str(segment.get("metric", ""))) == (by, metric)
    )


def interval(segment: Segment) -> Interval:
    """A segment's figure."""
    mean = float(segment["mean"])
    low, high = segment.get("low"), segment.get("high")
    return Interval(mean, mean if low is None else float(low), mean if high is None else float(high))


def _chart(section: Section, styles: Sequence[SeriesStyle], identity: str, by: str, metric: str) -> Chart:
    shown = [segment for row in section.rows for segment in _of(row.segments, by, metric)]
    digits = decimals([float(segment["mean"]) for segment in shown])
    values: list[Datum] = [
        {
            "key": key,
            "segment": str(segment["segment"]),
            "value": figure.mean,
            **dict(zip(("low", "high"), ends(figure, metric), strict=True)),
            "value_text": interval_text(figure, digits),
            "n": f"{int(segment['n']):,}" if segment.get("n") is not None else "not said",
        }
        for key, row in enumerate(section.rows)
        for segment in _of(row.segments, by, metric)
        for figure in (interval(segment),)
    ]
    names = list(dict.fromkeys(datum["segment"] for datum in values))
    policies = list(dict.fromkeys(datum["key"] for datum in values))
    data = {"values": values, "styles": [style_of(section.rows[key], styles[key], key) for key in policies]}
    step = 11 if len(policies) <= 12 else 7
    height = max(len(names) * (len(policies) + 1.5) * step, 80)
    y = alt.Y(
        "segment:N",
        title=None,
        sort=names,
        scale=alt.Scale(paddingInner=0.2, paddingOuter=0.1),
        axis=alt.Axis(labelLimit=110, grid=True, tickBand="extent"),
    )
    offset = alt.YOffset("key:O", sort=policies)
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
        bars.encode(x=alt.X("low:Q", scale=scale, title=metric), x2="high:Q", y=y, yOffset=offset, color=COLOUR),
        dots.encode(
            x=alt.X("value:Q", scale=scale), y=y, yOffset=offset, fill=FILL, stroke=STROKE, shape=SHAPE, tooltip=tips
        ),
    ]
    description = f"{metric} by {by} for {len(policies)} policies in {len(names)} segments, with 95 % intervals."
    title = f"{metric}, by {by}" if metric else f"by {by}"
    return Chart(
        identity,
        drawn(layers, data, height=round(height), description=description),
        CAPTION,
        round(height),
        title=title,
    )


def segment_tables(section: Section, identity: str) -> str:
    """The numbers behind the charts: segments across, policies down."""
    tables = []
    for index, (by, metric) in enumerate(_cuts(section)):
        rows = [
            (row, {str(segment["segment"]): segment for segment in _of(row.segments, by, metric)})
            for row in section.rows
        ]
        names = list(dict.fromkeys(name for _, parts in rows for name in parts))
        digits = decimals([float(segment["mean"]) for _, parts in rows for segment in parts.values()])
        columns = [Column("policy", numeric=False), *(Column(name, _positions(rows, name)) for name in names)]
        body: list[list[Cell]] = [
            [
                word_cell(row.name),
                *(interval_cell(interval(parts[name]) if name in parts else None, digits) for name in names),
            ]
            for row, parts in rows
            if parts
        ]
        tables.append(table(Table(f"{metric} by {by}", columns, body), identity=f"{identity}-{index}"))
    return "".join(tables)


def _positions(rows: Sequence[tuple[Any, Mapping[str, Segment]]], name: str) -> str:
    counts = {int(parts[name]["n"]) for _, parts in rows if name in parts and parts[name].get("n") is not None}
    return f"n = {counts.pop():,}" if len(counts) == 1 else ""
