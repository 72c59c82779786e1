"""Figures by epoch (training curves), by round (policies deployed and trained again) and by kind of context."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import altair as alt
import vl_convert

from localpolicy.measure.estimate import Measurement
from localpolicy.measure.summary import COLD
from localpolicy.report import charts
from localpolicy.report.charts import Chart, Datum, Series, drawn, layer, styled
from localpolicy.report.contents import Contents, PolicyInfo, Section
from localpolicy.report.table import decimals, interval_text, known, short

HEIGHT = 230
RULES = {"logp": "held-out log-likelihood", "-1*return_error": "minus the held-out squared error to the return"}

Reading = Callable[[Mapping[str, Any]], float | None]


def _lines(
    series: Sequence[Series], identity: str, title: str, values: Sequence[Datum], *, by: str,
    domain: tuple[float, float], scale: alt.Scale, share: bool, tip: str, caption: str,
) -> Chart:  # fmt: skip
    """One line per policy. By round every point is marked, with its interval; by epoch those that were kept are."""
    shown = dict.fromkeys(datum["key"] for datum in values)
    data = {"values": values, "styles": [series[key].datum for key in shown]}
    last = max(datum[by] for datum in values)
    ticks = alt.Axis(values=whole_ticks(domain[0], last), format="d", grid=False)
    x = alt.X(f"{by}:Q", title=by, axis=ticks, scale=alt.Scale(domain=list(domain), nice=False))
    axis = alt.Axis(format="%") if share else alt.Axis()
    y, low = (alt.Y(f"{field}:Q", title=None, scale=scale, axis=axis) for field in ("value", "low"))
    tips = charts.tips(policy="policy", **{by: by}, value_text=tip)
    near = alt.selection_point(name="near", on="pointerover", clear="pointerout", fields=["key"], empty=True)
    faded = alt.condition(near, alt.value(1.0), alt.value(0.18))
    look = {**charts.LOOK, "tooltip": tips, "opacity": faded}
    lines = styled("lines", "values", "line", strokeWidth=1.8)
    lines = lines.encode(x=x, y=y, color=charts.COLOUR, strokeDash=charts.DASH, detail="key:N", opacity=faded)
    if by == "round":
        bands = styled("bands", "values", "area", opacity=0.15)
        dots = styled("dots", "values", "point", aria=True, size=42, filled=True, strokeWidth=1.4, opacity=1)
        layers = [
            bands.encode(x=x, y=low, y2="high:Q", color=charts.COLOUR, detail="key:N"),
            lines,
            dots.encode(x=x, y=y, **look).add_params(near),
        ]
    else:
        data["kept"] = [datum for datum in values if datum["kept"]]
        aims = styled("dots", "values", "point", size=60, opacity=0.001, filled=True)  # to point at
        chosen = styled("kept", "kept", "point", aria=True, size=70, filled=True, strokeWidth=1.5)
        layers = [
            lines,
            aims.encode(x=x, y=y, color=charts.COLOUR, tooltip=tips).add_params(near),
            chosen.encode(x=x, y=y, **look),
        ]
    extent = f"{last} rounds" if by == "round" else f"{last:g} epochs at most"
    description = f"Lines of {title} by {by}, {len(shown)} policies, {extent}."
    spec = drawn(layers, data, height=HEIGHT, description=description)
    return Chart(identity, spec, caption, HEIGHT, title=title, numbers=charts.numbers_of(title, by, series, values))


def whole_ticks(first: float, last: float) -> list[int]:
    """Whole, distinct ticks of a count: a number format alone would write 1.5 as a second 2."""
    most = charts.CONFIG["axis"]["tickCount"]  # more are thinned by the library
    steps = (digit * 10**power for power in count() for digit in (1, 2, 5))
    step = next(step for step in steps if last - first < most * step)
    return list(range(math.ceil(first / step) * step, math.floor(last) + 1, step))


# ---------------------------------------------------------------------- by epoch


def selected_by(epoch: Mapping[str, Any]) -> float | None:
    """The value that competes for the best epoch."""
    return _number(epoch.get("selected_by"))


def read_share(epoch: Mapping[str, Any]) -> float | None:
    """The weights' effective sample, as a share of positions."""
    return _number((epoch.get("weights") or {}).get("effective_share"))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and known(value) else None


def reached(line: Mapping[str, Any]) -> float:
    """Epochs done at a validation; within an epoch, with the share of it that was done."""
    epoch, share = int(line["epoch"]), line.get("epoch_share")
    return epoch if share is None else round(epoch - 1 + float(share), 4)


def kept(policy: PolicyInfo) -> Mapping[str, Any] | None:
    """The validation whose weights were kept: of its epoch the best, and the first of equals, as in training."""
    lines = [line for line in policy.curve if line["epoch"] == policy.selected_epoch]
    values = [-math.inf if (value := selected_by(line)) is None else value for line in lines]
    return lines[values.index(max(values))] if lines else None


