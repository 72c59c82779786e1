"""Lines: training curves by epoch, and figures round after round where policies are deployed and trained again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import altair as alt
import vl_convert

from localpolicy.measure.estimate import Interval
from localpolicy.report.contents import Contents, PolicyRow, Section
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
    SeriesStyle,
    drawn,
    layer,
    series_styles,
    style_of,
    styled,
    whole_ticks,
)
from localpolicy.report.html.page import table
from localpolicy.report.table import (
    Cell,
    Column,
    Table,
    decimals,
    ends,
    interval_cell,
    interval_text,
    known,
    number_cell,
    short,
)

HEIGHT = 230
UNNAMED = "validation figure"
RULES = {"logp": "held-out log-likelihood", "-1*return_error": "minus the held-out squared error to the return"}

Reading = Callable[[Mapping[str, Any]], float | None]


def selected_by(epoch: Mapping[str, Any]) -> float | None:
    """The value that competes for the best epoch."""
    value = epoch.get("selected_by")
    return float(value) if isinstance(value, int | float) and known(value) else None


def read_share(epoch: Mapping[str, Any]) -> float | None:
    """The weights' effective sample, as a share of positions."""
    value = (epoch.get("weights") or {}).get("effective_share")
    return float(value) if isinstance(value, int | float) and known(value) else None


def reached(line: Mapping[str, Any]) -> float:
    """Epochs done at a validation; within an epoch, with the share of it that was done."""
    epoch, share = int(line["epoch"]), line.get("epoch_share")
    return epoch if share is None else round(epoch - 1 + float(share), 4)


def kept(row: PolicyRow) -> Mapping[str, Any] | None:
    """The validation whose weights were kept: of its epoch the best, and the first of equals, as in training."""
    lines = [line for line in row.curve if line["epoch"] == row.selected_epoch]
    values = [-math.inf if (value := selected_by(line)) is None else value for line in lines]
    return lines[values.index(max(values))] if lines else None


def rule(row: PolicyRow) -> str:
    """The rule that picked the epoch: as recorded, else the validation figure that always equals it."""
    if row.selected_by or not row.curve:
        return row.selected_by
    names = list(row.curve[0].get("validation") or {})
    for name in names:
        if all((epoch.get("validation") or {}).get(name) == epoch.get("selected_by") for epoch in row.curve):
            return str(name)
    return UNNAMED


def curves(section: Section, styles: Sequence[SeriesStyle], identity: str) -> list[Chart]:
    """One chart per rule (their values are not comparable), the effective share, and a closed form's stages."""
    rules = dict.fromkeys(
        rule(row) for row in section.rows if any(selected_by(epoch) is not None for epoch in row.curve)
    )
    charts = [
        _chart(section, styles, f"{identity}-{index}", name, selected_by, lambda row, name=name: rule(row) == name)  # type: ignore[misc]
        for index, name in enumerate(rules)
    ]
    shares = [epoch for row in section.rows for epoch in row.curve if read_share(epoch) is not None]
    if shares:
        title = "effective share of the weights"
        charts.append(_chart(section, styles, f"{identity}-share", title, read_share, lambda row: True, share=True))
    for title, stage in _stages(section).items():
        charts.append(_chart(stage, styles, f"{identity}-stage-{len(charts)}", title, selected_by, lambda row: True))
    return charts


def _stages(section: Section) -> dict[str, Section]:
    """By its title: the section as if a stage of its runs were all of them. One run at several β is drawn once."""
    names = dict.fromkeys((name, stage.selected_by) for row in section.rows for name, stage in row.stages.items())
    titled = {}
    for name, by in names:
        drawn_runs: set[str | None] = set()
        rows = []
        for row in section.rows:
            stage = row.stages.get(name)
            again = row.digest is not None and row.digest in drawn_runs
            drawn_runs.add(row.digest)
            if stage is None or stage.selected_by != by or again:
                rows.append(replace(row, curve=()))
            else:
                rows.append(
                    replace(row, curve=stage.curve, selected_epoch=stage.selected_epoch, selected_by=stage.selected_by)
                )
        network = "μ̂" if name == "logging" else name.replace("-", " ")
        if any(selected_by(line) is not None for row in rows for line in row.curve):
            titled[f"{network}: {RULES.get(by, by)}"] = replace(section, rows=rows)
    return titled


