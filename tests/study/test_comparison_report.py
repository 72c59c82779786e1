"""A comparison's page says what its figures say."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from measured import holm
from page_tree import cells, parse, specs

from localpolicy.cli.main import main
from localpolicy.errors import ConfigError
from localpolicy.judge.compare import compare
from localpolicy.judge.comparison import Comparison
from localpolicy.measure.estimate import Estimate
from localpolicy.measure.significance import Paired, paired
from localpolicy.report.comparison import comparison_section, write_comparison
from localpolicy.report.comparison_words import _is_better, comparison_claims, comparison_headline
from localpolicy.report.contents import Contents, Interval, Section
from localpolicy.report.page import write_report
from localpolicy.runs.config import Config
from localpolicy.simulation import StoreConfig, StoreWorld, write_prepared
from localpolicy.training.train import train

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))  # the browser and the examples of the report's tests
from chromium import BINARY, Browser
from report_examples import Row, section_of
from report_examples import row as row_of

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
    monkeypatch.setattr("localpolicy.report.page.library", lambda: "/* the charting library */")
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
        estimated = policy["off_policy"]["estimates"].get("SNIPS")
        assert (estimated is None) == (rows[name]["value"].text == "—"), "refused, and so not shown"
        if estimated is not None:
            assert value(rows[name]["value"]) == estimated["value"]
            (row,) = (each for each in comparison[name].rows if each.figure == "SNIPS")
            assert [row.low, row.high] == estimated["intervals"]["skewness corrected"]
        assert value(rows[name]["KL"]) == policy["divergence"]["kl"]["mean"]
        assert value(rows[name]["entropy"]) == policy["policy"]["entropy"]["mean"]
        assert value(rows[name]["coverage@20"]) == policy["policy"]["coverage@20"]
        assert value(rows[name]["AR@1"]) == policy["rewards"]["AR@1"]["mean"]
        for column in said["columns"]:
            group, metric = column.split(".")
            assert value(rows[name][f"{group} {metric}"]) == policy["metrics"][group][metric]["mean"]


def test_every_part_of_the_report_is_there(page, comparison):
    heads = [head.text for level in ("h2", "h3") for head in page.all(level)]
    for words in ("Findings", "Reward against", "Comparison", "Training", "Distance", "Where it wins", "What would"):
        assert any(head.startswith(words) for head in heads), words
    titles = {head.text for head in page.all("h4")}
    for cut in ("history length", "popularity of the item taken", "repeats against new items"):
        assert f"{comparison.main.replace('.', ' ')}, by {cut}" in titles
    assert "effective share of the weights" in titles
    assert {head.text for head in page.all("h5")} == {"mle-0", "lpi_rl-2"}, "μ̂ and π side by side"
    facts = page.all("details")[-3].text + page.all("details")[-1].text
    assert "settings of lpi_rl-2" in facts and "objective.name=lpi_rl" in facts and "data digest" in facts
    charts = specs(page)
    assert charts["s1-frontier"]["datasets"]["floor"], "the noise floor is drawn in"


def test_a_policy_is_called_by_its_new_name_everywhere(comparison):
    new = {"lpi_rl-2": "ours", "mle-0": "the log"}
    section = comparison_section(comparison, names=new)
    expected = [new.get(each.name, each.name) for each in comparison.evaluations]
    assert section.names == expected and section.baseline == "the log"
    assert {row.policy for row in section.measurements} == {row.policy for row in section.segments} == set(expected)
    assert list(section.gains) == [name for name in expected if name != "the log"]
    assert [list(sample.lists) for sample in section.samples] == [["the log", "ours"]] * 3
    assert {"settings of ours", "settings of the log", "settings of mle-1"} <= set(section.facts)
    assert section.reference.startswith("the mean over the log (mle, seed 0, epoch ")


def test_segments_add_up_to_the_whole(comparison, section):
    for policy in section.policies:
        for kind in (("history",), ("popularity",), ("repeat", "new")):
            mine = [part for part in section.segments if part.policy == policy.name]
            parts = [part for part in mine if part.group.split()[0] in kind]
            total = sum(part.n for part in parts)
            mean = sum(part.n * part.mean for part in parts) / total
            figure = comparison[policy.name].estimate(comparison.main)
            assert total == figure.n
            assert mean == pytest.approx(figure.mean)


def test_the_histogram_holds_every_context_once(comparison, section):
    for policy in section.policies:
        bars = policy.js_histogram
        counts = [count for _, _, count in bars]
        assert sum(counts) == len(comparison[policy.name].scores)
        steps = np.diff(np.sqrt([bars[0][0], *(high for _, high, _ in bars)]))
        assert steps == pytest.approx(np.full(len(counts), steps[0])), "equal steps of the root"
        middle = sum((low + high) / 2 * count for low, high, count in bars) / sum(counts)
        assert middle == pytest.approx(section.mean(policy.name, "JS"), abs=max(high - low for low, high, _ in bars))


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
    (new, clusters), (old, _) = (comparison[name].values(comparison.main) for name in ("lpi_rl-2", "mle-0"))
    expected = paired(new, old, clusters)
    found = section.gains["lpi_rl-2"][section.main]
    assert (found.difference, found.se, found.p) == (expected.difference, expected.se, expected.p)
    assert found.low <= expected.low and found.high >= expected.high, "corrected"
    every = [gain for gains in section.gains.values() for gain in gains.values()]
    assert len(every) == 5 * (len(comparison.columns) + 1)
    assert [gain.holm_p for gain in every] == holm([gain.p for gain in every])
    assert all(bool(gain.sign) == (gain.holm_p < 0.05) for gain in every)
    assert section.baseline == "mle-0" and "mle-0" not in section.gains


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
    monkeypatch.setattr("localpolicy.report.page.library", lambda: "/* the charting library */")
    with pytest.raises(SystemExit):
        main()
    terminal, said = capsys.readouterr().out, json.loads(files["json"].read_text())
    markdown, page = files["markdown"].read_text(), parse(files["html"])
    floor = said["floor"]["mean"]
    claims = [[claim["claim"], claim["because"]] for claim in said["claims"]]
    listed = [[words.text for words in item.all("p")] for item in page.under("s1").all("li") if item.all("p")]
    assert claims == listed and claims, "the file and the page make the same claims"
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
            assert marks == ({"mark up" if gain["difference"] > 0 else "mark down"} if sure else set())
            text = f"{gain['difference']:+.4f} [{gain['low']:+.4f}, {gain['high']:+.4f}]"
            assert gained[name][figure] == text + gain["stars"].replace("*", r"\*")
            assert f"{text}{gain['stars']}" in terminal
            assert bool(gain["stars"]) == sure
    assert any(gain["stars"] for gains in said["gains"].values() for gain in gains.values()), "some mark is compared"


# ---------------------------------------------------------------------- words

METRIC = "click.nDCG@20"


def difference(gap: float, p: float) -> Paired:
    """A gain that is significant where p is below 5 %."""
    reach = abs(gap) / 2 if p < 0.05 else 2 * abs(gap) + 0.01
    return Paired(gap, 0.005, gap - reach, gap + reach, p, p, 900, p)


def row(
    name: str, objective: str, metric: float, js: float | None, *, gain: float | None = None, p: float = 0.01,
    over: float = 0.3,
) -> Row:  # fmt: skip
    """A policy whose metric differs from `over`, the baseline's, with a corrected p-value; `gain` is in truth."""
    gap = metric - over
    return row_of(
        name,
        objective,
        metrics={METRIC: Interval.of(metric, 0.001)},
        js=None if js is None else Interval.of(js, 0.001),
        truth=None if gain is None else Interval.of(1 + gain, 0.01),
        gain=None if gain is None else Interval.of(gain, 0.01),
        gains={} if name == "mle" else {METRIC: difference(gap, p)},
        coverage=0.4,
    )


