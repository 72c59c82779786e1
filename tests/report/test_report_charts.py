"""What the charts show, read from their specs; and how numbers and styles are chosen."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from page_tree import parse, specs
from report_examples import bandit, crowded, row, section_of, store, three

from localpolicy.measure.divergence import beyond_floor
from localpolicy.measure.number_text import decimals, fixed, interval_text, joined, percent, range_text
from localpolicy.measure.significance import Paired
from localpolicy.report.charts import OBJECTIVES, all_series, bar
from localpolicy.report.comparison import _stages
from localpolicy.report.contents import Contents, Interval, Section

lines = pytest.importorskip("localpolicy.report.lines", reason="the extra `report` is not installed")
dots = pytest.importorskip("localpolicy.report.frontier", reason="the extra `report` is not installed")


def drawn(section: Section) -> list:
    return all_series(Contents("", "", [section]))[0]


def test_frontier_holds_every_figure() -> None:
    section = store()
    chart = dots.frontier(section, drawn(section), "f")
    assert chart is not None
    data = chart.spec["datasets"]
    for policy, point in zip(section.policies, data["points"], strict=True):
        truth, js = (section.figure(policy.name, name) for name in ("true J", "JS"))
        assert truth and js
        assert (point["y"], point["y_low"], point["y_high"]) == (truth.mean, truth.low, truth.high)
        assert (point["x"], point["x_low"], point["x_high"]) == (js.mean, js.low, js.high)
    assert section.floor and section.logging_value
    assert (data["floor"][0]["x"], data["floor"][0]["said"]) == (section.floor.mean, "noise floor 0.0139 ± 0.0008")
    assert data["level"][0]["y"] == section.logging_value.mean
    assert chart.caption.startswith(
        "Highest J(π): lpi_rl β=0.3 with 0.3074 at JS 0.0871. Nearest to the reference: mle"
    )


def test_the_dial_is_drawn_in_order_of_beta() -> None:
    points = {beta: (0.1 / beta, 0.3 + 0.02 / beta) for beta in (0.3, 1.0, 0.1)}
    rows = [
        row(f"β={beta}", "lpi_cb", beta, truth=Interval.of(y, 0.01), js=Interval.of(x, 0.01))
        for beta, (x, y) in points.items()
    ]
    rows.append(row("mle", "mle", truth=Interval.of(0.2, 0.01), js=Interval.of(0.01, 0.0)))
    section = section_of("", "", rows)
    chart = dots.frontier(section, drawn(section), "f")
    assert chart is not None
    joined_up = [one for one in chart.spec["datasets"]["points"] if one["dial"]]
    (dial,) = (layer for layer in chart.spec["layer"] if layer["name"] == "dials")
    assert dial["encoding"]["order"]["field"] == "beta" and dial["transform"] == [{"filter": "datum.dial"}]
    found = sorted(joined_up, key=lambda one: one["beta"])
    assert [(one["x"], one["y"]) for one in found] == [points[beta] for beta in (0.1, 0.3, 1.0)]


TRADED = ("purchase.nDCG@20", "click.nDCG@20")


def traded(gains: dict[str, tuple[float, float]], *, beta: float | None = None) -> Section:
    """Policies with these gains in purchases and clicks; the first two are of one objective."""
    rows = [row(name, "lpi_cb" if place < 2 else name, beta and beta + place) for place, name in enumerate(gains)]
    tests = {
        name: {figure: Paired.around(Interval.of(gain, 0.01)) for figure, gain in zip(TRADED, both, strict=True)}
        for name, both in gains.items()
    }
    return replace(section_of("", "", rows), gains=tests, traded=TRADED, baseline="mle")


def test_trade_draws_gains_in_one_event_over_those_in_another() -> None:
    gains = {"mild": (0.02, 0.0), "far": (0.04, -0.03), "sac": (0.01, 0.01)}
    section = traded(gains, beta=0.5)
    chart = dots.trade(section, drawn(section), "t")
    points = chart.spec["datasets"]["points"]
    assert {point["policy"]: (point["y"], point["x"]) for point in points} == gains
    for point, tests in zip(points, section.gains.values(), strict=True):
        purchase, click = (tests[figure] for figure in TRADED)
        assert (point["y_low"], point["y_high"]) == (purchase.low, purchase.high)
        assert (point["x_low"], point["x_high"]) == (click.low, click.high)
    assert [point["policy"] for point in points if point["dial"]] == ["mild", "far"], "one objective, two values of β"
    assert chart.heading == "purchase.nDCG@20 against click.nDCG@20" and "Gains over mle" in chart.caption


def test_trade_needs_two_events_and_two_policies() -> None:
    section = traded({"mild": (0.02, 0.0), "far": (0.04, -0.03)})
    assert dots.trade(section, drawn(section), "t") is not None
    assert "dials" not in [each["name"] for each in dots.trade(section, drawn(section), "t").spec["layer"]]
    one = replace(section, gains={"mild": section.gains["mild"]})
    for lacking in (one, replace(section, traded=()), replace(section, traded=TRADED[:1])):
        assert dots.trade(lacking, drawn(lacking), "t") is None


@pytest.mark.parametrize(("betas", "joined_up"), [((0.3, 0.3), False), ((0.3, None), False), ((0.3, 1.0), True)])
def test_a_dial_joins_policies_of_different_beta(betas: tuple[float | None, ...], joined_up: bool) -> None:
    figures = {"truth": Interval.of(0.2, 0.01), "js": Interval.of(0.01, 0.0)}
    section = section_of("", "", [row(str(place), "lpi_cb", beta, **figures) for place, beta in enumerate(betas)])
    chart = dots.frontier(section, drawn(section), "f")
    assert [one["dial"] for one in chart.spec["datasets"]["points"]] == [joined_up] * 2
    assert ("dials" in [layer["name"] for layer in chart.spec["layer"]]) == joined_up
    assert ("A line joins the policies" in chart.caption) == joined_up


def test_there_is_room_for_the_floor_and_the_level_of_the_log() -> None:
    figures = {"truth": Interval(0.2, 0.1, 0.3), "js": Interval(0.01, 0.0, 0.02)}
    beside = {"floor": Interval(0.4, 0.3, 0.5), "logging_value": Interval(0.7, 0.6, 0.9)}
    for said, right, top in (({}, 0.02, 0.3), (beside, 0.5, 0.9)):
        section = section_of("", "", [row("mle", "mle", **figures)], **said)
        layers = {layer["name"]: layer for layer in dots.frontier(section, drawn(section), "f").spec["layer"]}
        x, y = (layers["points"]["encoding"][channel]["scale"]["domain"] for channel in ("x", "y"))
        assert x == pytest.approx([0.0, 1.1 * right])
        assert y == pytest.approx([0.1 - 0.12 * (top - 0.1), top + 0.12 * (top - 0.1)])
        assert ("floor_rule" in layers) == ("level_rule" in layers) == bool(said)


def test_lines_without_points_are_not_drawn() -> None:
    """The placing of names breaks on them."""
    section = section_of("", "", [row("mle", "mle", truth=Interval.of(0.2, 0.01), js=Interval.of(0.01, 0.0))])
    chart = dots.frontier(section, drawn(section), "f")
    assert chart is not None
    assert "dials" not in [layer["name"] for layer in chart.spec["layer"]]


def test_a_band_shows_nothing_impossible() -> None:
    wide = {"round": 1, "mean": 0.3, "low": -0.2, "high": 1.1}
    rounds = [{"figure": name, **wide} for name in ("true J", "entropy", "coverage@1")]
    section = section_of("", "", [row("ips", "ips", rounds=rounds)])
    charts = lines.round_charts(section, drawn(section), "r")
    found = {chart.title: chart.spec["datasets"]["values"][0] for chart in charts}
    bands = {name: (one["low"], one["high"]) for name, one in found.items()}
    assert bands == {"true J": (-0.2, 1.1), "entropy": (0.0, 1.1), "coverage@1": (0.0, 1.0)}
    assert len({one["value_text"] for one in found.values()}) == 1, "the words keep the whole interval"


def test_a_bar_shows_nothing_impossible() -> None:
    cut = {"figure": "buy.nDCG@20", "mean": 0.6, "low": -0.06, "high": 1.21}
    parts = [{**cut, "group": f"history {segment}"} for segment in ("1-3", "4-8")]
    wide = Interval(0.6, -0.1, 1.3)
    mle = row("mle", "mle", segments=parts, metrics={"buy.nDCG@20": wide}, js=Interval(0.1, -0.2, 0.4))
    section = section_of("", "", [mle])
    (chart,) = lines.segment_charts(section, drawn(section), "s")
    assert {(one["low"], one["high"]) for one in chart.spec["datasets"]["values"]} == {(0.0, 1.0)}
    assert all("[-0.0600, 1.2100]" in one["value_text"] for one in chart.spec["datasets"]["values"])
    point = dots.frontier(section, drawn(section), "f").spec["datasets"]["points"][0]
    assert [point[end] for end in ("x_low", "x_high", "y_low", "y_high")] == [0.0, 0.4, 0.0, 1.0]


@pytest.mark.parametrize(
    ("figure", "expected"),
    [("HR@5", (0.0, 1.0)), ("click MRR", (0.0, 1.0)), ("purchase.nDCG@20", (0.0, 1.0)), ("coverage", (0.0, 1.0)),
     ("KL", (0.0, 2.0)), ("AR@1", (-2.0, 2.0)), ("gain", (-2.0, 2.0)),
     ("validation 1*buy.nDCG@20 + 2*view.nDCG@20", (-2.0, 2.0))],
)  # fmt: skip
def test_what_a_figure_can_be(figure: str, expected: tuple[float, float]) -> None:
    assert tuple(bar(Interval(0.5, -2.0, 2.0), figure).values()) == expected


def test_rounds_are_charted_and_pictured() -> None:
    section = store()
    charts = lines.round_charts(section, drawn(section), "r")
    assert [chart.title for chart in charts] == ["true J", "coverage@1", "JS from the round before"]
    values = charts[0].spec["datasets"]["values"]
    for policy in section.policies:
        mine = [one for one in values if one["policy"] == policy.name]
        said = [
            one
            for one in section.measurements
            if one.policy == policy.name and one.figure == "true J" and one.round is not None
        ]
        assert len(said) == 5
        assert [(one["round"], one["value"], one["low"], one["high"]) for one in mine] == [
            (one.round, one.mean, one.low, one.high) for one in said
        ]
    assert all(one["low"] == one["value"] == one["high"] for one in charts[1].spec["datasets"]["values"])
    picture = lines.rounds_picture(Contents("", "", [section]), ["true J", "coverage@1"])
    assert picture.startswith("<svg") and all(policy.name in picture for policy in section.policies)
    assert picture == lines.rounds_picture(Contents("", "", [section]), ["true J", "coverage@1"])


def test_letters_are_dark_enough_to_read() -> None:
    """Colours of policies are for marks; letters need a contrast of 4.5 on white (WCAG 2, AA)."""
    assert contrast(OBJECTIVES["reward_weighted"][0]) < 3, "no colour for letters"
    section = store()
    chart = dots.frontier(section, drawn(section), "f")
    legend = lines._picture_legend(drawn(section))
    words = [layer for spec in (chart.spec, legend) for layer in spec["layer"] if layer["mark"]["type"] == "text"]
    assert {layer["name"] for layer in words} == {"floor_words", "level_words", "names", "legend_words"}
    for layer in words:
        assert "color" not in layer["encoding"]
        assert contrast(layer["mark"]["color"]) >= 4.5


def contrast(colour: str) -> float:
    """Of a colour on white: 1.05 / (luminance + 0.05)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 1.05 / (0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05)


