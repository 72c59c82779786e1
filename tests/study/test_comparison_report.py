"""A comparison's page says what its figures say."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from measured import holm, scores
from page_tree import cells, parse, specs
from pyarrow import csv

from localpolicy.cli.main import main
from localpolicy.data.store_writer import writing
from localpolicy.errors import ConfigError
from localpolicy.judge.claims import unjudged
from localpolicy.judge.compare import compare
from localpolicy.judge.comparison import VALUE, Comparison
from localpolicy.judge.gate import gate
from localpolicy.judge.gate_value import Valued
from localpolicy.measure.estimate import Estimate, Measurement, as_json
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.metrics import Question
from localpolicy.measure.significance import Lead, Paired, paired
from localpolicy.measure.summary import ranking
from localpolicy.report.comparison import comparison_section, write_comparison
from localpolicy.report.comparison_answer import comparison_headline
from localpolicy.report.comparison_tables import HEADS, comparison_tables, policies_table
from localpolicy.report.comparison_words import comparison_claims
from localpolicy.report.contents import Contents, Interval, Section
from localpolicy.report.gate import WORTH
from localpolicy.report.page import write_report
from localpolicy.report.table import Cell
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
        assert f"{comparison.ranked.replace('.', ' ')}, by {cut}" in titles
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
    assert set(section.gains) == set(expected) and list(section.gains["the log"]) == ["true gain"]  # over μ itself
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
            figure = comparison[policy.name].estimate(comparison.ranked)
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
    (new, clusters), (old, _) = (comparison[name].values(comparison.ranked) for name in ("lpi_rl-2", "mle-0"))
    expected = paired(new, old, clusters)
    found = section.gains["lpi_rl-2"][section.ranked]
    assert (found.difference, found.se, found.p) == (expected.difference, expected.se, expected.p)
    assert found.low <= expected.low and found.high >= expected.high, "corrected"
    family = [test for (_, _, figure), test in comparison.tests.items() if figure != "SNIPS"]
    assert [test.holm_p for test in family] == holm([test.p for test in family])
    assert all(bool(test.sign) == (test.holm_p < 0.05) for test in family)
    gains = [gain for gains in comparison.gains.values() for name, gain in gains.items() if name != "SNIPS"]
    assert len(gains) == 5 * (len(comparison.columns) + 1) and all(gain in family for gain in gains)
    assert section.corrected[section.ranked] == len(family) > len(gains), "leads are in the family"
    assert section.baseline == "mle-0" and set(section.gains["mle-0"]) == {"true gain"}


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
    assert floor == said["policies"]["mle-0"]["divergence"]["js"]["mean"]
    for policy in said["policies"].values():
        assert policy["divergence"]["floor"]["js"]["mean"] == floor, "one floor for all of a comparison"
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
            cell = rows[name]["value" if figure == "SNIPS" else figure.replace(".", " ")]
            sure = gain["low"] > 0 or gain["high"] < 0
            marks = {str(mark.attributes["class"]) for mark in cell.all("span")} & {"mark up", "mark down"}
            assert marks == ({"mark up" if gain["difference"] > 0 else "mark down"} if sure else set())
            text = f"{gain['difference']:+.4f} [{gain['low']:+.4f}, {gain['high']:+.4f}]"
            assert gained[name][HEADS.get(figure, figure)] == text + gain["stars"].replace("*", r"\*")
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


def told(
    *rows: Row, question: str = "liking", refused: Mapping[str, str] | None = None, p_simple: float = 0.01,
    few: str | None = None,
) -> Comparison:  # fmt: skip
    """A comparison whose figures are those of the rows, with the gains they state over mle."""
    refusals = {row.name: (refused or {}).get(row.name, "") for row in rows}
    main = VALUE if question == "value" else METRIC

    class Told(Comparison):
        ranked = METRIC
        too_few = few
        tested: ClassVar = [main]
        values: ClassVar = {name: Valued(None, why) for name, why in refusals.items()}

        def level(self, name: str, figure: str) -> float:
            figures = next(row.figures for row in rows if row.name == name)
            return math.nan if refusals[name] else figures[METRIC].mean

        @property
        def tests(self):
            gains = {(row.name, "mle", main): row.gains[METRIC] for row in rows if row.gains and self.baseline}
            if (best := self.strongest) is not None:
                for name in self.rivals:
                    gap = self.level(name, main) - self.level(best, main)
                    gains[name, best, main] = difference(gap, p_simple)
            return {key: test for key, test in gains.items() if not (refusals[key[0]] or refusals[key[1]])}

        @property
        def leads(self):
            best, second, *_ = (*self.order(main), "", "")
            test = self.test(best, second, main)
            return {} if test is None else {main: Lead(best, second, test, 0.5)}

    folder, data = Path("my runs"), {"digest": "d"}
    candidates = [
        SimpleNamespace(
            name=row.name,
            origin=SimpleNamespace(objective=row.objective),
            estimates_logging=row.objective == "mle",
            run=SimpleNamespace(folder=folder / row.name, manifest={"data": data}),
            beta=0.3 if row.name == "dial" else None,
        )
        for row in rows
    ]
    measured = SimpleNamespace(unit="decisions") if question == "value" else None
    evaluations = [
        SimpleNamespace(name=row.name, off_policy=measured, settings={"exclude_seen": False}, divergence=None)
        for row in rows
    ]
    references = [SimpleNamespace(run=SimpleNamespace(folder=folder / name)) for name in ("mle", "mle-1")]
    made = Told(
        evaluations, [METRIC], [], SimpleNamespace(digests=("d",), path=Path("data-2")), candidates, references,
        "mle" if any(row.name == "mle" for row in rows) else None, question=Question(question, "so it is"),
    )  # fmt: skip
    object.__setattr__(made, "feature_gains", [])
    return made


def said(
    *rows: Row, floor: float | None = 0.04, unseen: tuple[str, ...] = (), **asked: Any
) -> tuple[Contents, dict[str, bool | None]]:
    made = told(*rows, **asked)
    truth = Interval(1.0, 1.0, 1.0) if "true gain" in rows[-1].figures else None
    around = None if floor is None else Interval.of(floor, 0.001)
    section = section_of(
        "", "", rows, main=METRIC, floor=around, logging_value=truth, baseline=made.baseline or "", unseen_by_js=unseen
    )
    if made.main == VALUE:
        valued = {row.name: row.figures[METRIC] for row in rows if not made.values[row.name].refusal}
        section = replace(
            section, main=VALUE, columns={VALUE: "estimated reward per decision", **section.columns},
            measurements=[*section.measurements, *(Measurement.of(name, VALUE, each) for name, each in valued.items())],
            gains={name: {VALUE: test} for (name, old, _), test in made.tests.items() if old == "mle"},
        )  # fmt: skip
    found = {one.claim: one.holds for one in comparison_claims(made, section)}
    return comparison_headline(made, section), found


MLE = row("mle", "mle", 0.30, 0.04)


def test_the_answer_says_whether_a_new_policy_is_better():
    answer, found = said(MLE, row("lpi", "lpi_rl", 0.35, 0.12))
    assert answer.verdict == (
        "lpi is significantly better than mle, which imitates the log: click nDCG@20 0.3000 → 0.3500 (+17%). It moves "
        "3.0 times as far from the log as a retrained copy would."
    )
    assert [number.value for number in answer.numbers] == ["+0.0500", "0.12", "40.0 %"]
    pasted = "lpi gate 'my runs/lpi' --against 'my runs/mle' --against 'my runs/mle-1'"
    assert answer.next_step == f"Ask the gate whether to deploy lpi ({pasted})."
    dial = said(MLE, row("dial", "lpi_rl", 0.35, 0.12))[0].next_step
    assert "lpi gate 'my runs/dial' --against" in dial and dial.endswith("--beta 0.3).")
    assert found["lpi is significantly better than the second best in click nDCG@20"] is True
    assert found["lpi differs from the log by more than seed noise"] is True
    answer, found = said(MLE, row("lpi", "lpi_rl", 0.35, 0.12, p=0.06))
    assert answer.verdict == (
        "lpi is not significantly better than mle, which imitates the log: click nDCG@20 0.3000 → 0.3500 (+17%)."
    )
    assert "-0.0600 to +0.1600 (95 %): not significant" in answer.numbers[0].meaning
    assert pasted in answer.next_step, "the gate says what to do, whatever was found"
    assert found["lpi is significantly better than the second best in click nDCG@20"] is False
    assert said(MLE, row("lpi", "lpi_rl", 0.25, 0.12))[0].verdict.startswith("lpi is significantly worse than mle")


def test_few_sequences_cannot_tell_as_in_the_gate(tmp_path):
    answer, _ = said(MLE, row("lpi", "lpi_rl", 0.35, 0.12), few="20 held-out sequences are too few to tell (least: 32)")
    assert answer.verdict == (
        "Whether lpi is better than mle, which imitates the log, cannot be said: 20 held-out sequences are too few to "
        "tell (least: 32)."
    )
    few, enough = (
        Comparison([evaluated("a", np.ones(count), settings={"lists": 20})], ["all.nDCG@20"], [], None, [], []).too_few
        for count in (31, 32)
    )
    assert few == "31 held-out sequences are too few to tell (least: 32)" and enough is None


def evaluated(name: str, rank: np.ndarray, settings: dict[str, Any]) -> Evaluation:
    made = scores(rank=rank)
    figures = ranking(made, ["nDCG@20"])
    return Evaluation(name, figures, None, made, np.ones(3), settings)


def test_corrected_intervals_say_for_how_many_comparisons():
    answer, _ = said(MLE, row("lpi", "lpi_rl", 0.35, 0.12), row("sqn", "sqn", 0.31, 0.12, p=0.5))
    assert "+0.0250 to +0.0750 (95 %, corrected for 2 comparisons): significant" in answer.numbers[0].meaning
    assert "It tests this one pair, so its interval is narrower" in answer.next_step


def test_where_the_value_decides_ranks_do_not_speak():
    """Before: nDCG made the headline, and the gate said the opposite two lines below."""
    answer, found = said(MLE, row("lpi", "lpi_cb", 0.35, 0.12), question="value")
    assert answer.verdict.startswith(
        "lpi is significantly better than mle, which imitates the log: estimated reward per decision 0.3000 → 0.3500"
    )
    assert answer.numbers[0].name == "estimated reward per decision: lpi minus mle"
    assert "from the log's propensities" in answer.numbers[0].meaning
    assert "lpi gate 'my runs/lpi' --against log --against 'my runs/mle' --against" in answer.next_step, "as go asks"
    assert found["lpi is significantly better than the second best in estimated reward per decision"] is True


def test_a_refused_value_is_said_and_ranks_nothing():
    few = "effective sample 4.0 of 900 decisions; 100 are needed"
    answer, found = said(MLE, row("lpi", "lpi_cb", 0.35, 0.12), question="value", refused={"lpi": few})
    assert answer.verdict == (f"What lpi would earn cannot be estimated from this log, so nothing is decided: {few}.")
    assert answer.numbers[0].value == "?" and "lpi gate" in answer.next_step
    assert found["mle is significantly better than the second best in estimated reward per decision"] is None


def test_baselines_that_cannot_be_judged_are_said_as_in_the_gate():
    """Before: the claim was dropped without a word."""
    rows, few = (MLE, row("popularity", "popularity", 0.4, 0.2), row("lpi", "lpi_cb", 0.35, 0.12)), "effective sample 4"

    def claims(*more: Row, refused: tuple[str, ...]) -> list[Any]:
        made = told(*rows, *more, question="value", refused=dict.fromkeys(refused, few))
        section = section_of("", "", [*rows, *more], main=VALUE, baseline="mle")
        return [each for each in comparison_claims(made, section) if "simple baselines" in each.claim]

    (none,) = claims(refused=("popularity",))
    assert none.outcome == "not judged"
    assert none.because == unjudged(f"the log says too little of popularity ({few})")
    (some,) = claims(row("item-kNN", "item-kNN", 0.2, 0.2), refused=("popularity",))
    assert some.holds is True and some.claim.endswith("of those that can be judged")
    assert some.because.endswith(f"Not judged: the log says too little of popularity ({few})")


@pytest.mark.parametrize(
    ("level", "p", "words"),
    [
        (0.35, 0.01, "lpi ranks click events higher than mle (click nDCG@20 0.3000 → 0.3500 (+17%), significantly)."),
        (0.35, 0.5, "lpi does not significantly rank click events higher than mle (click nDCG@20 0.3000 → 0.3500"),
        (0.25, 0.01, "lpi ranks click events lower than mle (click nDCG@20 0.3000 → 0.2500 (-17%), significantly)."),
    ],
)
def test_of_actions_without_propensities_ranks_decide_nothing(level, p, words):
    answer, _ = said(MLE, row("lpi", "lpi_rl", level, 0.12, p=p), question="rewards")
    assert answer.verdict.startswith(words)
    assert answer.verdict.endswith(
        "Ranks ask in part what was shown before: whether to deploy it is for the gate to say."
    )
    simple = row("item-kNN", "item-kNN", 0.4, 0.2)
    answer, _ = said(MLE, simple, row("lpi", "lpi_rl", level, 0.12, p=p), question="rewards")
    assert answer.verdict.startswith("item-kNN, a simple baseline, ranks click events higher than lpi, the new policy")
    for forbidden in ("Deploy ", "o not deploy", "Use "):
        assert forbidden not in answer.verdict + answer.next_step


def test_where_all_events_are_worth_the_same_there_is_nothing_to_decide():
    answer, _ = said(MLE, row("lpi", "lpi_rl", 0.35, 0.12), question="nothing")
    assert answer.verdict.startswith("Nothing to decide: all events are worth the same")
    assert answer.verdict.endswith("(click nDCG@20): lpi 0.3500, mle 0.3000.")
    assert answer.next_step == WORTH, "as of gate and go"
    assert [number.name for number in answer.numbers] == ["distance of lpi from the log (JS)"]
    answer, found = said(MLE, row("mle-1", "mle", 0.31, 0.04), question="nothing")
    assert not answer.numbers and not [claim for claim in found if "differs from the log" in claim], "both estimate it"


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
    rows = (MLE, row("item-kNN", "item-kNN", 0.4, 0.2), row("lpi", "lpi_rl", 0.35, 0.12))
    answer, found = said(*rows)
    assert answer.verdict == (
        "item-kNN, a simple baseline, is significantly better than lpi, the new policy: click nDCG@20 0.4000 against "
        "0.3500."
    )
    assert found["every new policy is better than the simple baselines"] is False
    # Before: a baseline was recommended for a difference that the page itself called chance.
    answer, found = said(*rows, p_simple=0.9)
    assert answer.verdict.startswith("lpi is significantly better than mle") and "item-kNN" not in answer.verdict
    assert found["every new policy is better than the simple baselines"] is None
    answer, found = said(MLE, row("item-kNN", "item-kNN", 0.32, 0.2), row("lpi", "lpi_rl", 0.35, 0.12))
    assert found["every new policy is better than the simple baselines"] is True, "whatever the imitation does"


def test_words_tell_the_truth_where_a_world_knows_it():
    answer, found = said(MLE, row("lpi", "lpi_rl", 0.35, 0.12, gain=0.1))
    assert answer.numbers[2].value == "+10%" and "the most of all" in answer.numbers[2].meaning
    answer, found = said(MLE, row("ips", "ips", 0.3, 0.4, gain=0.3), row("lpi", "lpi_rl", 0.35, 0.12, gain=0.1))
    assert answer.numbers[2].value == "+10%" and "ips earns most: +30%" in answer.numbers[2].meaning
    assert found["click nDCG@20 on the log picks the policy that earns most"] is False


def test_one_policy_alone_has_nothing_to_beat():
    answer, _ = said(row("lpi", "lpi_rl", 0.35, 0.12))
    assert answer.verdict == "lpi is highest, with a click nDCG@20 of 0.3500."
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
        ranked = "click.nDCG@20"
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


def test_one_difference_has_one_interval(runs):
    """Before: a lead over (or of) the baseline and the gain were one difference with two intervals and two p-values."""
    for baseline in ("mle-0", "lpi_rl-2", "popularity"):
        found = compare(list(runs.values()), baseline=baseline, episodes=20)
        shared = 0
        for figure, lead in found.leads.items():
            if baseline in (lead.best, lead.second):
                other = lead.second if lead.best == baseline else lead.best
                gain, sign = found.gains[other][figure], -1 if lead.best == baseline else 1
                ends = sorted((sign * gain.low, sign * gain.high))
                assert (lead.test.difference, lead.test.low, lead.test.high) == (sign * gain.difference, *ends)
                assert lead.test.holm_p == gain.holm_p or figure == "SNIPS"
                assert lead.test.stars == gain.stars
                shared += 1
        assert {frozenset(key[:2]) | {key[2]} for key in found.tests}.__len__() == len(found.tests), "each pair once"
    assert shared or found.leads


def test_the_page_asks_what_the_gate_asks(comparison, section):
    """A log with propensities: the value decides, as in the gate, with the gate's estimate of it."""
    from localpolicy.report.frontier import upright  # needs altair

    assert comparison.question.kind == "value" and section.main == comparison.main == "SNIPS"
    assert section.metric == "estimated reward per decision"
    gain = comparison.gains["lpi_rl-2"]["SNIPS"]
    verdict = gate(comparison.candidates[2].run, against=[each.run for each in comparison.candidates[:2]])
    check = next(each for each in verdict.checks if each.figure == "value")
    assert verdict.notes == comparison.notes
    assert gain.difference == pytest.approx(check.value, rel=1e-6)
    assert gain.low <= check.low and gain.high >= check.high, "of several comparisons"
    without = replace(section, measurements=[row for row in section.measurements if row.figure != "true J"])
    assert upright(without) == "SNIPS", "the chart draws what decides"
    claim = section.claims[0]
    assert claim.figure == "SNIPS" and claim.value is not None and claim.low < claim.value < claim.high and claim.n
    frame = comparison.to_arrow().to_pylist()
    assert frame[2]["SNIPS"] == comparison["lpi_rl-2"].off_policy.estimates["SNIPS"].value
    assert frame[2]["SNIPS gain"] == gain.difference
    assert "value (SNIPS)" in [str(column) for column in comparison_tables(comparison)[0].columns]
    assert comparison.to_dict()["claims"] == as_json(section.claims)