def said(
    *rows: Row, p: float = 0.5, floor: float | None = 0.04, unseen: tuple[str, ...] = ()
) -> tuple[Contents, dict[str, bool | None]]:
    lead = SimpleNamespace(best="lpi", second="mle", test=difference(0.2, p))
    data = {"digest": "d"}
    made = SimpleNamespace(
        main="click.nDCG@20",
        columns=["click.nDCG@20"],
        leads={"click.nDCG@20": lead} if len(rows) > 1 else {},
        candidates=[
            SimpleNamespace(
                estimates_logging=row.objective == "mle",
                run=SimpleNamespace(folder=Path("my runs") / row.name, manifest={"data": data}),
                beta=0.3 if row.name == "dial" else None,
            )
            for row in rows
        ],
        references=[SimpleNamespace(run=SimpleNamespace(folder=Path("my runs") / name)) for name in ("mle", "mle-1")],
        data=SimpleNamespace(digests=("d",), path=Path("data-2")),
        baseline=None,
        gains={},
        notes=(),
        evaluations=rows,
        feature_gains=[],
    )
    truth = Interval(1.0, 1.0, 1.0) if "true gain" in rows[-1].figures else None
    around = None if floor is None else Interval.of(floor, 0.001)
    baseline = "mle" if any(row.name == "mle" for row in rows) else ""
    section = section_of(
        "", "", rows, main=METRIC, floor=around, logging_value=truth, baseline=baseline, unseen_by_js=unseen
    )
    found = {one.claim: one.holds for one in comparison_claims(made, section)}
    return comparison_headline(made, section), found