def test_a_picture_is_written_for_the_version_that_the_pages_charts_are(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list = []
    monkeypatch.setattr(lines.vl_convert, "vegalite_to_svg", lambda spec: asked.append(spec))
    section = store()
    lines.rounds_picture(Contents("", "", [section]), ["true J"])
    chart = dots.frontier(section, drawn(section), "f")
    assert asked[0]["$schema"] == chart.spec["$schema"]


def test_further_than_noise_means_that_the_intervals_do_not_meet() -> None:
    floor, nan = Interval(0.04, 0.03, 0.05), float("nan")
    assert beyond_floor(Interval(0.07, 0.051, 0.09), floor) is True
    assert beyond_floor(Interval(0.07, 0.05, 0.09), floor) is False, "they touch"
    assert beyond_floor(Interval(0.07, 0.045, 0.095), floor) is False, "the mean alone is above"
    assert beyond_floor(Interval(0.07, nan, nan), floor) is None
    assert beyond_floor(Interval(0.07, 0.06, 0.08), Interval(0.04, nan, nan)) is None
    assert beyond_floor(None, floor) is beyond_floor(floor, None) is None


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [(1, 2, [1, 2]), (0, 1, [0, 1]), (1, 1, [1]), (1, 6, [*range(1, 7)]), (1, 8, [2, 4, 6, 8]), (0, 8, [0, 2, 4, 6, 8]),
     (1, 30, [5, 10, 15, 20, 25, 30]), (0, 1000, [0, 200, 400, 600, 800, 1000])],
)  # fmt: skip
def test_counts_have_whole_ticks(first: int, last: int, expected: list[int]) -> None:
    assert lines.whole_ticks(first, last) == expected