def curves(series: Sequence[Series], identity: str) -> list[Chart]:
    """One chart per rule (their values are not comparable), the effective share, and a closed form's stages."""
    rules = dict.fromkeys(each.policy.selected_by for each in series if _has(each, selected_by))
    drawings = [
        _curve(series, f"{identity}-{index}", name, selected_by, by_rule=True) for index, name in enumerate(rules)
    ]
    if any(_has(each, read_share) for each in series):
        drawings.append(_curve(series, f"{identity}-share", "effective share of the weights", read_share))
    for title, stage in _stages(series).items():
        drawings.append(_curve(stage, f"{identity}-stage-{len(drawings)}", title, selected_by))
    return drawings


def _has(series: Series, reading: Reading) -> bool:
    return any(reading(line) is not None for line in series.policy.curve)


def _curve(series: Sequence[Series], identity: str, title: str, reading: Reading, *, by_rule: bool = False) -> Chart:
    values: list[Datum] = [
        {"key": each.key, "epoch": reached(line), "value": value, "value_text": short(value), "kept": line is best}
        for each in series
        if not by_rule or each.policy.selected_by == title
        for best in [kept(each.policy)]
        for line in each.policy.curve
        if (value := reading(line)) is not None
    ]
    first, last = (end(datum["epoch"] for datum in values) for end in (min, max))
    share = reading is read_share
    caption = "On validation, by epoch. The point marks the weights that were kept."
    if share:
        caption = "100 %: every logged position counts alike; 5 %: one in twenty decides."
    return _lines(
        series, identity, title, values, by="epoch", domain=(first, max(last, 2)), share=share, caption=caption,
        scale=alt.Scale(domain=[0, 1]) if share else alt.Scale(zero=False),
        tip="effective share" if share else "on validation",
    )  # fmt: skip


def _stages(series: Sequence[Series]) -> dict[str, list[Series]]:
    """By its title: the series as if a stage of their runs were all of them. One run at several β is drawn once."""
    stages = dict.fromkeys((name, stage.selected_by) for each in series for name, stage in each.policy.stages.items())
    titled = {}
    for name, by in stages:
        drawn_runs: set[str | None] = set()
        shown = []
        for each in series:
            stage, digest = each.policy.stages.get(name), each.policy.digest
            again = digest is not None and digest in drawn_runs
            drawn_runs.add(digest)
            its = stage._asdict() if stage is not None and stage.selected_by == by and not again else {"curve": ()}
            shown.append(replace(each, policy=replace(each.policy, **its)))
        network = "μ̂" if name == "logging" else name.replace("-", " ")
        if any(_has(each, selected_by) for each in shown):
            titled[f"{network}: {RULES.get(by, by)}"] = shown
    return titled


# ---------------------------------------------------------------------- round after round


PICTURE = (460, 280)  # width and height of one chart of the picture
CAPTIONS = {
    "J(π)": "True reward per decision.",
    "JS from the round before": "How far each retraining moved, in nats.",
    "JS from the first μ": "How far it is from where the loop began, in nats.",
    "entropy": "In nats; near 0 the same history always gets the same item.",
    "coverage": "Share of the catalogue that is shown first somewhere.",
    "effective share": "Of the log; 5 %: one position in twenty decides what is learnt.",
}
ROUND_SHARES = ("coverage", "effective share")


def round_charts(section: Section, series: Sequence[Series], identity: str) -> list[Chart]:
    """One chart per figure that was measured by round."""
    rows = [row for row in section.measurements if row.round is not None and known(row.mean)]
    figures = enumerate(dict.fromkeys(row.figure for row in rows))
    return [_round_chart(section, series, f"{identity}-{index}", name) for index, name in figures]


def _round_chart(section: Section, series: Sequence[Series], identity: str, name: str) -> Chart:
    rows = [row for row in section.measurements if row.figure == name and row.round is not None and known(row.mean)]
    digits = decimals([row.mean for row in rows])
    values: list[Datum] = [
        {"key": each.key, "round": row.round, "value": row.mean, **charts.bar(row.interval, name),
         "value_text": interval_text(row.interval, digits)}
        for each in series
        for row in rows
        if row.policy == each.policy.name
    ]  # fmt: skip
    return _lines(
        series, identity, name, values, by="round", domain=(0, max(1, *(datum["round"] for datum in values))),
        scale=alt.Scale(zero=name != "J(π)"), share=name in ROUND_SHARES, tip=name,
        caption=CAPTIONS.get(name, "By round."),
    )  # fmt: skip


