"""Figures by epoch (training curves), by round (policies deployed and trained again) and by kind of context."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

import altair as alt
import vl_convert

from localpolicy.measure.decisions import LEAST_EFFECTIVE
from localpolicy.measure.estimate import Measurement
from localpolicy.measure.number_text import decimals, fixed, interval_text, joined, known, percent, short
from localpolicy.measure.position_metrics import COLD
from localpolicy.report import charts
from localpolicy.report.charts import Chart, Datum, Series, drawn, layer
from localpolicy.report.contents import HALF, Contents, Section, StageCurve
from localpolicy.report.table import Cell, Column, Mark, Table
from localpolicy.report.tables import side_by_side

HEIGHT = 230


def _lines(
    series: Sequence[Series], identity: str, title: str, values: Sequence[Datum], *, by: str, scale: alt.Scale,
    share: bool, tip: str, caption: str,
) -> Chart:  # fmt: skip
    """Line chart by epoch or by round, one line per policy; intervals by round, selected epochs marked."""
    rounds = by == "round"
    first, last = (end(datum[by] for datum in values) for end in (min, max))
    domain = (0, max(last, 1)) if rounds else (first, max(last, 2))
    ticks = alt.Axis(values=whole_ticks(domain[0], last), format="d", grid=False)
    x = alt.X(f"{by}:Q", title=by, axis=ticks, scale=alt.Scale(domain=list(domain), nice=False))
    axis = alt.Axis(format="%") if share else alt.Axis()
    y, low = (alt.Y(f"{field}:Q", title=None, scale=scale, axis=axis) for field in ("value", "low"))
    tips = charts.tips(policy="policy", **{by: by}, value_text=tip)
    near = alt.selection_point(name="near", on="pointerover", clear="pointerout", fields=["policy"], empty=True)
    faded = alt.condition(near, alt.value(1.0), alt.value(0.18))
    line, point = charts.looks(series)
    bands = layer("bands", "values", "area", opacity=0.15)
    lines = layer("lines", "values", "line", strokeWidth=1.8)
    aims = layer("aims", "values", "point", size=60, opacity=0.001, filled=True)  # to point at
    dots = layer(
        "dots", "values", "point", aria=True, size=42 if rounds else 70, filled=True, strokeWidth=1.4, opacity=1
    )
    layers = [
        *([bands.encode(x=x, y=low, y2="high:Q", color=line["color"])] if rounds else []),
        lines.encode(x=x, y=y, **line, opacity=faded),
        aims.encode(x=x, y=y, color=line["color"], tooltip=tips).add_params(near),
        dots.encode(x=x, y=y, **point, tooltip=tips, opacity=faded).transform_filter("datum.kept !== false"),
    ]
    extent = f"{last} rounds" if rounds else f"{last:g} epochs at most"
    description = f"Lines of {title} by {by}, {len({datum['policy'] for datum in values})} policies, {extent}."
    spec = drawn(layers, {"values": values}, height=HEIGHT, description=description)
    return Chart(identity, spec, caption, title, numbers=charts.numbers_of(title, by, values))


def whole_ticks(first: float, last: float) -> list[int]:
    """Whole, distinct ticks of a count: a number format alone would write 1.5 as a second 2."""
    most = charts.CONFIG["axis"]["tickCount"]  # more are thinned by the library
    steps = (digit * 10**power for power in count() for digit in (1, 2, 5))
    step = next(step for step in steps if last - first < most * step)
    return list(range(math.ceil(first / step) * step, math.floor(last) + 1, step))


# ---------------------------------------------------------------------- by epoch


RULES = {"logp": "held-out log-likelihood", "-1*return_error": "minus the held-out squared error to the return"}
WEIGHED = "effective share of the weights"


def curves(series: Sequence[Series], identity: str) -> list[Chart]:
    """Charts of training: validation metric by selection rule, effective share, stages of a closed form."""
    rules, shares, stages = (defaultdict[str, list[Datum]](list) for _ in range(3))
    met: set[tuple[str, str]] = set()
    for policy in (each.policy for each in series):
        whole = StageCurve(policy.curve, policy.selected_epoch, policy.selected_by, policy.on)
        rules[policy.selected_by] += _validations(policy.name, whole, "selected_by")
        shares[WEIGHED] += _validations(policy.name, whole, "weights", "effective_share")
        for name, stage in policy.stages.items():
            network = "μ̂" if name == "logging" else name.replace("-", " ")
            title = f"{network}: {RULES.get(stage.selected_by, stage.selected_by)}"
            if policy.digest is None or (title, policy.digest) not in met:  # one run at several β is drawn once
                stages[title] += _validations(policy.name, stage, "selected_by")
            met.add((title, policy.digest or ""))
    drawings: list[Chart] = []
    for title, values in {**rules, **shares, **stages}.items():
        if not values:
            continue
        kind = "share" if title in shares else f"stage-{len(drawings)}" if title in stages else len(drawings)
        caption, tip = f"{_measured_on(values)} The point marks the weights that were kept.", "on validation"
        if share := title in shares:
            caption, tip = "100 %: every logged position counts equally; 5 %: one in twenty decides.", "effective share"
        scale = alt.Scale(domain=[0, 1]) if share else alt.Scale(zero=False)
        look: dict[str, Any] = {"by": "epoch", "scale": scale, "share": share, "tip": tip, "caption": caption}
        drawings.append(_lines(series, f"{identity}-{kind}", title, values, **look))
    return drawings


def _measured_on(values: Sequence[Datum]) -> str:
    """Sentence on which validation sequences a chart uses (all, or every second one), by policy if they differ."""
    names = defaultdict[str, dict[str, None]](dict)
    for datum in values:
        names[datum["on"]][datum["policy"]] = None
    said = [f"on {on}{f' ({joined(every)})' if len(names) > 1 else ''}" for on, every in names.items()]
    rest = ": the others are kept for the slope and β" if HALF in names else ""
    return f"By epoch, {joined(said)}{rest}."


def _validations(policy: str, trained: StageCurve, *figure: str) -> list[Datum]:
    """Chart data of a metric (nested keys `figure`) by validation, with a flag for the weights that were kept.

    Kept weights are those of the selected epoch's best validation, of equals the first, as in training.
    """
    found: list[Datum] = []
    rivals = [line for line in trained.curve if line["epoch"] == trained.selected_epoch]
    kept = max(rivals, key=lambda line: _under(line, "selected_by", default=-math.inf), default=None)
    for line in trained.curve:
        epoch, share, value = int(line["epoch"]), line.get("epoch_share"), _under(line, *figure)
        if known(value):
            done = epoch if share is None else round(epoch - 1 + float(share), 4)  # within an epoch, so much of it
            about = {"policy": policy, "epoch": done, "kept": line is kept, "on": trained.on}
            found.append({**about, "value": value, "value_text": short(value)})
    return found


def _under(line: Mapping[str, Any], *keys: str, default: float = math.nan) -> float:
    """Number at these nested keys of a log line; `default` if it is missing or not finite."""
    value: Any = line
    for key in keys:
        value = (value or {}).get(key)
    return float(value) if isinstance(value, int | float) and known(value) else default


SCARCE = Mark("!", "few positions decide", "down")
WEIGHTS = {
    "effective_share": Column("effective share", "of positions"),
    "clipped_share": Column("clipped share", "of positions"),
    **{key: Column(name, "weight") for key, name in
       {"mean": "mean", "q5": "5 %", "q50": "median", "q95": "95 %", "max": "largest"}.items()},
}  # fmt: skip


def weights_table(section: Section, names: Mapping[str, Cell]) -> Table | None:
    """Table of each objective's weights at the selected epoch; None if no policy has weights."""
    weighed = {policy.name: policy for policy in section.policies if policy.weights}
    if not weighed:
        return None
    columns = {key: each for key, each in WEIGHTS.items() if any(key in policy.weights for policy in weighed.values())}
    if any(policy.selected_epoch is not None for policy in weighed.values()):
        columns = {"epoch": Column("epoch kept"), **columns}

    def cell(name: str, key: str) -> Cell:
        policy = weighed[name]
        value = policy.selected_epoch if key == "epoch" else policy.weights.get(key)
        if not key.endswith("_share"):
            return Cell(fixed(value, 0) if key == "epoch" else short(value, 3), value=value)
        scarce = key == "effective_share" and value is not None and value < LEAST_EFFECTIVE
        return Cell(percent(value), value=value, mark=SCARCE if scarce else None)

    note = (
        "At the epoch kept. A small effective share (marked ! below "
        f"{LEAST_EFFECTIVE:.0%}) or a large clipped share means that β has less effect than its value suggests."
    )
    missing = "its seeds kept different epochs, or its objective has no such weights"
    shown = {name: names[name] for name in weighed}
    return side_by_side("Weights of logged positions", shown, columns, cell, note, missing=missing)


