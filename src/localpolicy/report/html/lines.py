"""Lines: training curves by epoch, and figures round after round where policies are deployed and trained again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import altair as alt
import vl_convert

from localpolicy.measure.estimate import Interval
from localpolicy.report.contents import Contents, PolicyInfo, Section
from localpolicy.report.html import charts
from localpolicy.report.html.charts import Chart, Datum, SeriesStyle, drawn, layer, style_of, styled
from localpolicy.report.numbers import decimals, interval_text, known, short

HEIGHT = 230
RULES = {"logp": "held-out log-likelihood", "-1*return_error": "minus the held-out squared error to the return"}

Reading = Callable[[Mapping[str, Any]], float | None]


def _lines(
    section: Section, styles: Sequence[SeriesStyle], identity: str, title: str, values: Sequence[Datum], *,
    by: str, domain: tuple[float, float], scale: alt.Scale, share: bool, tip: str, caption: str,
) -> Chart:  # fmt: skip
    """One line per policy. By round every point is marked, with its interval; by epoch those that were kept are."""
    shown = dict.fromkeys(datum["key"] for datum in values)
    data = {"values": values, "styles": [style_of(section.policies[key], styles[key], key) for key in shown]}
    last = max(datum[by] for datum in values)
    ticks = alt.Axis(values=charts.whole_ticks(domain[0], last), format="d", grid=False)
    x = alt.X(f"{by}:Q", title=by, axis=ticks, scale=alt.Scale(domain=list(domain), nice=False))
    axis = alt.Axis(format="%") if share else alt.Axis()
    y, low = (alt.Y(f"{field}:Q", title=None, scale=scale, axis=axis) for field in ("value", "low"))
    tips = [
        alt.Tooltip("policy:N", title="policy"),
        alt.Tooltip(f"{by}:Q", title=by),
        alt.Tooltip("value_text:N", title=tip),
    ]
    near = alt.selection_point(name="near", on="pointerover", clear="pointerout", fields=["key"], empty=True)
    faded = alt.condition(near, alt.value(1.0), alt.value(0.18))
    look = {**charts.LOOK, "tooltip": tips, "opacity": faded}
    lines = styled("lines", "values").mark_line(strokeWidth=1.8, aria=False)
    lines = lines.encode(x=x, y=y, color=charts.COLOUR, strokeDash=charts.DASH, detail="key:N", opacity=faded)
    if by == "round":
        bands = styled("bands", "values").mark_area(opacity=0.15, aria=False)
        dots = styled("dots", "values").mark_point(size=42, filled=True, strokeWidth=1.4, opacity=1)
        layers = [
            bands.encode(x=x, y=low, y2="high:Q", color=charts.COLOUR, detail="key:N"),
            lines,
            dots.encode(x=x, y=y, **look).add_params(near),
        ]
    else:
        data["kept"] = [datum for datum in values if datum["kept"]]
        aims = styled("dots", "values").mark_point(size=60, opacity=0.001, filled=True, aria=False)  # to point at
        chosen = styled("kept", "kept").mark_point(size=70, filled=True, strokeWidth=1.5)
        layers = [
            lines,
            aims.encode(x=x, y=y, color=charts.COLOUR, tooltip=tips).add_params(near),
            chosen.encode(x=x, y=y, **look),
        ]
    extent = f"{last} rounds" if by == "round" else f"{last:g} epochs at most"
    description = f"Lines of {title} by {by}, {len(shown)} policies, {extent}."
    spec = drawn(layers, data, height=HEIGHT, description=description)
    numbers = charts.numbers_of(title, by, [policy.name for policy in section.policies], values, identity)
    return Chart(identity, spec, caption, HEIGHT, title=title, numbers=numbers)


# ---------------------------------------------------------------------- by epoch


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


def kept(policy: PolicyInfo) -> Mapping[str, Any] | None:
    """The validation whose weights were kept: of its epoch the best, and the first of equals, as in training."""
    lines = [line for line in policy.curve if line["epoch"] == policy.selected_epoch]
    values = [-math.inf if (value := selected_by(line)) is None else value for line in lines]
    return lines[values.index(max(values))] if lines else None


def curves(section: Section, styles: Sequence[SeriesStyle], identity: str) -> list[Chart]:
    """One chart per rule (their values are not comparable), the effective share, and a closed form's stages."""
    rules = dict.fromkeys(policy.selected_by for policy in section.policies if _read(policy, selected_by))
    drawings = [
        _curve(section, styles, f"{identity}-{index}", name, selected_by, by_rule=True)
        for index, name in enumerate(rules)
    ]
    if any(_read(policy, read_share) for policy in section.policies):
        drawings.append(_curve(section, styles, f"{identity}-share", "effective share of the weights", read_share))
    for title, stage in _stages(section).items():
        drawings.append(_curve(stage, styles, f"{identity}-stage-{len(drawings)}", title, selected_by))
    return drawings


def _read(policy: PolicyInfo, reading: Reading) -> dict[float, float]:
    """What was read at each validation."""
    return {reached(line): value for line in policy.curve if (value := reading(line)) is not None}