MLE = row("mle", "mle", 0.30, 0.04)


def test_the_answer_says_whether_a_new_policy_is_better():
    answer, found = said(MLE, row("lpi", "lpi_rl", 0.35, 0.12), p=0.01)
    assert answer.verdict == (
        "lpi is better than mle, which imitates the log: click nDCG@20 0.3000 → 0.3500 (+17%), more than chance "
        "explains. It moves 3.0 times as far from the log as a retrained copy would."
    )
    assert [number.value for number in answer.numbers] == ["+0.0500", "0.12", "40.0 %"]
    pasted = "lpi gate 'my runs/lpi' --against 'my runs/mle' --against 'my runs/mle-1'"
    assert answer.next_step.startswith(f"Ask the gate ({pasted}), then test it online")
    dial = said(MLE, row("dial", "lpi_rl", 0.35, 0.12), p=0.01)[0].next_step
    assert dial.startswith("Ask the gate (lpi gate 'my runs/dial' --against") and "--beta 0.3), then" in dial
    assert found["lpi is better than the second best in click nDCG@20, beyond chance"] is True
    assert found["lpi differs from the log by more than seed noise"] is True
    answer, found = said(MLE, row("lpi", "lpi_rl", 0.35, 0.12, p=0.06), p=0.06)
    assert answer.verdict == "No new policy is better than mle, which imitates the log, beyond chance."
    assert "-0.0600 to +0.1600 with 95 % confidence: may be chance" in answer.numbers[0].meaning
    assert answer.next_step.startswith("Keep what is deployed.")
    assert found["lpi is better than the second best in click nDCG@20, beyond chance"] is False
    assert said(MLE, row("lpi", "lpi_rl", 0.25, 0.12))[0].verdict.startswith("Every new policy is worse than mle")


def test_words_know_the_floor():
    answer, found = said(MLE, row("lpi", "lpi_rl", 0.35, 0.041))
    assert answer.verdict.endswith("It stays as close to the log as a retrained copy would.")
    assert "differ by 0.040: that much is noise" in answer.numbers[1].meaning
    assert found["lpi differs from the log by more than seed noise"] is False
    answer, found = said(MLE, row("lpi", "lpi_rl", 0.35, 0.12), floor=None)
    assert "Train a second mle seed first" in answer.next_step
    assert found["lpi differs from the log by more than seed noise"] is None
    assert "not known" in said(MLE, row("lpi", "lpi_rl", 0.35, None))[0].verdict


def test_words_and_findings_go_by_one_rule_for_noise():
    """JS 0.043 ± 0.002, floor 0.040 ± 0.002: the mean is above the floor's interval, its own interval is not."""
    answer, found = said(MLE, row("lpi", "lpi_rl", 0.35, 0.043))
    assert "as close to the log as a retrained copy" in answer.verdict
    assert found["lpi differs from the log by more than seed noise"] is False
    answer, found = said(MLE, row("lpi", "lpi_rl", 0.35, 0.045))
    assert "1.1 times as far" in answer.verdict
    assert found["lpi differs from the log by more than seed noise"] is True


def test_a_floor_of_nothing_is_no_divisor():
    answer, found = said(MLE, row("lpi", "lpi_rl", 0.35, 0.12), floor=0.0)
    assert answer.verdict.endswith("It moves away from the log.")
    assert found["lpi differs from the log by more than seed noise"] is True


