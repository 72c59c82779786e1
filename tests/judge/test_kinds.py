"""The table of kinds of log: what each can know, and that its strongest answer is never exceeded."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gate_examples import shop, small_config
from typer.testing import CliRunner

from localpolicy.cli.main import app
from localpolicy.judge import harness
from localpolicy.judge.checks.gains import gain_claim
from localpolicy.judge.claims import check
from localpolicy.judge.gate import gate, is_the_log
from localpolicy.judge.judge import judge
from localpolicy.judge.kinds import GROUNDS, KINDS
from localpolicy.judge.rules import GateRules
from localpolicy.judge.verdict import Gate
from localpolicy.measure.number_text import apart
from localpolicy.measure.significance import Paired
from localpolicy.report.gate import gate_tables
from localpolicy.training.train import train


def verdict(kind: str, *outcomes: str) -> Gate:
    """A gate on such a log whose checks say this."""
    checks = [check("gain", outcome, "", plain="why") for outcome in outcomes]
    return Gate(checks, SimpleNamespace(name="new"), SimpleNamespace(name="old"), GateRules(), kind=kind)


@pytest.mark.parametrize("kind", [*KINDS])
def test_only_what_was_randomised_is_ever_deployed(kind):
    strongest = KINDS[kind].strongest
    assert KINDS[kind].ground in GROUNDS
    assert (strongest == "deploy") == (KINDS[kind].ground == "randomised")
    assert verdict(kind, "yes").answer == strongest
    if kind != "nothing":
        assert verdict(kind, "yes", "cannot tell").answer == "cannot tell"
        assert verdict(kind, "cannot tell", "no").answer == "do not deploy"


@pytest.mark.parametrize("kind", [*KINDS])
def test_each_kind_asks_for_what_its_ground_and_its_deciding_check_leave_open(kind):
    """True propensities wherever a value decides or refuses; and no lower reward wherever a metric decides alone."""
    row = KINDS[kind]
    asked, decides = {each.__name__ for each in row.asked}, {each.__name__ for each in row.decides}
    assert ("true_propensities" in asked) == (row.ground == "randomised")
    assert ("no_lower_reward" in asked) == (kind in ("liking", "metric"))
    assert ("by_ranks" in asked) == (decides == {"gain"}), "a baseline is compared by what decides"
    assert {"lists_reach_enough", "within_budget", "reference_fit"} <= asked | {each.__name__ for each in row.known}


def test_a_test_online_says_what_it_assumes_and_how_to_begin():
    found = verdict("rewards", "yes")
    assert not found.deploy and found.ground == "assumed"
    assert found.ground_text == f"assumed: {GROUNDS['assumed']}" and "lpi rollout plan" in found.next_step


def test_a_wider_interval_around_the_same_gain_never_says_more():
    """Before: +0.02 was deployed with an interval of ± 0.019, and refused as too small with one of ± 0.005."""
    strength = {"no": 0, "cannot tell": 1, "yes": 2}
    words = dict.fromkeys(("yes", "no", "lower", "cannot tell"), "")
    for gain in (-0.02, 0.0, 0.02, 0.05, 0.08):
        said = []
        for reach in (0.001, 0.005, 0.019, 0.04, 0.1, 0.3):
            test = Paired(gain, reach / 2, gain - reach, gain + reach, 0.5, 0.5, 100, 0.5)
            said.append(gain_claim("gain", test, 0.5, "", words, GateRules(smallest_gain=0.1)).outcome)
        if gain >= 0.05:
            assert said == sorted(said, key=lambda each: -strength[each]) and said[0] == "yes", (gain, said)
        else:
            assert "yes" not in said and said[0] == "no", (gain, said)


def test_a_wider_interval_refuses_no_loss_that_is_accepted():
    """Before: +0.001 passed `min_gain` = -0.01 with an interval of ± 0.009, and was refused with one of ± 0.02."""
    words, rules = dict.fromkeys(("yes", "no", "lower", "cannot tell"), ""), GateRules(min_gain=-0.01)
    for gain, narrow in ((0.001, "yes"), (-0.005, "yes"), (-0.02, "no")):
        said = []
        for reach in (0.001, 0.009, 0.02, 0.1):
            test = Paired(gain, reach / 2, gain - reach, gain + reach, 0.5, 0.5, 100, 0.5)
            said.append(gain_claim("gain", test, 5.0, "", words, rules).outcome)
        assert said[0] == narrow and said[-1] == "cannot tell", (gain, said)
        assert ("no" in said) == (narrow == "no"), (gain, said)


def test_two_numbers_that_decide_are_never_printed_equal():
    assert apart(0.00264, 0.00258) == ["0.00264", "0.00258"]
    assert apart(0.5, 0.5) == ["0.5000", "0.5000"], "equal ones are"
    assert apart(0.1, 0.2, form="+") == ["+0.1000", "+0.2000"]


def test_the_word_log_is_reserved_whatever_folders_there_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log").mkdir()
    assert is_the_log("log") and not is_the_log("./log") and not is_the_log(tmp_path / "log")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two estimates of a small log of clicks and purchases, and a policy."""
    folder = tmp_path_factory.mktemp("kinds")
    shop(folder / "data", sequences=400)
    for name, config in {
        "mle-0": small_config(seed=0, epochs=1),
        "mle-1": small_config(seed=1, epochs=1),
        "new": small_config("lpi_cb", seed=2, epochs=1),
    }.items():
        train(folder / "data", out=folder / name, config=config)
    return folder