def _curve(
    section: Section, styles: Sequence[SeriesStyle], identity: str, title: str, reading: Reading, *,
    by_rule: bool = False,
) -> Chart:  # fmt: skip
    best, share = [kept(policy) for policy in section.policies], reading is read_share
    values: list[Datum] = [
        {"key": key, "epoch": reached(line), "value": value, "value_text": short(value), "kept": line is best[key]}
        for key, policy in enumerate(section.policies)
        if not by_rule or policy.selected_by == title
        for line in policy.curve
        if (value := reading(line)) is not None
    ]
    first, last = (end(datum["epoch"] for datum in values) for end in (min, max))
    scale = alt.Scale(domain=[0, 1]) if share else alt.Scale(zero=False)
    caption = "On validation, by epoch. The point marks the weights that were kept."
    if share:
        caption = "100 %: every logged position counts alike; 5 %: one in twenty decides."
    return _lines(
        section, styles, identity, title, values, by="epoch", domain=(first, max(last, 2)), scale=scale, share=share,
        tip="effective share" if share else "on validation", caption=caption,
    )  # fmt: skip


def _stages(section: Section) -> dict[str, Section]:
    """By its title: the section as if a stage of its runs were all of them. One run at several β is drawn once."""
    names = dict.fromkeys((name, stage.selected_by) for each in section.policies for name, stage in each.stages.items())
    titled = {}
    for name, by in names:
        drawn_runs: set[str | None] = set()
        policies = []
        for policy in section.policies:
            stage = policy.stages.get(name)
            again = policy.digest is not None and policy.digest in drawn_runs
            drawn_runs.add(policy.digest)
            shown = stage is not None and stage.selected_by == by and not again
            policies.append(replace(policy, **stage._asdict() if stage is not None and shown else {"curve": ()}))
        network = "μ̂" if name == "logging" else name.replace("-", " ")
        if any(_read(policy, selected_by) for policy in policies):
            titled[f"{network}: {RULES.get(by, by)}"] = replace(section, policies=policies)
    return titled


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


def round_charts(section: Section, styles: Sequence[SeriesStyle], identity: str) -> list[Chart]:
    """One chart per figure that was measured by round."""
    figures = enumerate(_round_figures(section))
    return [_round_chart(section, styles, f"{identity}-{index}", name) for index, name in figures]


def _round_figures(section: Section) -> list[str]:
    return list(dict.fromkeys(row.figure for row in section.measurements if row.round is not None and known(row.mean)))


def _by_round(section: Section, policy: PolicyInfo, name: str) -> dict[float, Interval]:
    mine = [row for row in section.measurements if row.policy == policy.name and row.figure == name]
    return {row.round: row.interval for row in mine if row.round is not None and known(row.mean)}


def _round_chart(section: Section, styles: Sequence[SeriesStyle], identity: str, name: str) -> Chart:
    by_policy = [_by_round(section, policy, name) for policy in section.policies]
    points = [(key, *each) for key, rounds in enumerate(by_policy) for each in rounds.items()]
    digits = decimals([figure.mean for _, _, figure in points])
    values: list[Datum] = [
        {"key": key, "round": number, "value": figure.mean, **charts.bar(figure, name),
         "value_text": interval_text(figure, digits)}
        for key, number, figure in points
    ]  # fmt: skip
    last = max(number for _, number, _ in points)
    return _lines(
        section, styles, identity, name, values, by="round", domain=(0, max(last, 1)),
        scale=alt.Scale(zero=name != "J(π)"), share=name in ROUND_SHARES, tip=name,
        caption=CAPTIONS.get(name, "By round."),
    )  # fmt: skip


def rounds_picture(contents: Contents, figures: Sequence[str]) -> str:
    """These figures of the first section side by side as one SVG, with a legend."""
    section, styles = contents.sections[0], charts.series_styles(contents)[0]
    width, height = PICTURE
    panels: list[dict[str, Any]] = []
    data: dict[str, list[Datum]] = {}
    for index, name in enumerate(figures):
        spec = _round_chart(section, styles, "", name).spec
        for part in spec["layer"]:
            part.pop("params", None)  # nothing can be pointed at in a picture
            part["encoding"].pop("opacity", None)
            _rename(part, index)
        data |= {f"{key}-{index}": rows for key, rows in spec["datasets"].items()}
        panels.append({"layer": spec["layer"], "width": width, "height": height, "title": name})
    data["names"] = [
        {**style_of(policy, style, index), "place": index}
        for index, (policy, style) in enumerate(zip(section.policies, styles, strict=True))
    ]
    whole = {
        "$schema": alt.SCHEMA_URL,
        "hconcat": [*panels, _picture_legend(len(section.policies))],
        "datasets": data,
        "config": {**charts.CONFIG, "background": "white", "title": {"fontSize": 13, "fontWeight": "normal"}},
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
    words = layer("legend_words", "names").mark_text(align="left", dx=12, color=charts.DARK)
    left = alt.value(8)
    layers = [
        marks.encode(x=left, y=y, **charts.LOOK),
        words.encode(x=left, y=y, text="label:N"),
    ]
    spec: dict[str, Any] = alt.layer(*layers).properties(width=170, height=22 * rows).to_dict()
    return {key: value for key, value in spec.items() if key not in ("$schema", "config")}
