"""Figures round after round, where policies are deployed, log, and are trained again: one small chart per figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt
import vl_convert

from localpolicy.measure.estimate import Interval
from localpolicy.report.contents import Contents, Section
from localpolicy.report.html.charts import (
    COLOUR,
    CONFIG,
    DARK,
    DASH,
    FILL,
    SHAPE,
    STROKE,
    Chart,
    Datum,
    drawn,
    layer,
    style_of,
    styled,
    whole_ticks,
)
from localpolicy.report.html.markup import table
from localpolicy.report.html.palette import SeriesStyle, series_styles
from localpolicy.report.numbers import decimals, ends, interval_text, known
from localpolicy.report.table import Cell, Column, Table, interval_cell

HEIGHT = 230
PICTURE = (460, 280)  # width and height of one chart of the picture
NOTE = "Round 0 is the first logging policy μ. Bands are 95 % intervals; without one, a figure is exact."
CAPTIONS = {
    "J(π)": "True reward per decision.",
    "JS from the round before": "How far each retraining moved, in nats.",
    "JS from the first μ": "How far it is from where the loop began, in nats.",
    "entropy": "In nats; near 0 the same history always gets the same item.",
    "coverage": "Share of the catalogue that is shown first somewhere.",
    "effective share": "Of the log; 5 %: one position in twenty decides what is learnt.",
}
SHARES = ("coverage", "effective share")

Entry = Mapping[str, Any]


def round_charts(section: Section, styles: Sequence[SeriesStyle], identity: str) -> list[Chart]:
    """One chart per figure that any row has by round."""
    charts = []
    for index, name in enumerate(_figures(section)):
        spec = _spec(section, styles, name)
        charts.append(Chart(f"{identity}-{index}", spec, CAPTIONS.get(name, "By round."), HEIGHT, title=name))
    return charts


def _figures(section: Section) -> list[str]:
    return list(dict.fromkeys(str(entry["figure"]) for row in section.rows for entry in row.rounds if _shown(entry)))


def _shown(entry: Entry) -> bool:
    return entry.get("mean") is not None and known(float(entry["mean"]))


def _of(entries: Sequence[Entry], name: str) -> Iterator[tuple[int, Interval]]:
    for entry in entries:
        if str(entry["figure"]) == name and _shown(entry):
            mean = float(entry["mean"])
            low, high = entry.get("low"), entry.get("high")
            yield int(entry["round"]), Interval(mean, mean if low is None else low, mean if high is None else high)


def _spec(section: Section, styles: Sequence[SeriesStyle], name: str) -> dict[str, Any]:
    points = [(key, *entry) for key, row in enumerate(section.rows) for entry in _of(row.rounds, name)]
    digits = decimals([figure.mean for _, _, figure in points])
    values: list[Datum] = [
        {
            "key": key,
            "round": number,
            "value": figure.mean,
            **dict(zip(("low", "high"), ends(figure, name), strict=True)),
            "value_text": interval_text(figure, digits),
        }
        for key, number, figure in points
    ]
    shown = dict.fromkeys(datum["key"] for datum in values)
    data = {"values": values, "styles": [style_of(section.rows[key], styles[key], key) for key in shown]}
    last = max(datum["round"] for datum in values)
    x = alt.X(
        "round:Q",
        title="round",
        axis=alt.Axis(values=whole_ticks(0, last), format="d", grid=False),
        scale=alt.Scale(domain=[0, max(last, 1)], nice=False),
    )
    scale = alt.Scale(zero=name != "J(π)")
    tips = [
        alt.Tooltip("policy:N", title="policy"),
        alt.Tooltip("round:Q", title="round"),
        alt.Tooltip("value_text:N", title=name),
    ]
    axis = alt.Axis(format="%") if name in SHARES else alt.Axis()
    y, low = (alt.Y(field, title=None, scale=scale, axis=axis) for field in ("value:Q", "low:Q"))
    near = alt.selection_point(name="near", on="pointerover", clear="pointerout", fields=["key"], empty=True)
    faded = alt.condition(near, alt.value(1.0), alt.value(0.18))
    bands = styled("bands", "values").mark_area(opacity=0.15, aria=False)
    lines = styled("lines", "values").mark_line(strokeWidth=1.8, aria=False)
    dots = styled("dots", "values").mark_point(size=42, filled=True, strokeWidth=1.4, opacity=1)
    layers = [
        bands.encode(x=x, y=low, y2="high:Q", color=COLOUR, detail="key:N"),
        lines.encode(x=x, y=y, color=COLOUR, strokeDash=DASH, detail="key:N", opacity=faded),
        dots.encode(x=x, y=y, fill=FILL, stroke=STROKE, shape=SHAPE, tooltip=tips, opacity=faded).add_params(near),
    ]
    return drawn(
        layers,
        data,
        height=HEIGHT,
        description=f"Lines of {name} by round, {len(data['styles'])} policies, {last} rounds.",
    )


def round_tables(section: Section, identity: str) -> str:
    """The numbers behind the charts: one row per round, one column per policy."""
    tables = []
    for index, name in enumerate(_figures(section)):
        rows = [(row.name, dict(_of(row.rounds, name))) for row in section.rows]
        rows = [(policy, values) for policy, values in rows if values]
        digits = decimals([figure.mean for _, values in rows for figure in values.values()])
        numbers = sorted({number for _, values in rows for number in values})
        columns = [Column("round"), *(Column(policy) for policy, _ in rows)]
        body = [
            [Cell(str(number), value=number), *(interval_cell(values.get(number), digits) for _, values in rows)]
            for number in numbers
        ]
        tables.append(table(Table(f"{name} by round", columns, body), identity=f"{identity}-{index}"))
    return "".join(tables)


def rounds_picture(contents: Contents, figures: Sequence[str]) -> str:
    """These figures of the first section side by side as one SVG, with a legend."""
    section, styles = contents.sections[0], series_styles(contents)[0]
    width, height = PICTURE
    charts: list[dict[str, Any]] = []
    data: dict[str, list[Datum]] = {}
    for index, name in enumerate(figures):
        spec = _spec(section, styles, name)
        for part in spec["layer"]:
            part.pop("params", None)  # nothing can be pointed at in a picture
            part["encoding"].pop("opacity", None)
            _rename(part, index)
        data |= {f"{key}-{index}": rows for key, rows in spec["datasets"].items()}
        charts.append({"layer": spec["layer"], "width": width, "height": height, "title": name})
    data["names"] = [
        {**style_of(row, style, index), "place": index}
        for index, (row, style) in enumerate(zip(section.rows, styles, strict=True))
    ]
    whole = {
        "$schema": alt.SCHEMA_URL,
        "hconcat": [*charts, _legend(len(section.rows))],
        "datasets": data,
        "config": {**CONFIG, "background": "white", "title": {"fontSize": 13, "fontWeight": "normal"}},
    }
    return str(vl_convert.vegalite_to_svg(whole))


def _rename(part: dict[str, Any], index: int) -> None:
    """Each chart of a picture has data sets and views of its own."""
    part["name"] = f"{part['name']}-{index}"
    part["data"]["name"] += f"-{index}"
    for step in part.get("transform", ()):
        step["from"]["data"]["name"] += f"-{index}"


def _legend(rows: int) -> dict[str, Any]:
    y = alt.Y("place:O", axis=None)
    marks = layer("legend_marks", "names").mark_point(size=60, filled=True, strokeWidth=1.4, opacity=1)
    words = layer("legend_words", "names").mark_text(align="left", dx=12, color=DARK)
    left = alt.value(8)
    layers = [
        marks.encode(x=left, y=y, fill=FILL, stroke=STROKE, shape=SHAPE),
        words.encode(x=left, y=y, text="label:N"),
    ]
    spec: dict[str, Any] = alt.layer(*layers).properties(width=170, height=22 * rows).to_dict()
    return {key: value for key, value in spec.items() if key not in ("$schema", "config")}