# ---------------------------------------------------------------------- round after round


def _measured(series: Sequence[Series], by: str, name: str, rows: Sequence[tuple[object, Measurement]]) -> list[Datum]:
    """Chart data of long-table rows, policy by policy, with the sample that each covers."""
    digits = decimals([row.mean for _, row in rows])
    return [
        {"policy": row.policy, by: place, "value": row.mean, **charts.bar(row.interval, name),
         "value_text": interval_text(row.interval, digits), "n": "not said" if row.n is None else f"{row.n:,}"}
        for each in series
        for place, row in rows
        if row.policy == each.policy.name
    ]  # fmt: skip


PICTURE = (460, 280)  # width and height of one chart of the picture
CAPTIONS = {
    "true J": "True reward per decision.",
    "JS from the round before": "How far each retraining moved, in nats.",
    "JS": "How far it is from where the loop began, in nats.",
    "entropy": "In nats; near 0 the same history always gets the same item.",
    "coverage@1": "Share of the catalogue that is shown first somewhere.",
    "effective share": "Of the log; 5 %: one position in twenty decides what is learnt.",
}
ROUND_SHARES = ("coverage@1", "effective share")


def round_charts(section: Section, series: Sequence[Series], identity: str) -> list[Chart]:
    """One chart per metric that was measured by round."""
    figures = defaultdict[str, list[tuple[object, Measurement]]](list)
    for row in section.measurements:
        if row.round is not None and known(row.mean):
            figures[row.figure].append((row.round, row))
    return [
        _lines(
            series, f"{identity}-{index}", name, _measured(series, "round", name, rows), by="round", tip=name,
            scale=alt.Scale(zero=name != "true J"), share=name in ROUND_SHARES, caption=CAPTIONS.get(name, "By round."),
        )
        for index, (name, rows) in enumerate(figures.items())
    ]  # fmt: skip