def test_epochs_and_rounds_are_counted_once() -> None:
    curve = [{"epoch": epoch, "selected_by": 0.1 * epoch} for epoch in (1, 2)]
    rounds = [{"figure": "true J", "round": number, "mean": 0.3} for number in (0, 1)]
    section = section_of("", "", [row("mle", "mle", curve=curve, rounds=rounds)])
    charts = [lines.curves(drawn(section), "c")[0], lines.round_charts(section, drawn(section), "r")[0]]
    ticks = [[layer["encoding"]["x"]["axis"]["values"] for layer in chart.spec["layer"]] for chart in charts]
    assert ticks == [[[1, 2]] * 3, [[0, 1]] * 4]
    scales = [chart.spec["layer"][0]["encoding"]["x"]["scale"]["domain"] for chart in charts]
    assert scales == [[1, 2], [0, 1]]


def test_labels_that_do_not_fit_stand_upright() -> None:
    metrics = {"HR@5": Interval.of(0.1, 0.0), "nDCG@20": Interval.of(0.2, 0.0)}
    blind = section_of("", "", [row("a", "mle", metrics=metrics)])
    assert dots.upright(store()) == "true J"
    assert dots.upright(blind) == "HR@5"
    assert dots.upright(replace(blind, main="nDCG@20")) == "nDCG@20"
    assert dots.upright(replace(blind, main="MRR")) == "HR@5", "nobody was measured by it"
    assert dots.upright(Section("", "", [])) is None