def test_the_note_names_the_columns_that_are_not_tested(section):
    note = policies_table(section, {name: Cell(name) for name in section.names}).note
    assert "Not tested: JS, KL, likelihood, coverage@20 and entropy." in note
    for figure in ("SNIPS", section.ranked, "true gain"):
        assert f"corrected for {section.corrected[figure]} comparisons" in note
    assert section.corrected["true gain"] == len(section.names), "the truth's marks are corrected as well"


def test_findings_are_about_the_policy_that_is_meant(comparison, tmp_path, monkeypatch):
    monkeypatch.setattr("localpolicy.report.page.library", lambda: "/* the charting library */")
    for of, moves in (("lpi_rl-2", True), ("popularity", True), ("mle-1", False)):  # an estimate of the log is the log
        claims = [each.claim for each in comparison_section(comparison, of=of, samples=False).claims]
        assert (f"{of} differs from the log by more than seed noise" in claims) is moves
    noted = replace(comparison, notes=("the log does not say which items its filters left out",))
    write_comparison(noted, tmp_path / "report.html")
    assert noted.notes[0] in [words.text for words in parse(tmp_path / "report.html").all("dd")]
    assert not [each for each in comparison_section(noted, samples=False).claims if each.figure == "settings"]
    differs = replace(noted, differences=("mle-1 was trained on other data",))
    (claim,) = (each for each in comparison_section(differs, samples=False).claims if each.figure == "settings")
    assert claim.because == "mle-1 was trained on other data"