def rounds_picture(contents: Contents, figures: Iterable[str]) -> str:
    """SVG text with charts of these metrics of the first section side by side, with a legend."""
    section, series = contents.sections[0], charts.all_series(contents)[0]
    names = [each.policy.name for each in series]
    drawings = {chart.title: chart.spec for chart in round_charts(section, series, "")}
    panels: list[dict[str, Any]] = []
    for name in figures:
        layers = [part for part in drawings[name]["layer"] if part["name"] != "aims"]
        for part in layers:  # nothing can be pointed at in a picture, and nothing fades
            del part["name"], part["data"]
            part["encoding"].pop("opacity", None)
        data = {"values": drawings[name]["datasets"]["values"]}
        width, height = PICTURE
        panels.append({"title": name, "data": data, "layer": layers, "width": width, "height": height})
    whole = {
        "$schema": alt.SCHEMA_URL,
        "hconcat": [*panels, _picture_legend(series)],
        "datasets": {"names": [{"policy": name, "label": charts.shortened(name)} for name in names]},
        "config": {**charts.CONFIG, "background": "white", "title": {"fontSize": 13, "fontWeight": "normal"}},
    }
    return str(vl_convert.vegalite_to_svg(whole))


def _picture_legend(series: Sequence[Series]) -> dict[str, Any]:
    place: dict[str, Any] = {"x": alt.value(8), "y": alt.Y("policy:N", axis=None, sort=None)}
    marks = layer("legend_marks", "names", "point", aria=True, size=60, filled=True, strokeWidth=1.4, opacity=1)
    words = layer("legend_words", "names", "text", aria=True, align="left", dx=12, color=charts.DARK)
    layers = [marks.encode(**place, **charts.looks(series)[1]), words.encode(**place, text="label:N")]
    spec: dict[str, Any] = alt.layer(*layers).properties(width=170, height=22 * len(series)).to_dict()
    return {key: spec[key] for key in ("layer", "width", "height")}


