"""A comparison in words: is a new policy better, by how much, how far from the log."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from page_tree import cells, parse
from report_examples import Row, section_of
from report_examples import row as row_of

from localpolicy.judge.checks.value import Valued
from localpolicy.judge.claims import unjudged
from localpolicy.judge.comparison import Comparison
from localpolicy.judge.findings import findings
from localpolicy.judge.verdict import WORTH
from localpolicy.measure.estimate import Estimate, Measurement
from localpolicy.measure.metrics import Question
from localpolicy.measure.significance import Lead, Paired
from localpolicy.report.comparison_headline import comparison_headline
from localpolicy.report.contents import Contents, Interval
from localpolicy.report.page import write_report

pytest.importorskip("altair", reason="the extra `report` is not installed")


METRIC, VALUE = "click.nDCG@20", "SNIPS"


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
    few: str | None = None, floor: float | None = 0.04, unseen: tuple[str, ...] = (),
) -> Comparison:  # fmt: skip
    """A comparison whose figures are those of the rows, with the gains they state over mle."""
    refusals = {row.name: (refused or {}).get(row.name, "") for row in rows}
    main = VALUE if question == "value" else METRIC

    noise = None if floor is None else Estimate(floor, 0.001, 900, 0.001)

    class Told(Comparison):
        ranked = METRIC
        unseen_by_js: ClassVar = [*unseen]
        floor = noise
        too_few = few
        tested: ClassVar = [main]
        values: ClassVar = {name: Valued(None, why) for name, why in refusals.items()}

        def level(self, name: str, figure: str) -> float:
            figures = next(row.figures for row in rows if row.name == name)
            return math.nan if refusals[name] else figures["JS" if figure == "JS" else METRIC].mean

        def interval(self, name: str, figure: str) -> Interval | None:
            return next(row.figures for row in rows if row.name == name).get(figure)

        def __getitem__(self, name: str) -> Any:
            return SimpleNamespace(row=lambda figure: None)

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
            run=SimpleNamespace(folder=folder / row.name, manifest={"data": data}, started=False),
            beta=0.3 if row.name == "dial" else None,
        )
        for row in rows
    ]
    measured = SimpleNamespace(unit="decisions") if question == "value" else None
    about = {"off_policy": measured, "unit": "decision", "settings": {"exclude_seen": False}, "divergence": None}
    true = {row.name: each.mean for row in rows if (each := row.figures.get("true J")) is not None}
    evaluations = [
        SimpleNamespace(
            name=row.name, truth=SimpleNamespace(value=true[row.name]) if row.name in true else None, **about
        )
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
    made = told(*rows, floor=floor, unseen=unseen, **asked)
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
    found = {one.claim: one.holds for one in findings(made)}
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


def test_corrected_intervals_say_for_how_many_comparisons():
    answer, _ = said(MLE, row("lpi", "lpi_rl", 0.35, 0.12), row("sqn", "sqn", 0.31, 0.12, p=0.5))
    assert "+0.0250 to +0.0750 (95 %, corrected for 2 comparisons): significant" in answer.numbers[0].meaning
    assert "It tests this one pair, so its interval is narrower" in answer.next_step


def test_where_the_value_decides_ranks_do_not_speak():
    """Before: nDCG made the headline, and the gate found the opposite two lines below."""
    answer, found = said(MLE, row("lpi", "lpi_cb", 0.35, 0.12), question="value")
    assert answer.verdict.startswith(
        "lpi is significantly better than mle, which imitates the log: estimated reward per decision 0.3000 → 0.3500"
    )
    assert answer.numbers[0].name == "estimated reward per decision: lpi minus mle"
    assert "from the log's propensities" in answer.numbers[0].meaning
    assert "lpi gate 'my runs/lpi' --against log --against 'my runs/mle' --against" in answer.next_step, "as go asks"
    assert found["lpi is significantly better than the second best in estimated reward per decision"] is True


def test_a_refused_value_is_named_and_ranks_nothing():
    few = "effective sample 4.0 of 900 decisions; 100 are needed"
    answer, found = said(MLE, row("lpi", "lpi_cb", 0.35, 0.12), question="value", refused={"lpi": few})
    assert answer.verdict == (f"What lpi would earn cannot be estimated from this log, so nothing is decided: {few}.")
    assert answer.numbers[0].value == "?" and "lpi gate" in answer.next_step
    assert found["mle is significantly better than the second best in estimated reward per decision"] is None


def test_baselines_that_cannot_be_judged_are_named_as_in_the_gate():
    """Before: the claim was dropped without a word."""
    rows, few = (MLE, row("popularity", "popularity", 0.4, 0.2), row("lpi", "lpi_cb", 0.35, 0.12)), "effective sample 4"

    def claims(*more: Row, refused: tuple[str, ...]) -> list[Any]:
        made = told(*rows, *more, question="value", refused=dict.fromkeys(refused, few))
        return [each for each in findings(made) if "simple baselines" in each.claim]

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


def test_nothing_is_to_decide_if_all_events_have_one_reward():
    answer, _ = said(MLE, row("lpi", "lpi_rl", 0.35, 0.12), question="nothing")
    assert answer.verdict.startswith("Nothing to decide: so it is.")
    assert answer.verdict.endswith("(click nDCG@20): lpi 0.3500, mle 0.3000.")
    assert answer.next_step == WORTH, "as of gate and go"
    assert [number.name for number in answer.numbers] == ["distance of lpi from the log (JS)"]
    answer, found = said(MLE, row("mle-1", "mle", 0.31, 0.04), question="nothing")
    assert not answer.numbers and not [claim for claim in found if "differs from the log" in claim], "both estimate it"


def test_words_depend_on_the_floor():
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


def test_what_js_cannot_see_is_named(tmp_path, monkeypatch):
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


def test_few_sequences_cannot_tell():
    answer, _ = said(MLE, row("lpi", "lpi_rl", 0.35, 0.12), few="20 held-out sequences are too few to tell (least: 32)")
    assert answer.verdict == (
        "Whether lpi is better than mle, which imitates the log, is not known: 20 held-out sequences are too few to "
        "tell (least: 32)."
    )
