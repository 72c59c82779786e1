"""The gate: three answers, its checks by ranks, and its exit codes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import typer
from gate_examples import made, small_config
from typer.testing import CliRunner

from localpolicy.cli.evaluate import gate as gate_verb
from localpolicy.cli.options import complete
from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.errors import RunError
from localpolicy.judge import claims
from localpolicy.judge.case import deciding_metric
from localpolicy.judge.checks.baselines import baselines_check
from localpolicy.judge.checks.distance import divergence_checks, reference_fit, reference_fit_check
from localpolicy.judge.checks.gains import gain_check, gain_claim
from localpolicy.judge.checks.losses import events_check, segment_check
from localpolicy.judge.compare import compare
from localpolicy.judge.gate import gate
from localpolicy.judge.rules import GateRules
from localpolicy.judge.verdict import BETTER, Gate
from localpolicy.measure.divergence import Divergence, Reference, Spread
from localpolicy.measure.estimate import ENOUGH, LEAST, Estimate
from localpolicy.measure.evaluate import evaluate
from localpolicy.measure.evaluation import deciding_figure
from localpolicy.measure.significance import Paired
from localpolicy.report.gate import gate_headline, gate_tables
from localpolicy.runs.baselines import fit_baseline
from localpolicy.runs.config import Config
from localpolicy.training.train import train

app = typer.Typer()
app.command()(complete(gate_verb))


def verdict_of(*outcomes: str, needed: int | None = None, instead: str | None = None) -> Gate:
    checks = [
        claims.check(
            ("gain", "other events", "coverage")[number],
            outcome,
            "",
            0.1,
            0.05,
            0.15,
            300,
            needed,
            instead=instead,
            plain=("it ranks buy events higher", "it ranks view events lower", "it collapses")[number],
        )
        for number, outcome in enumerate(outcomes)
    ]
    return Gate(checks, made("new", np.ones(2)), made("old", np.ones(2)), GateRules())


def test_the_answer_follows_from_the_outcomes_of_the_checks():
    assert verdict_of("yes", "not asked").answer == "deploy"
    assert verdict_of("yes", "cannot tell").answer == "cannot tell"
    assert verdict_of("cannot tell", "no").answer == "do not deploy"
    assert verdict_of("yes").sentence.startswith("Deploy new instead of old: it ranks buy events higher")
    assert replace(verdict_of("yes"), imitates=True).sentence.startswith("Deploy new instead of old (which imitates")
    assert verdict_of("yes", "no", "no").sentence == (
        "Do not deploy new instead of old: it ranks buy events higher, but it ranks view events lower and it collapses."
    )
    assert "deploy new instead of old: it ranks view events lower." in verdict_of("cannot tell", "no").sentence
    more = verdict_of("cannot tell", needed=987)
    assert "About 990 positions would tell; there are 300" in more.sentence
    assert "About 990 positions (24 days of such a log) would tell" in replace(more, days=7.0).sentence
    assert "(1 day of such a log)" in replace(more, days=0.2).sentence
    baseline = verdict_of("yes", "no", instead="item-kNN")
    assert "'item-kNN' does better. Deploy that one" in baseline.sentence
    step = gate_headline(replace(baseline, data=Path("my data"))).next_step
    assert "lpi train 'my data' --objective item-knn --out item-knn" in step, "what to do next agrees with the answer"
    said = verdict_of("yes", "cannot tell").to_dict()
    assert said["answer"] == "cannot tell" and said["checks"][0]["n"] == 300
    json.dumps(said, allow_nan=False)


def test_the_next_step_follows_the_check_that_could_not_tell():
    """Before: "such a log does not tell which. Next: Collect more of the log"; and a copy was to be tested online."""

    def step(name: str, needed: int | None = None, **fields: object) -> str:
        asked = [claims.check(name, "cannot tell", "", needed=needed, plain="why")]
        facts = [] if name in BETTER else [claims.check("gain", "not asked", "")]
        verdict = Gate([*asked, *facts], made("new", np.ones(2)), made("old", np.ones(2)), GateRules(), **fields)
        assert gate_tables(verdict)[0].plain()[-1] == ["next", verdict.next_step]
        return verdict.next_step

    assert step("reward per answer", 900).startswith("Collect more of the log")
    for name, word in {
        "reward per answer": "probability", "worth and number of answers": "probability", "value": "larger β",
        "reference fit": "Train the estimates of the log", "order": "with its times", "training": "Train for longer",
    }.items():  # fmt: skip
        assert word in step(name) and "Collect" not in step(name)
    copy = step("reward per answer", 900, stays=True)
    assert copy.startswith("Collect more of the log") and "would test a copy" in copy
    assert "Train for longer" in step("training", stays=True)
    unfit = claims.check("reference fit", "cannot tell", "", plain="it learned nothing")
    unsure = verdict_of("cannot tell", needed=900)
    both = replace(unsure, checks=[*unsure.checks, unfit]).next_step
    assert both.startswith("Collect more") and both.endswith(
        "Train the estimates of the log for longer, and ask again."
    )


def test_a_figure_below_0_has_a_smallest_gain_too():
    rules = GateRules(smallest_gain=0.1)
    assert rules.smallest(-2.0) == rules.smallest(2.0) == pytest.approx(0.1 * 2)
    lost = Paired(0.1, 0.01, 0.08, 0.12, math.nan, math.nan, 400, math.nan)
    words = dict.fromkeys(("yes", "no", "lower", "cannot tell"), "")
    assert gain_claim("value", lost, -2.0, "", words, rules).outcome == "no", "0.12 is below a tenth of 2"


def test_the_divergence_has_the_confidence_that_was_asked_for():
    """JS 0.1 ± 0.01: 0.1 + 1.645 · 0.01 at 90 %, 0.1 + 2.576 · 0.01 at 99 %, and a budget between the two."""
    js, floor = Estimate(0.1, 0.01, 400, 0.01), Estimate(0.000062, 0.0, 400, 0.0)
    found = Divergence(
        [Reference("mle", "mle")], Spread(js, {}, {}), Spread(js, {}, {}), Spread(floor, {}, {}), None
    )  # fmt: skip
    for confidence, z, outcome in ((0.9, 1.6449, "yes"), (0.95, 1.96, "yes"), (0.99, 2.5758, "cannot tell")):
        (asked,) = divergence_checks(found, GateRules(confidence=confidence, max_js=0.12))
        assert asked.outcome == outcome and asked.low == pytest.approx(0.1 - z * 0.01, abs=1e-5)
        assert asked.high == pytest.approx(0.1 + z * 0.01, abs=1e-5) and "floor 0.000062;" in asked.because


def test_a_gain_is_sure_not_worth_it_or_open():
    rng = np.random.default_rng(0)
    worse = np.where(rng.random(4000) < 0.3, 1.0, 99.0)
    better = np.where(rng.random(4000) < 0.2, 1.0, worse)
    rules = GateRules()

    def asked(new, old, count=4000, **changes):
        new, old = (made(name, rank[:count]) for name, rank in (("new", new), ("old", old)))
        return gain_check(new, old, "click.nDCG@20", rules.model_copy(update=changes))

    assert asked(better, worse).outcome == "yes"
    assert asked(worse, better).outcome == "no"
    assert asked(worse, worse, smallest_gain=0.05).outcome == "no", "the interval lies below what is worth having"
    sure = asked(better, worse, smallest_gain=9.0)
    assert sure.low > 0 and sure.outcome == "no" and sure.plain.endswith("no higher by as much as is worth having")
    noisy = rng.permutation(worse)
    found = asked(noisy, worse, count=300)
    assert (
        found.outcome == "cannot tell" and found.needed > 300 and f"About {found.needed:,} positions" in found.because
    )
    warned = asked(better, worse, count=ENOUGH - 1)
    assert warned.outcome == "yes" and f"Below {ENOUGH} sequences" in warned.because and warned.n == ENOUGH - 1
    assert "Below" not in asked(better, worse, count=ENOUGH).because
    few = asked(better, worse, count=LEAST - 1)
    assert few.outcome == "cannot tell" and "too few for a verdict" in few.because, "however sure it looks"


def test_no_kind_of_event_decides_for_all_if_their_rewards_are_equal():
    """The first of several kinds of event decided, by their order alone."""
    shop = replace(made("new", np.ones(63), event=np.r_[[2] * 3, [1] * 60]), events=("purchase", "click"))
    assert deciding_figure(shop) == deciding_metric(shop, GateRules()) == "all.nDCG@20"
    assert deciding_metric(replace(shop, events=("click",)), GateRules()) == "click.nDCG@20", "as it is called"


def test_a_baseline_that_does_better_is_what_should_be_deployed():
    rng = np.random.default_rng(0)
    low, high = (np.where(rng.random(2000) < share, 1.0, 99.0) for share in (0.25, 0.45))
    new, knn, popular = made("new", low), made("item-kNN", high), made("popularity", np.full(2000, 99.0))
    check = baselines_check(new, [popular, knn], "click.nDCG@20", GateRules())
    assert (
        check.outcome == "no" and check.instead == "item-kNN" and "item-kNN ranks significantly higher" in check.because
    )
    assert baselines_check(knn, [popular], "click.nDCG@20", GateRules()).outcome == "yes"
    twin = made("last item", rng.permutation(low))
    unsure = baselines_check(new, [popular, twin], "click.nDCG@20", GateRules())
    assert unsure.outcome == "cannot tell" and unsure.needed
    few = baselines_check(made("new", np.ones(2)), [made("popularity", [9.0, 99.0])], "click.nDCG@20", GateRules())
    assert few.outcome == "cannot tell" and few.needed == LEAST and "2 sequences are too few" in few.because


def test_two_that_rank_everything_equally_have_no_interval():
    """Before: "gain +0.0000, 95% interval -0.1645 to +0.1645", of two that are the same."""
    ranks = np.arange(1.0, 41.0)
    found = gain_check(made("new", ranks), made("old", ranks), "all.nDCG@20", GateRules())
    assert found.outcome == "no" and "rank everything alike" in found.because and "interval" not in found.because
    assert (found.value, found.low, found.high, found.n) == (0.0, None, None, 40)
    shown = gate_headline(Gate([found], made("new", ranks), made("old", ranks), GateRules())).numbers[0]
    assert shown.value == "+0.0000" and " to " not in shown.meaning
    for lost in (0.0, 0.02):
        rules = GateRules(max_event_loss=lost, max_segment_loss=lost, min_segment=2)
        several = events_check(made("new", ranks), made("old", ranks), "all.nDCG@20", ["click"], rules)
        parts = segment_check(made("new", ranks), made("old", ranks), "all.nDCG@20", rules)
        assert several.outcome == parts.outcome == "yes" and several.low is parts.low is None
        assert "none of 1 changes" in several.because and "alike in all of them" in parts.because
    moved = np.append(ranks[:-1], 1.0)
    assert events_check(made("new", moved), made("old", ranks), "all.nDCG@20", ["click"], GateRules()).low is not None


def test_a_reference_that_learned_nothing_measures_no_distance():
    rng = np.random.default_rng(0)
    popular = np.log(rng.uniform(0.1, 0.2, 500))
    new = made("new", np.ones(500))
    sharp, dull = popular + 0.5, np.full(500, -math.log(20)) + rng.normal(0, 0.01, 500)
    for logp, outcome, said in (
        (sharp, "yes", ""), (dull, "cannot tell", "no better than chance,"),
        (popular - 0.1, "cannot tell", "popularity of all that was shown, by more than 0.05 nats,"),
        (popular - 0.02, "yes", ""),
    ):  # fmt: skip
        named = replace(new, scores=replace(new.scores, logp_reference={"mle": logp}))
        found = reference_fit_check(named, popular, 20, GateRules())
        assert found.outcome == outcome and said in found.plain
    uniform = replace(new.scores, logp_reference={"mle": dull}, propensity=np.full(500, 1 / 20))
    assert reference_fit_check(replace(new, scores=uniform), popular, 20, GateRules()).outcome == "yes", (
        "there was no more"
    )
    noisy = replace(uniform, logp_reference={"mle": dull - 0.05 + rng.normal(0, 1, 500)})
    assert reference_fit_check(replace(new, scores=noisy), popular, 20, GateRules()).outcome == "cannot tell", (
        "noise does not make up for a likelihood below the propensities'"
    )
    assert reference_fit_check(new, popular, 20, GateRules()).outcome == "not asked"
    named = replace(new, scores=replace(new.scores, logp_reference={"mle": sharp}))
    said = reference_fit_check(named, popular, 20, GateRules()).because
    assert f"the popularity of all that was shown {popular.mean():.3f} (the policy called popularity is that" in said
    answered = replace(new, scores=replace(named.scores, events=["click"]))
    assert "shown" not in reference_fit_check(answered, popular, 20, GateRules()).because, "then they are the same"
    among = replace(new.scores, logp_reference={"mle": sharp}, logp_open_reference={"mle": sharp + 1})
    said = reference_fit_check(replace(new, scores=among), popular, 20, GateRules()).because
    assert f"log-likelihood over the whole catalogue: mle {sharp.mean():.3f}" in said, "a table has that among the open"


def test_a_log_with_a_floor_that_a_sharp_policy_predicts_badly_is_judged_by_its_value():
    """Before, each night was refused: what the floor draws is improbable under the policy that was served with it."""
    rng = np.random.default_rng(0)
    new, popular = made("new", np.ones(500)), np.log(rng.uniform(0.1, 0.2, 500))
    poor = replace(new, scores=replace(new.scores, logp_reference={"deployed": np.full(500, -4.0)}))

    def outcome(kind: str, **rules: Any) -> str:
        case = SimpleNamespace(
            evaluation=poor, popular=popular, data=SimpleNamespace(n_items=20), question=SimpleNamespace(kind=kind),
            rules=GateRules(**rules),
        )  # fmt: skip
        (claim,) = reference_fit(case)
        return claim.outcome

    assert outcome("value") == "not asked"
    assert outcome("value", max_js=0.1) == outcome("value", max_floor_ratio=3.0) == "cannot tell"
    assert outcome("rewards") == outcome("liking") == "cannot tell"


def test_the_verb_gives_three_exit_codes(place, tmp_path):
    rules = tmp_path / "rules.yaml"

    def code(text):
        rules.write_text(text)
        words = [place / "chosen", "--against", place / "mle0", "--rules", rules, "--json", tmp_path / "g.json"]
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code in (3, 4, 7), done.output + str(done.exception)
        assert json.loads((tmp_path / "g.json").read_text())["answer"].upper() in done.stdout
        return done.exit_code

    lenient = "baselines: false, max_event_loss: 1, max_segment_loss: 1"
    assert code(f"{{{lenient}, min_gain: -1}}") == 7
    assert code(f"{{{lenient}, min_gain: 1}}") == 3
    assert code(f"{{{lenient}, min_sequences: 100000}}") == 4


def test_positions_before_the_window_are_noted_and_other_windows_refused_with_a_remedy(place, tmp_path):
    data, short = Prepared(place / "data"), {"data": {"length": 2}}
    for seed in (0, 1):
        config = Config.parse(small_config(seed=seed, epochs=1).model_dump() | short)
        train(data, out=tmp_path / f"short{seed}", config=config)
    alone = evaluate(tmp_path / "short0", out=tmp_path / "out")
    # Of four actions the first has no history, and the second lies before the last two.
    said = f"{len(data['test']):,} of {3 * len(data['test']):,} test positions lie before the last 2 actions"
    assert [note for note in alone.settings["notes"] if said in note and "data.length=2" in note]
    assert alone.to_dict()["settings"]["beyond_length"] == len(data["test"])
    judged = gate(tmp_path / "short0", against=[tmp_path / "short1"])
    assert len([note for note in judged.to_dict()["notes"] if said in note]) == 1
    assert not evaluate(place / "mle0", out=tmp_path / "out").left_out
    fit_baseline("popularity", data, out=tmp_path / "simple")
    beside = compare([tmp_path / "simple", tmp_path / "short0"], baselines=False)
    assert {each.settings["length"] for each in beside.evaluations} == {2}, "a simple baseline knows nothing of windows"
    with pytest.raises(RunError, match=r"data.length: 2 and 4\n.*Train the other again with length=2"):
        gate(tmp_path / "short0", against=[place / "mle0"])


def test_impressions_without_propensities_deploy_nobody(tmp_path):
    """Half of the people answer whatever is shown, and were shown other items: those items are no better."""
    rng, items, split = np.random.default_rng(0), 12, {"train": 600, "validation": 150, "test": 400}
    with writing(
        tmp_path / "data", kind="impressions", events=["none", "click"], rewards={"none": 0, "click": 1}
    ) as store:
        for name, count in split.items():
            eager = np.repeat(rng.random(count) < 0.5, 3)
            item = np.where(eager, 0, items // 2) + rng.integers(0, items // 2, 3 * count)
            event = (rng.random(3 * count) < np.where(eager, 0.6, 0.05)).astype(int)
            store.splits[name].append(np.full(count, 3), {"item": item, "event": event, "reward": event.astype(float)})
        store.write_items(np.arange(items), np.full(items, 100))
    data = Prepared(tmp_path / "data")
    for name, config in {"mle": small_config(), "lpi": small_config("lpi_cb", seed=1)}.items():
        train(data, out=tmp_path / name, config=config)
    found = gate(tmp_path / "lpi", against=tmp_path / "mle", rules={"baselines": True}, device="cpu")
    assert found.question.kind == "rewards" and (found.kind, found.ground) == ("deterministic", "none")
    assert found.answer in ("cannot tell", "do not deploy") and not any(check.instead for check in found.checks)
    (worth,) = (check for check in found.checks if check.figure == "reward per answer")
    assert worth.outcome == "no" or "No propensities were logged" in worth.because