@pytest.mark.parametrize(
    ("worth", "kind", "words"),
    [
        ({"view": 1.0, "buy": 1.0}, "nothing", "Nothing to decide: all events are worth the same"),
        ({"view": 0.2, "buy": 1.0}, "rewards", "whether to deploy it is for the gate to say."),
    ],
)
def test_a_comparison_asks_the_logs_own_question(tmp_path, worth, kind, words):
    """Two files of lists on one small log, read at two prices: the same ranks, another answer."""
    rng = np.random.default_rng(0)
    with writing(tmp_path / "data", kind="interactions", events=[*worth], rewards=worth) as store:
        for split in ("train", "validation", "test"):
            item, event = rng.integers(0, 8, 400), rng.integers(0, 2, 400)
            reward = np.array([*worth.values()])[event]
            store.splits[split].append(np.full(100, 4), {"item": item, "event": event, "reward": reward})
        store.write_items(np.arange(8), np.full(8, 50))
    for name, probability in (("old", np.full(8, 0.125)), ("new", np.arange(1, 9) / 36)):
        csv.write_csv(pa.table({"item_id": np.arange(8), "probability": probability}), tmp_path / f"{name}.csv")
    found = compare([tmp_path / "old.csv", tmp_path / "new.csv"], data=tmp_path / "data", baseline="old.csv")
    assert found.question.kind == kind and found.rivals == ["new.csv"] and found.main != VALUE
    answer = comparison_headline(found, comparison_section(found, samples=False))
    assert words in answer.verdict and "imitates the log" not in answer.verdict
