"""A comparison's page says what its figures say."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from page_tree import cells, parse, specs

from localpolicy.cli.main import main
from localpolicy.errors import ConfigError
from localpolicy.evaluation.compare import Comparison, compare
from localpolicy.evaluation.estimate import Estimate
from localpolicy.evaluation.significance import holm, paired
from localpolicy.report.comparison.findings import comparison_findings, comparison_verdict
from localpolicy.report.comparison.section import comparison_section, write_comparison
from localpolicy.report.contents import Interval, PolicyRow, Section
from localpolicy.runs.config import Config
from localpolicy.simulation import StoreConfig, StoreWorld, write_prepared
from localpolicy.training.loop import train

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))  # the browser of the report's tests
from chromium import BINARY, Browser

pytest.importorskip("altair", reason="the extra `report` is not installed")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """Two μ̂ and one improvement, on one small store."""
    folder = tmp_path_factory.mktemp("compared")
    world = StoreWorld(StoreConfig(items=30, categories=3, mean_length=8), seed=0)
    write_prepared(world, folder / "data", sequences=600, seed=0)
    made = {}
    for name, seed in (("mle", 0), ("mle", 1), ("lpi_rl", 2)):
        settings = {"objective": {"name": name}, "model": {"width": 8}, "train": {"epochs": 2, "seed": seed}}
        out = folder / f"{name}-{seed}"
        made[out.name] = train(folder / "data", out=out, config=Config.parse(settings)).folder
    return made


@pytest.fixture(scope="module")
def comparison(runs) -> Comparison:
    return compare(list(runs.values()), episodes=60)


@pytest.fixture(scope="module")
def section(comparison) -> Section:
    return comparison_section(comparison)


@pytest.fixture
def page(comparison, monkeypatch, tmp_path):
    monkeypatch.setattr("localpolicy.report.html.assemble.library", lambda: "/* the charting library */")
    write_comparison(comparison, tmp_path / "report.html")
    return parse(tmp_path / "report.html")


def value(cell) -> float:
    return float(str(cell.attributes["data-value"]))


def test_tables_parse_back_to_the_json(comparison, page):
    said = comparison.to_dict()
    rows = cells(page, "s1-comparison")
    assert list(rows) == list(said["policies"]) == [
        "mle-0", "mle-1", "lpi_rl-2", "popularity", "last item", "item-kNN",
    ]  # fmt: skip
    for name, policy in said["policies"].items():
        assert value(rows[name]["J(π)"]) == policy["truth"]["value"]
        assert value(rows[name]["gain"]) == policy["truth"]["gain"]
        assert value(rows[name]["JS"]) == policy["divergence"]["js"]["mean"]
        assert value(rows[name]["KL"]) == policy["divergence"]["kl"]["mean"]
        assert value(rows[name]["entropy"]) == policy["policy"]["entropy"]["mean"]
        assert value(rows[name]["coverage@20"]) == policy["policy"]["coverage@20"]
        assert value(rows[name]["AR@1"]) == policy["rewards"]["AR@1"]["mean"]
        for column in said["columns"]:
            group, metric = column.split(".")
            assert value(rows[name][f"{group} {metric}"]) == policy["metrics"][group][metric]["mean"]


def test_every_part_of_the_report_is_there(page, runs):
    heads = [head.text for head in page.all("h3")]
    for words in ("Findings", "Reward against", "Comparison", "Training", "Distance", "Where it wins", "What would"):
        assert any(head.startswith(words) for head in heads), words
    titles = {head.text for head in page.all("h4")}
    for cut in ("history length", "popularity of the item taken", "repeats against new items"):
        assert f"purchase nDCG@20, by {cut}" in titles
    assert "effective share of the weights" in titles
    assert {head.text for head in page.all("h5")} == {"mle-0", "lpi_rl-2"}, "μ̂ and π side by side"
    facts = page.all("details")[-3].text + page.all("details")[-1].text
    assert "settings of lpi_rl-2" in facts and "objective.name=lpi_rl" in facts and "data digest" in facts
    charts = specs(page)
    assert charts["s1-frontier"]["datasets"]["floor"], "the noise floor is drawn in"


def test_segments_add_up_to_the_whole(comparison, section):
    for row in section.rows:
        for by in {part["by"] for part in row.segments}:
            parts = [part for part in row.segments if part["by"] == by]
            total = sum(part["n"] for part in parts)
            mean = sum(part["n"] * part["mean"] for part in parts) / total
            figure = comparison[row.name].estimate(comparison.main)
            assert total == figure.n
            assert mean == pytest.approx(figure.mean)


def test_the_histogram_holds_every_context_once(comparison, section):
    for row in section.rows:
        counts = [count for _, _, count in row.js_histogram]
        assert sum(counts) == len(comparison[row.name].scores)
        steps = np.diff(np.sqrt([row.js_histogram[0][0], *(high for _, high, _ in row.js_histogram)]))
        assert steps == pytest.approx(np.full(len(counts), steps[0])), "equal steps of the root"
        middle = sum((low + high) / 2 * count for low, high, count in row.js_histogram) / sum(counts)
        assert row.js is not None
        assert middle == pytest.approx(row.js.mean, abs=max(high - low for low, high, _ in row.js_histogram))


def test_the_floor_is_the_distance_between_two_estimates(comparison, section, runs):
    between = comparison["lpi_rl-2"].scores.js["mle-0|mle-1"].mean()
    assert section.floor is not None and section.floor.mean == pytest.approx(between, rel=1e-5)
    # One reference has no pair; an estimate of another seed among those measured says the same.
    one = compare([runs["mle-0"], runs["lpi_rl-2"]], against=[runs["mle-1"]], baselines=False, episodes=20)
    alone = comparison_section(one).floor
    assert alone is not None and alone.mean == pytest.approx(between, rel=1e-5)
    none = compare([runs["lpi_rl-2"]], against=[runs["mle-1"]], baselines=False, episodes=20)
    assert comparison_section(none).floor is None


def test_marks_hold_for_all_tests_together(comparison, section):
    row = next(row for row in section.rows if row.name == "lpi_rl-2")
    (new, clusters), (old, _) = (comparison[name].values(comparison.main) for name in ("lpi_rl-2", "mle-0"))
    expected = paired(new, old, clusters)
    found = row.differences[section.main_metric]
    assert (found.mean, found.low, found.high, found.p) == expected[:1] + expected[2:5]
    every = [gain for row in section.rows for gain in row.differences.values()]
    assert len(every) == 5 * (len(comparison.columns) + 1)
    assert [gain.holm_p for gain in every] == holm([gain.p for gain in every])
    assert {gain.sign for gain in every if gain.holm_p >= 0.05} <= {0}
    assert section.baseline == "mle-0" and not section.rows[0].differences


def markdown_rows(text: str, title: str) -> dict[str, dict[str, str]]:
    """The cells of the Markdown table under `title`, by row and column."""
    lines = text.partition(f"**{title}**")[2].strip().splitlines()
    table = [[part.strip() for part in line.strip("|").split("|")] for line in lines[: lines.index("")]]
    return {row[0]: dict(zip(table[0], row, strict=True)) for row in table[2:]}


def test_terminal_json_markdown_and_page_show_the_same_numbers(runs, tmp_path, monkeypatch, capsys):
    """One reference and one μ̂ of another seed among those compared: the floor is known to all four."""
    files = {kind: tmp_path / f"found.{kind}" for kind in ("json", "markdown", "html")}
    words = ["compare", str(runs["mle-0"]), str(runs["lpi_rl-2"]), "--against", str(runs["mle-1"])]
    words += ["--baseline", "mle-0"] + [word for kind, path in files.items() for word in (f"--{kind}", str(path))]
    monkeypatch.setattr(sys, "argv", ["lpi", *words])
    monkeypatch.setattr("localpolicy.report.html.assemble.library", lambda: "/* the charting library */")
    with pytest.raises(SystemExit):
        main()
    terminal, said = capsys.readouterr().out, json.loads(files["json"].read_text())
    markdown, page = files["markdown"].read_text(), parse(files["html"])
    floor = said["floor"]["mean"]
    assert said["policies"]["lpi_rl-2"]["divergence"]["floor"] is None, "one reference alone has no floor"
    assert floor == said["policies"]["mle-0"]["divergence"]["js"]["mean"]
    assert f"noise floor {floor:.3f}" in terminal and f"noise floor {floor:.3f}" in markdown
    (drawn,) = specs(page)["s1-frontier"]["datasets"]["floor"]
    assert drawn["x"] == floor
    rows, shown = cells(page, "s1-comparison"), markdown_rows(markdown, "Policies compared")
    gained = markdown_rows(markdown, "Gain over mle-0")
    for name, policy in said["policies"].items():
        coverage = policy["policy"]["coverage@20"]
        assert value(rows[name]["coverage@20"]) == coverage
        assert float(shown[name]["coverage@20"]) == pytest.approx(coverage, abs=0.0005)
        for figure, gain in said["gains"].get(name, {}).items():
            cell = rows[name][figure.replace(".", " ")]
            sure = gain["holm_p"] < 0.05
            marks = {str(mark.attributes["class"]) for mark in cell.all("span")} & {"mark up", "mark down"}
            assert marks == ({"mark up" if gain["mean"] > 0 else "mark down"} if sure else set())
            text = f"{gain['mean']:+.4f} [{gain['low']:+.4f}, {gain['high']:+.4f}]"
            assert gained[name][figure] == text + gain["stars"].replace("*", r"\*")
            assert f"{text}{gain['stars']}" in terminal
            assert bool(gain["stars"]) == sure
    assert any(gain["stars"] for gains in said["gains"].values() for gain in gains.values()), "some mark is compared"


# ---------------------------------------------------------------------- words


def row(name: str, objective: str, metric: float, js: float | None, gain: float | None = None) -> PolicyRow:
    return PolicyRow(
        name,
        objective,
        metrics={"click nDCG@20": Interval.of(metric, 0.001)},
        js=None if js is None else Interval.of(js, 0.001),
        truth=None if gain is None else Interval.of(1 + gain, 0.01),
        gain=None if gain is None else Interval.of(gain, 0.01),
    )


def test_of_several_floors_the_largest_is_drawn():
    """A policy must be further than the noisiest pair of estimates."""
    floors = [
        SimpleNamespace(floor_js=SimpleNamespace(overall=Estimate(mean, 0.001, 50, 0.001))) for mean in (0.02, 0.05)
    ]
    other = SimpleNamespace(about=SimpleNamespace(objective="lpi_rl", family="another"))
    measured = [SimpleNamespace(divergence=one) for one in floors]
    found = Comparison(measured, [], [], data=None, candidates=[other, other], references=[]).floor
    assert found is not None and found.mean == 0.05


def said(*rows: PolicyRow, p: float = 0.5, floor: float | None = 0.04) -> tuple[str, dict[str, bool | None]]:
    test = paired(np.array([0.3, 0.4, 0.5]), np.array([0.1, 0.2, 0.2]), np.arange(3))
    lead = SimpleNamespace(holm_p=p, test=test)
    made = SimpleNamespace(
        main="click.nDCG@20", columns=["click.nDCG@20"], leads={"click.nDCG@20": lead} if len(rows) > 1 else {}
    )
    truth = Interval(1.0, 1.0, 1.0) if rows[0].gain else None
    around = None if floor is None else Interval.of(floor, 0.001)
    section = Section("", "", rows, main_metric="click nDCG@20", floor=around, logging_value=truth)
    found = {one.claim: one.holds for one in comparison_findings(made, section)}
    return comparison_verdict(made, section), found


MLE = row("mle", "mle", 0.30, 0.04)


def test_words_say_whether_the_lead_is_sure():
    text, found = said(MLE, row("lpi", "lpi_rl", 0.35, 0.12), p=0.01)
    assert text == (
        "lpi leads by click nDCG@20: 0.3500 against 0.3000 of mle, a lead that is sure. "
        "It moved JS 0.12 from the log, 3.0 times the noise floor."
    )
    assert found["the lead of lpi in click nDCG@20 is sure"] is True
    assert found["lpi moved further than noise"] is True
    text, found = said(MLE, row("lpi", "lpi_rl", 0.35, 0.12), p=0.06)
    assert "a lead that could be chance" in text
    assert found["the lead of lpi in click nDCG@20 is sure"] is False


def test_words_know_the_floor():
    text, found = said(MLE, row("lpi", "lpi_rl", 0.35, 0.041))
    assert "not surely further than another seed would be (floor 0.040)" in text
    assert found["lpi moved further than noise"] is False
    text, found = said(MLE, row("lpi", "lpi_rl", 0.35, 0.12), floor=None)
    assert "only a second mle seed would tell" in text
    assert found["lpi moved further than noise"] is None
    assert "is not known" in said(row("lpi", "lpi_rl", 0.35, None))[0]


def test_words_and_findings_go_by_one_rule_for_noise():
    """JS 0.043 ± 0.002, floor 0.040 ± 0.002: the mean is above the floor's interval, its own interval is not."""
    text, found = said(MLE, row("lpi", "lpi_rl", 0.35, 0.043))
    assert "not surely further" in text and "times" not in text
    assert found["lpi moved further than noise"] is False
    text, found = said(MLE, row("lpi", "lpi_rl", 0.35, 0.045))
    assert "1.1 times the noise floor" in text
    assert found["lpi moved further than noise"] is True