def test_each_policy_is_scored_once(place, monkeypatch):
    """Before: once for the gate, again for the comparison, and again among unseen items."""
    seen: list[str] = []
    kept = harness.scored

    def counted(candidate, *args, **more):
        seen.append(candidate.name)
        return kept(candidate, *args, **more)

    monkeypatch.setattr(harness, "scored", counted)
    runs = [place / "mle-0", place / "mle-1", place / "new"]
    found = judge(runs, estimates=runs[:2], policy=runs[2], against=runs[:2], device="cpu")
    assert len(seen) == len(set(seen)) == len(found.comparison.evaluations)
    alone = gate(runs[2], against=runs[:2], device="cpu")
    assert found.verdict is not None and alone.answer == found.verdict.answer
    for one, other in zip(alone.checks, found.verdict.checks, strict=True):
        assert (one.figure, one.outcome) == (other.figure, other.outcome)
        np.testing.assert_allclose(one.value or 0.0, other.value or 0.0, rtol=1e-9)


def test_the_numbers_of_a_check_are_in_one_row_of_80_columns(place, monkeypatch):
    """Before: where a check could not tell, their number stood in a second table."""
    monkeypatch.setenv("COLUMNS", "80")
    found = gate(place / "new", against=[place / "mle-0", place / "mle-1"], device="cpu")
    _, checks = gate_tables(found)
    asked = [each.figure for each in found.checks if each.asked or not each.judged]
    head, *shown = [line.strip() for line in str(checks).splitlines() if line.startswith("  ") and line.strip()]
    assert head.split() == ["check", "ok", "found", "interval", "n"], "all numbers of a check are in one table"
    assert len(asked) <= len(shown) <= len(asked) + 1 < len(found.checks), "the longest name may take two lines"
    assert [name for name in asked if any(line.startswith(name[:20].strip()) for line in shown)] == asked
    (_, every) = gate_tables(found, why=True)
    assert [row[0] for row in every.plain()] == [each.figure for each in found.checks]


@pytest.mark.parametrize("better", ["yes", "no"])
def test_only_what_is_no_better_is_called_so_where_your_own_recommender_was_not_judged(better):
    """Before: a policy that ranked purchases higher and views lower was "no better than an imitation"."""
    checks = [check("gain", better, "", plain="why"), check("segments", "no", "", plain="a segment loses")]
    lists = SimpleNamespace(name="old")
    for imitates, kind in ((True, "metric"), (False, "metric"), (True, "value")):
        found = Gate(checks, SimpleNamespace(name="new"), lists, GateRules(), kind=kind, imitates=imitates).next_step
        of_imitation = imitates and kind == "metric"
        assert ("was not judged" in found) == of_imitation and found.startswith("Keep") != of_imitation
        assert ("no better than an imitation" in found) == (of_imitation and better == "no")