def test_rules_on_different_scales_have_charts_of_their_own() -> None:
    section = bandit()
    assert [policy.selected_by for policy in section.policies] == ["logp"] + ["AR@1"] * 5
    charts = lines.curves(drawn(section), "c")
    assert [chart.title for chart in charts] == ["logp", "AR@1", "effective share of the weights"]
    assert [chart.policies for chart in charts] == [
        {"mle"},
        {each.name for each in section.policies[1:]},
        {each.name for each in section.policies},
    ]
    kept = {(one["policy"], one["epoch"]) for one in charts[1].spec["datasets"]["values"] if one["kept"]}
    assert kept == {(policy.name, policy.selected_epoch) for policy in section.policies[1:]}


def test_the_stages_of_a_closed_form_have_charts_of_their_own() -> None:
    """Its run counts epochs on from stage to stage; here each begins at 1. Two β of one run are one line."""
    numbered = [("logging", 1, -2.0), ("logging", 2, -1.0), ("critic-1", 3, -0.3), ("critic-1", 4, -0.4)]
    recorded = [{"stage": stage, "epoch": epoch, "selected_by": value} for stage, epoch, value in numbered]
    recorded.append({"stage": "policy", "epoch": 4, "selected_by": 0.2})
    about = {
        "logging": {"epochs": 2, "selected": {"epoch": 2, "by": "logp"}},
        "critic-1": {"epochs": 2, "selected": {"epoch": 1, "by": "-1*return_error"}},
    }
    stages = _stages({"stages": about}, recorded)
    lpi = row("lpi", "lpi_rl", stages=stages, digest="d", selected_epoch=4, selected_by="value_low")
    plain = row("mle", "mle", curve=[{"epoch": 1, "selected_by": -1.5}], selected_epoch=1, selected_by="logp")
    section = section_of("", "", [plain, lpi, replace(lpi, name="lpi β=1")])
    charts = lines.curves(drawn(section), "c")
    assert [chart.title for chart in charts] == [
        "logp",
        "μ̂: held-out log-likelihood",
        "critic 1: minus the held-out squared error to the return",
    ]
    points = [
        [(one["policy"], one["epoch"], one["value"]) for one in chart.spec["datasets"]["values"]] for chart in charts
    ]
    assert points == [
        [("mle", 1, -1.5)], [("lpi", 1, -2.0), ("lpi", 2, -1.0)], [("lpi", 1, -0.3), ("lpi", 2, -0.4)],
    ]  # fmt: skip
    assert [one["epoch"] for one in charts[2].spec["datasets"]["values"] if one["kept"]] == [1]
    assert len({chart.identity for chart in charts}) == 3
    assert charts[2].numbers.plain() == [["1", "-0.3000"], ["2", "-0.4000"]]