def test_a_floor_of_nothing_is_no_divisor():
    text, found = said(MLE, row("lpi", "lpi_rl", 0.35, 0.12), floor=0.0)
    assert "It moved JS 0.12 from the log; the noise floor is 0." in text
    assert found["lpi moved further than noise"] is True


def test_words_do_not_hide_a_simple_baseline_that_wins():
    text, found = said(MLE, row("item-kNN", "item-kNN", 0.4, 0.2), row("lpi", "lpi_rl", 0.35, 0.12))
    assert text.startswith("item-kNN, a simple baseline, leads by click nDCG@20: 0.4000 against 0.3500 of lpi")
    assert "Of the trained policies lpi ranks highest, with 0.3500. It moved JS 0.12" in text
    assert found["every trained policy ranks above the simple baselines"] is False


def test_words_tell_the_truth_where_a_world_knows_it():
    text, found = said(row("mle", "mle", 0.3, 0.04, gain=-0.02), row("lpi", "lpi_rl", 0.35, 0.12, gain=0.1))
    assert text.endswith("In truth it earns +10% over the logging policy, the most of all.")
    assert found["click nDCG@20 on the log picks the policy that earns most"] is True
    text, found = said(row("ips", "ips", 0.3, 0.4, gain=0.3), row("lpi", "lpi_rl", 0.35, 0.12, gain=0.1))
    assert text.endswith("In truth it earns +10% over the logging policy; ips earns most, +30%.")
    assert found["click nDCG@20 on the log picks the policy that earns most"] is False