def rounds_picture(contents: Contents, figures: Sequence[str]) -> str:
    """These figures of the first section side by side as one SVG, with a legend."""
    section, series = contents.sections[0], charts.all_series(contents)[0]
    width, height = PICTURE
    panels: list[dict[str, Any]] = []
    for index, name in enumerate(figures):
        spec = _round_chart(section, series, "", name).spec
        data = {key: {"values": rows} for key, rows in spec["datasets"].items()}
        for part in spec["layer"]:
            part["name"] += f"-{index}"  # each panel has views and data of its own
            part["data"] = data[part["data"]["name"]]
            for step in part["transform"]:
                step["from"]["data"] = data[step["from"]["data"]["name"]]
            part.pop("params", None)  # nothing can be pointed at in a picture
            part["encoding"].pop("opacity", None)
        panels.append({"layer": spec["layer"], "width": width, "height": height, "title": name})
    whole = {
        "$schema": alt.SCHEMA_URL,
        "hconcat": [*panels, _picture_legend(len(series))],
        "datasets": {"names": [{**each.datum, "place": each.key} for each in series]},
        "config": {**charts.CONFIG, "background": "white", "title": {"fontSize": 13, "fontWeight": "normal"}},
    }
    return str(vl_convert.vegalite_to_svg(whole))


def _picture_legend(rows: int) -> dict[str, Any]:
    y, left = alt.Y("place:O", axis=None), alt.value(8)
    marks = layer("legend_marks", "names", "point", aria=True, size=60, filled=True, strokeWidth=1.4, opacity=1)
    words = layer("legend_words", "names", "text", aria=True, align="left", dx=12, color=charts.DARK)
    layers = [marks.encode(x=left, y=y, **charts.LOOK), words.encode(x=left, y=y, text="label:N")]
    spec: dict[str, Any] = alt.layer(*layers).properties(width=170, height=22 * rows).to_dict()
    return {key: value for key, value in spec.items() if key not in ("$schema", "config")}


# ---------------------------------------------------------------------- by segment


CUTS = {"history": "history length", "popularity": "popularity of the item taken"}
BOTH = "repeats against new items"


def segment_charts(section: Section, series: Sequence[Series], identity: str) -> list[Chart]:
    """One chart per way of cutting the contexts and metric. One segment alone shows nothing."""
    cuts: dict[tuple[str, str], list[tuple[str, Measurement]]] = {}
    for row in section.segments:
        kind, _, part = ("popularity", "", COLD) if row.group == COLD else row.group.partition(" ")
        cuts.setdefault((CUTS.get(kind, BOTH), section.said(row.figure)), []).append((part or row.group, row))
    shown = [(cut, rows) for cut, rows in cuts.items() if len({name for name, _ in rows}) > 1]
    return [_segment_chart(series, f"{identity}-{index}", *cut, rows) for index, (cut, rows) in enumerate(shown)]


def _segment_chart(
    series: Sequence[Series], identity: str, by: str, metric: str, rows: Sequence[tuple[str, Measurement]]
) -> Chart:
    digits = decimals([row.mean for _, row in rows])
    values: list[Datum] = [
        {"key": each.key, "segment": name, "value": row.mean, **charts.bar(row.interval, metric),
         "value_text": interval_text(row.interval, digits), "n": "not said" if row.n is None else f"{row.n:,}"}
        for each in series
        for name, row in rows
        if row.policy == each.policy.name
    ]  # fmt: skip
    names, policies = (list(dict.fromkeys(datum[field] for datum in values)) for field in ("segment", "key"))
    data = {"values": values, "styles": [series[key].datum for key in policies]}
    step = 11 if len(policies) <= 12 else 7
    height = round(max(len(names) * (len(policies) + 1.5) * step, 80))
    axis = alt.Axis(labelLimit=110, grid=True, tickBand="extent")
    y: dict[str, Any] = {
        "y": alt.Y("segment:N", title=None, sort=names, scale=alt.Scale(paddingInner=0.2, paddingOuter=0.1), axis=axis),
        "yOffset": alt.YOffset("key:O", sort=policies),
    }
    tips = charts.tips(policy="policy", segment=by, value_text=metric or "figure", n="positions")
    scale = alt.Scale(zero=False)
    size = 42 if step > 7 else 24
    bars = styled("bars", "values", "rule", strokeWidth=1.5, opacity=0.75)
    dots = styled("dots", "values", "point", aria=True, size=size, filled=True, strokeWidth=1.4, opacity=1)
    layers = [
        bars.encode(x=alt.X("low:Q", scale=scale, title=metric), x2="high:Q", color=charts.COLOUR, **y),
        dots.encode(x=alt.X("value:Q", scale=scale), tooltip=tips, **charts.LOOK, **y),
    ]
    description = f"{metric} by {by} for {len(policies)} policies in {len(names)} segments, with 95 % intervals."
    spec = drawn(layers, data, height=height, description=description)
    caption = "Bars are 95 % intervals; within a row, policies stand in the order of the legend."
    numbers = charts.numbers_of(metric, "segment", series, values, counts=True)
    return Chart(identity, spec, caption, height, title=f"{metric}, by {by}", numbers=numbers)