def test_validations_within_an_epoch_are_points_of_their_own_and_one_was_kept() -> None:
    """Three per epoch; the best of all is the second of epoch 2, and a later one is as good."""
    values = [0.1, 0.2, 0.15, 0.3, 0.5, 0.5]
    curve = [
        {
            "epoch": 1 + place // 3,
            "step": 4 * (place + 1),
            **({"epoch_share": (place % 3 + 1) / 3} if place % 3 < 2 else {}),
            "weights": {"effective_share": 0.9 - 0.1 * place},
            "selected_by": value,
        }
        for place, value in enumerate(values)
    ]
    plain = [{"epoch": epoch, "selected_by": 0.4} for epoch in (1, 2)]
    rows = [
        row("often", "lpi_rl", curve=curve, selected_epoch=2, selected_by="AR@1"),
        row("plain", "lpi_rl", curve=plain, selected_epoch=1, selected_by="AR@1"),
    ]
    section = section_of("", "", rows)
    reached = [0.3333, 0.6667, 1, 1.3333, 1.6667, 2]
    for chart in lines.curves(drawn(section), "c"):
        data = chart.spec["datasets"]
        assert [one["epoch"] for one in data["values"] if one["policy"] == "often"] == reached
        assert [one["epoch"] for one in data["values"] if one["policy"] == "often" and one["kept"]] == [1.6667]
    marked = lines.curves(drawn(section), "c")[0].spec
    assert [one["epoch"] for one in marked["datasets"]["values"] if one["kept"]] == [1.6667, 1]
    assert marked["layer"][-1]["name"] == "dots"
    assert marked["layer"][-1]["transform"] == [{"filter": "datum.kept !== false"}], "the others are not marked"
    first, share = (chart.numbers for chart in lines.curves(drawn(section), "c"))
    for table, expected in ((first, values), (share, [line["weights"]["effective_share"] for line in curve])):
        shown = {cells[0].value: cells[1].value for cells in table.body if cells[1].value is not None}
        assert shown == dict(zip(reached, expected, strict=True))