# ---------------------------------------------------------------------- as a user


def test_the_command_writes_one_page_that_needs_no_network(runs, tmp_path, monkeypatch, capsys):
    words = ["lpi", "compare", *map(str, runs.values()), "--no-baselines", "--html", str(tmp_path / "page.html")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code in (0, None)
    assert f"report: {tmp_path / 'page.html'}" in capsys.readouterr().err
    assert (tmp_path / "page.html").stat().st_size < 2_000_000
    if BINARY is None:
        pytest.skip("Chromium is not installed: the page was written, not opened")
    with Browser(tmp_path / "profile") as browser:
        browser.open(tmp_path / "page.html")
        assert browser.said == []
        assert set(browser.asked) == {(tmp_path / "page.html").as_uri()}
        assert browser.run("document.querySelectorAll('#s1-frontier .points_marks path').length") == 3


def test_a_baseline_that_is_not_there_is_refused(comparison, runs, tmp_path, monkeypatch, capsys):
    with pytest.raises(ConfigError, match="did you mean 'lpi_rl-2'"):
        compare([runs["lpi_rl-2"]], baseline="lpi_rl", baselines=False)
    words = ["lpi", "compare", str(runs["mle-0"]), "--baseline", "none", "--html", str(tmp_path / "no.html")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2 and "no policy 'none'" in capsys.readouterr().err
    assert not (tmp_path / "no.html").exists()