@pytest.mark.parametrize("fit", ["yes", "cannot tell"])
def test_an_imitation_no_better_than_chance_is_not_called_worth_a_test(fit):
    """Before: 30 sequences' imitation, of which a check said that it predicts no better than chance, was."""
    checks = [check("gain", "no", "", plain="why"), check("reference fit", fit, "", plain="why")]
    names = SimpleNamespace(name="new"), SimpleNamespace(name="old")
    found = Gate(checks, *names, GateRules(), kind="metric", imitates=True).next_step
    assert ("may itself be worth a test online" in found) == (fit == "yes") and "was not judged" in found


def test_the_first_stage_is_a_command_that_the_command_line_takes(monkeypatch):
    """Before: it named an option that there is not."""
    given: dict[str, object] = {}

    def plan(out: object, **options: object) -> dict[str, object]:
        given.update(options, out=str(out))
        return {"candidate": {"version": "1"}, "stages": ["5"], "stage": "5", "size": None}

    monkeypatch.setattr("localpolicy.serving.rollout.plan", plan)
    command = re.search(r"lpi (rollout plan .*?) \(", verdict("rewards", "yes").next_step)
    assert command is not None
    done = CliRunner().invoke(app, shlex.split(command[1]))
    assert done.exit_code == 0, done.output
    assert given["out"] == "rollout.json" and str(given["candidate"]) == "EXPORT"
    assert given["stages"] == ["5", "25", "50", "100"]


def test_an_answer_takes_ten_lines_of_80_columns(monkeypatch):
    """Before: 67 lines in all, in which the answer came after the table of checks."""
    monkeypatch.setenv("COLUMNS", "80")
    gain = check("reward per answer", "yes", "", 0.11, 0.09, 0.13, 2245, plain="its answers would be worth more")
    cause = check("hidden cause", "not asked", "", 1.45, plain=f"a hidden cause {'changes choices ' * 6}")
    loss = check("other events", "not asked", "", high=-0.1, plain="it ranks view events lower")
    names = SimpleNamespace(name="runs/improved"), SimpleNamespace(name="runs/mle-seed-101")
    found = Gate([gain, cause, loss], *names, GateRules(), kind="rewards", imitates=True, folder=Path("go/improved"))
    answer, checks = gate_tables(found)
    lines = str(answer).splitlines()
    assert len(lines) <= 10 and max(map(len, lines)) <= 80 and lines[0].startswith("TEST ONLINE: runs/improved")
    assert [row[0] for row in answer.plain()] == ["why", "ground", "but", "next"]
    assert [row[0] for row in checks.plain()] == ["reward per answer"] and "2 more with --why" in checks.note
    every = gate_tables(found, why=True)[1]
    assert [row[0] for row in every.plain()] == ["reward per answer", "hidden cause", "other events"]


def test_a_reason_has_its_number_and_what_it_misses_apart_from_it():
    """Before: "+0.0026" failed because it was "below 0.0026"."""
    test = Paired(0.0017, 0.0005, 0.0007, 0.002558, 0.01, 0.01, 900, 0.01)
    words = dict.fromkeys(("yes", "no", "lower", "cannot tell"), "it earns no more")
    claim = gain_claim("value", test, 0.2561, "", words, GateRules(smallest_gain=0.01), unit="lists")
    found = Gate([claim], SimpleNamespace(name="new"), None, GateRules())
    assert claim.outcome == "no" and claim.least == pytest.approx(0.002561)
    assert found.reason.endswith(
        "+0.001700 (+0.000700 to +0.002558), 900 lists, less than 0.002561, the smallest gain worth having"
    )
    level = check("coverage", "no", "", 0.4, n=7, plain="its lists collapse")
    assert (
        Gate([level], SimpleNamespace(name="new"), None, GateRules()).reason
        == "its lists collapse: 0.4000, 7 positions"
    )
    refused = check("value", "cannot tell", "effective sample 2.0; 100 are needed", plain="not known")
    assert "100 are needed" in Gate([refused], SimpleNamespace(name="new"), None, GateRules()).reason