# ---------------------------------------------------------------------- by segment


CUTS = {"history": "history length", "popularity": "popularity of the item taken"}
BOTH = "repeats against new items"


def segment_charts(section: Section, series: Sequence[Series], identity: str) -> list[Chart]:
    """Charts of each metric by segment, one per way of cutting; none for a single segment."""
    cuts = defaultdict[tuple[str, str], list[tuple[object, Measurement]]](list)
    for row in section.segments:
        kind, _, part = ("popularity", "", COLD) if row.group == COLD else row.group.partition(" ")
        cuts[CUTS.get(kind, BOTH), section.said(row.figure)].append((part or row.group, row))
    shown = [(cut, rows) for cut, rows in cuts.items() if len({name for name, _ in rows}) > 1]
    return [_segment_chart(series, f"{identity}-{index}", *cut, rows) for index, (cut, rows) in enumerate(shown)]


def _segment_chart(
    series: Sequence[Series], identity: str, by: str, metric: str, rows: Sequence[tuple[object, Measurement]]
) -> Chart:
    values = _measured(series, "segment", metric, rows)
    names, policies = (list(dict.fromkeys(datum[field] for datum in values)) for field in ("segment", "policy"))
    step, size = (11, 42) if len(policies) <= 12 else (7, 24)
    height = round(max(len(names) * (len(policies) + 1.5) * step, 80))
    axis = alt.Axis(labelLimit=110, grid=True, tickBand="extent")
    y: dict[str, Any] = {
        "y": alt.Y("segment:N", title=None, sort=names, scale=alt.Scale(paddingInner=0.2, paddingOuter=0.1), axis=axis),
        "yOffset": alt.YOffset("policy:N", sort=policies),
    }
    tips = charts.tips(policy="policy", segment=by, value_text=metric or "figure", n="positions")
    scale, (line, point) = alt.Scale(zero=False), charts.looks(series)
    bars = layer("bars", "values", "rule", strokeWidth=1.5, opacity=0.75)
    dots = layer("dots", "values", "point", aria=True, size=size, filled=True, strokeWidth=1.4, opacity=1)
    layers = [
        bars.encode(x=alt.X("low:Q", scale=scale, title=metric), x2="high:Q", color=line["color"], **y),
        dots.encode(x=alt.X("value:Q", scale=scale), tooltip=tips, **point, **y),
    ]
    description = f"{metric} by {by} for {len(policies)} policies in {len(names)} segments, with 95 % intervals."
    spec = drawn(layers, {"values": values}, height=height, description=description)
    caption = "Bars are 95 % intervals; within a row, policies stand in the order of the legend."
    numbers = charts.numbers_of(metric, "segment", values, counts=True)
    return Chart(identity, spec, caption, f"{metric}, by {by}", numbers=numbers)