def test_histogram_and_segments_show_all(usual_page: Path) -> None:
    drawings = specs(parse(usual_page))
    bins = drawings["s1-spread"]["datasets"]["bins"]
    assert len(bins) == sum(count > 0 for policy in bandit().policies for _, _, count in policy.js_histogram)
    assert {one["policy"]: one["base"] for one in bins} == {
        policy.name: -place for place, policy in enumerate(bandit().policies)
    }
    values = drawings["s2-segments-0"]["datasets"]["values"] + drawings["s2-segments-1"]["datasets"]["values"]
    assert sorted(one["value"] for one in values) == sorted(part.mean for part in store().segments)


def test_bins_of_any_width_are_told_apart(light: Callable[[Contents], Path]) -> None:
    edges = [(0.02 * step) ** 2 for step in range(11)]
    bins = [(low, high, 5) for low, high in pairwise(edges)]
    section = section_of("", "", [row("mle", "mle", js_histogram=bins)])
    page = parse(light(Contents("", "", [section])))
    said = [one["range"] for one in specs(page)["s1-spread"]["datasets"]["bins"]]
    assert said[:2] == ["0.00000 to 0.00040", "0.00040 to 0.00160"] and len(set(said)) == len(bins)
    axis = specs(page)["s1-spread"]["layer"][0]["encoding"]["x"]["axis"]
    assert axis["values"] == [0, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02]


def test_colours_follow_objectives_everywhere() -> None:
    contents = three()
    found: dict[str, set[tuple[str, str]]] = {}
    for section, styles in zip(contents.sections, all_series(contents), strict=True):
        for policy, style in zip(section.policies, styles, strict=True):
            found.setdefault(policy.objective, set()).add((style.colour, style.shape))
        assert len({(style.colour, style.shape, style.fill, style.dash) for style in styles}) == len(styles)
    assert all(len(pairs) == 1 for pairs in found.values())
    assert len(set(OBJECTIVES.values())) == len(OBJECTIVES)


def test_a_chart_draws_policies_as_their_series_say() -> None:
    section = store()
    series = drawn(section)
    layers = {one["name"]: one["encoding"] for one in lines.round_charts(section, series, "r")[0].spec["layer"]}
    styles = {"fill": "fill", "stroke": "colour", "shape": "shape", "color": "colour", "strokeDash": "dash"}
    for channel, style in styles.items():
        drawn_as = layers["dots" if channel in layers["dots"] else "lines"][channel]
        assert drawn_as["field"] == "policy" and drawn_as["legend"] is None
        expected = {each.policy.name: json.loads(json.dumps(getattr(each, style))) for each in series}
        assert dict(zip(drawn_as["scale"]["domain"], drawn_as["scale"]["range"], strict=True)) == expected


def test_thirty_policies_look_different() -> None:
    styles = drawn(crowded())
    assert len({(style.colour, style.shape, style.fill) for style in styles}) == 30


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.5034, 0.01], 4),
        ([0.0911], 5),
        ([12.5], 2),
        ([123456.0], 0),
        ([0.0], 1),
        ([], 1),
        ([None, 0.2], 4),
        ([1e-9], 6),
    ],
)
def test_places_give_four_figures(values: list[float | None], expected: int) -> None:
    assert decimals(values) == expected


def test_numbers_are_printed_as_people_write_them() -> None:
    assert [fixed(-0.5, 2), fixed(-0.001, 2), fixed(12345.678, 1), fixed(None, 1)] == ["-0.50", "0.00", "12,345.7", "—"]
    assert [percent(0.1234), percent(1.0), percent(None)] == ["12.3 %", "100.0 %", "—"]
    assert interval_text(Interval.of(0.5, 0.01), 3) == "0.500 ± 0.020"
    assert range_text(Interval(0.5, 0.4, 0.8), 2) == "[0.40, 0.80]"
    assert range_text(Interval(0.5, 0.49999, 0.50001), 2) == "± <0.01"
    assert range_text(Interval(0.5, 0.5, 0.5), 2) == ""
    assert joined(["a"]) == "a" and joined(["a", "b", "c"]) == "a, b and c"
    assert [Interval(0.0, low, high).sign for low, high in ((1, 2), (-2, -1), (-1, 1), (0, 1))] == [
        1,
        -1,
        0,
        0,
    ]