def test_words_do_not_hide_a_simple_baseline_that_wins():
    answer, found = said(MLE, row("item-kNN", "item-kNN", 0.4, 0.2), row("lpi", "lpi_rl", 0.35, 0.12))
    assert answer.verdict == (
        "No trained policy ranks above item-kNN, a simple baseline: click nDCG@20 0.3500 of lpi against 0.4000."
    )
    assert answer.next_step.startswith("Deploy none of the trained policies yet.")
    assert found["every trained policy ranks above the simple baselines"] is False


def test_words_tell_the_truth_where_a_world_knows_it():
    answer, found = said(MLE, row("lpi", "lpi_rl", 0.35, 0.12, gain=0.1))
    assert answer.numbers[2].value == "+10%" and "the most of all" in answer.numbers[2].meaning
    answer, found = said(MLE, row("ips", "ips", 0.3, 0.4, gain=0.3), row("lpi", "lpi_rl", 0.35, 0.12, gain=0.1))
    assert answer.numbers[2].value == "+10%" and "ips earns most: +30%" in answer.numbers[2].meaning
    assert found["click nDCG@20 on the log picks the policy that earns most"] is False


def test_one_policy_alone_has_nothing_to_beat():
    answer, _ = said(row("lpi", "lpi_rl", 0.35, 0.12))
    assert answer.verdict == "lpi ranks highest, with a click nDCG@20 of 0.3500."
    assert "Add a run to compare" in answer.next_step


def test_what_js_cannot_see_is_said(tmp_path, monkeypatch):
    """A policy as close to the log as another seed by JS, that ranks significantly worse."""
    blind = row("popularity", "popularity", 0.05, 0.039)
    _, found = said(MLE, blind, row("lpi", "lpi_rl", 0.35, 0.12), unseen=("popularity",))
    assert found["JS alone shows which policies resemble the log"] is False
    assert "JS alone shows which policies resemble the log" not in said(MLE, row("lpi", "lpi_rl", 0.35, 0.12))[1]
    monkeypatch.setattr("localpolicy.report.page.library", lambda: "/* the charting library */")
    floor = Interval.of(0.04, 0.001)
    section = section_of("", "", [MLE, blind], main=METRIC, floor=floor, baseline="mle", unseen_by_js=["popularity"])
    write_report(Contents("", "", [section]), tmp_path / "page.html")
    marks = [
        mark.text for mark in cells(parse(tmp_path / "page.html"), "s1-comparison")["popularity"]["JS"].all("span")
    ]
    assert marks[0].startswith("≈!")


def test_js_is_blind_where_it_is_within_noise_and_ranks_differ():
    def measured(name: str, js: float) -> SimpleNamespace:
        spread = SimpleNamespace(overall=Estimate(js, 0.001, 50, 0.001))
        return SimpleNamespace(name=name, divergence=SimpleNamespace(js=spread, floor_js=spread))

    class Fixed(Comparison):
        main = "click.nDCG@20"
        floor = Estimate(0.04, 0.001, 50, 0.001)
        gains: ClassVar = {
            name: {"click.nDCG@20": difference(-0.2, p)}
            for name, p in (("near", 0.01), ("near too", 0.2), ("far", 0.01))
        }

    evaluations = [measured("near", 0.039), measured("near too", 0.039), measured("far", 0.2)]
    found = Fixed(evaluations, [], [], data=None, candidates=[], references=[]).unseen_by_js
    assert found == ["near"]


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


def test_one_difference_has_one_interval():
    """Before: the lead over μ̂ and the gain over μ̂ were one difference with two intervals, corrected otherwise."""
    lead, gain = difference(0.2, 0.01), difference(0.2, 0.04)
    made = SimpleNamespace(
        main="click.nDCG@20", columns=["click.nDCG@20"], baseline="mle", gains={"lpi": {"click.nDCG@20": gain}},
        leads={"click.nDCG@20": SimpleNamespace(best="lpi", second="mle", test=lead)},
    )  # fmt: skip
    section = section_of("", "", [MLE, row("lpi", "lpi_rl", 0.5, 0.12)], main=METRIC)
    because = _is_better(made, section, section.names[1]).because
    assert f"over mle, 95 % interval {gain.low:+.4f} to {gain.high:+.4f}" in because and "all gains shown" in because
    made.baseline = "another"
    because = _is_better(made, section, section.names[1]).because
    assert f"{lead.low:+.4f} to {lead.high:+.4f}" in because and "corrected for 1 columns" in because