def _chart(
    section: Section,
    styles: Sequence[SeriesStyle],
    identity: str,
    title: str,
    reading: Reading,
    wanted: Callable[[PolicyRow], bool],
    *,
    share: bool = False,
) -> Chart:
    best = [kept(row) for row in section.rows]
    values: list[Datum] = [
        {
            "key": key,
            "epoch": reached(line),
            "value": float(f"{value:.7g}"),
            "value_text": short(value),
            "kept": line is best[key],
        }
        for key, row in enumerate(section.rows)
        if wanted(row)
        for line in row.curve
        if (value := reading(line)) is not None
    ]
    shown = dict.fromkeys(datum["key"] for datum in values)
    data = {
        "values": values,
        "kept": [datum for datum in values if datum["kept"]],
        "styles": [style_of(section.rows[key], styles[key], key) for key in shown],
    }
    first, last = (end(datum["epoch"] for datum in values) for end in (min, max))
    x = alt.X(
        "epoch:Q",
        title="epoch",
        axis=alt.Axis(values=whole_ticks(first, last), format="d", grid=False),
        scale=alt.Scale(domain=[first, max(last, 2)], nice=False),
    )
    y = alt.Y(
        "value:Q",
        title=None,
        scale=alt.Scale(domain=[0, 1]) if share else alt.Scale(zero=False),
        axis=alt.Axis(format="%") if share else alt.Axis(),
    )
    tips = [
        alt.Tooltip("policy:N", title="policy"),
        alt.Tooltip("epoch:Q", title="epoch"),
        alt.Tooltip("value_text:N", title="effective share" if share else "on validation"),
    ]
    near = alt.selection_point(name="near", on="pointerover", clear="pointerout", fields=["key"], empty=True)
    lines = styled("lines", "values").mark_line(strokeWidth=1.8, aria=False)
    dots = styled("dots", "values").mark_point(size=60, opacity=0.001, filled=True, aria=False)  # something to point at
    chosen = styled("kept", "kept").mark_point(size=70, filled=True, strokeWidth=1.5)
    faded = alt.condition(near, alt.value(1.0), alt.value(0.18))
    description = f"Lines of {title} by epoch, {len(data['styles'])} policies, {last:g} epochs at most."
    layers = [
        lines.encode(x=x, y=y, color=COLOUR, strokeDash=DASH, detail="key:N", opacity=faded),
        dots.encode(x=x, y=y, color=COLOUR, tooltip=tips).add_params(near),
        chosen.encode(x=x, y=y, fill=FILL, stroke=STROKE, shape=SHAPE, tooltip=tips, opacity=faded),
    ]
    caption = "On validation, by epoch. The point marks the weights that were kept."
    if share:
        caption = "100 %: every logged position counts alike; 5 %: one in twenty decides."
    return Chart(identity, drawn(layers, data, height=HEIGHT, description=description), caption, HEIGHT, title=title)


def curve_tables(section: Section, identity: str) -> str:
    """The numbers behind the curves: one row per validation, one column per policy."""
    tables = []
    shown = [("value of the selection rule", selected_by, section), ("effective share", read_share, section)]
    shown += [(title, selected_by, stage) for title, stage in _stages(section).items()]
    for index, (title, reading, of) in enumerate(shown):
        rows = [row for row in of.rows if any(reading(epoch) is not None for epoch in row.curve)]
        if not rows:
            continue
        values = [{reached(line): reading(line) for line in row.curve} for row in rows]
        epochs = sorted({epoch for by_epoch in values for epoch in by_epoch})
        columns = [Column("epoch"), *(Column(row.name) for row in rows)]
        digits = [decimals(by_epoch.values()) for by_epoch in values]
        body = [
            [
                Cell(f"{epoch:g}", value=epoch),
                *(number_cell(by_epoch.get(epoch), many) for by_epoch, many in zip(values, digits, strict=True)),
            ]
            for epoch in epochs
        ]
        tables.append(table(Table(f"{title} by epoch", columns, body), identity=f"{identity}-{index}"))
    return "".join(tables)


# ---------------------------------------------------------------------- round after round


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
ROUND_SHARES = ("coverage", "effective share")

Entry = Mapping[str, Any]


def round_charts(section: Section, styles: Sequence[SeriesStyle], identity: str) -> list[Chart]:
    """One chart per figure that any row has by round."""
    charts = []
    for index, name in enumerate(_round_figures(section)):
        spec = _round_spec(section, styles, name)
        charts.append(Chart(f"{identity}-{index}", spec, CAPTIONS.get(name, "By round."), HEIGHT, title=name))
    return charts


def _round_figures(section: Section) -> list[str]:
    return list(dict.fromkeys(str(entry["figure"]) for row in section.rows for entry in row.rounds if _has_mean(entry)))


def _has_mean(entry: Entry) -> bool:
    return entry.get("mean") is not None and known(float(entry["mean"]))


def _by_round(entries: Sequence[Entry], name: str) -> Iterator[tuple[int, Interval]]:
    for entry in entries:
        if str(entry["figure"]) == name and _has_mean(entry):
            mean = float(entry["mean"])
            low, high = entry.get("low"), entry.get("high")
            yield int(entry["round"]), Interval(mean, mean if low is None else low, mean if high is None else high)


def _round_spec(section: Section, styles: Sequence[SeriesStyle], name: str) -> dict[str, Any]:
    points = [(key, *entry) for key, row in enumerate(section.rows) for entry in _by_round(row.rounds, name)]
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
    axis = alt.Axis(format="%") if name in ROUND_SHARES else alt.Axis()
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
    for index, name in enumerate(_round_figures(section)):
        rows = [(row.name, dict(_by_round(row.rounds, name))) for row in section.rows]
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
        spec = _round_spec(section, styles, name)
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
        "hconcat": [*charts, _picture_legend(len(section.rows))],
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


def _picture_legend(rows: int) -> dict[str, Any]:
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
