"""The gate by value: of policies and of baselines, if the log has propensities."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from gate_examples import made, small_config, valued

from localpolicy.data.store import Prepared
from localpolicy.errors import RunError, on_command_line
from localpolicy.judge.checks.baselines import baselines_by_value
from localpolicy.judge.checks.value import value_check, value_tests
from localpolicy.judge.claims import UNJUDGED, check, unjudged
from localpolicy.judge.gate import gate, opponents
from localpolicy.judge.rules import GateRules
from localpolicy.judge.verdict import Gate
from localpolicy.measure.decisions import LEAST_EFFECTIVE, decisions
from localpolicy.measure.estimators import Contributions, skewed
from localpolicy.measure.load_candidates import _elsewhere
from localpolicy.measure.metrics import Question
from localpolicy.measure.truth import true_value
from localpolicy.measure.value import value_of
from localpolicy.report.gate import gate_contents, gate_headline, gate_tables
from localpolicy.report.page import report_page
from localpolicy.runs.config import Config
from localpolicy.simulation.bandit import BanditConfig, BanditWorld
from localpolicy.simulation.prepared import write_prepared
from localpolicy.training.train import train


def test_baselines_are_judged_by_reward_where_the_log_has_propensities():
    rng = np.random.default_rng(0)
    reward = (rng.random(20_000) < 0.3).astype(float)
    shares = {"high": np.where(reward > 0, 1.3, 0.9), "log": np.ones(20_000)}
    policies = {name: valued(name, weight / weight.mean(), reward) for name, weight in shares.items()}
    rules = GateRules()
    assert baselines_by_value(policies["high"], None, [policies["log"]], rules).outcome == "yes"
    lost = baselines_by_value(policies["log"], None, [policies["high"]], rules)
    assert lost.outcome == "no" and lost.instead == "high" and lost.value < 0
    beaten = baselines_by_value(policies["log"], policies["high"], [policies["high"]], rules)
    assert beaten.outcome == "no" and beaten.instead is None, "it earns no more than what is deployed"
    same = valued("same", np.where(np.arange(20_000) % 2, 0.9, 1.1), reward)
    unsure = baselines_by_value(policies["log"], None, [same], rules)
    assert unsure.outcome == "yes" and unsure.because.endswith("not significantly different from that of same")
    one = np.zeros(20_000)
    one[0] = 1e6
    unknown = valued("unknown", np.maximum(one, 1e-9), reward)
    alone = baselines_by_value(policies["high"], None, [unknown], rules)
    said = f"the log says too little of unknown ({unknown.off_policy.refusal})"
    assert alone.outcome == "not judged" and alone.because == unjudged(said), "neither blocks nor passes, and is named"
    checks = [check("value", "yes", "", plain="it earns more"), alone]
    verdict = Gate(checks, policies["high"], None, rules)
    assert verdict.deploy and verdict.sentence.endswith(f"But {UNJUDGED}."), "the answer does not pass over it"
    assert "</span> not judged</span>" in report_page(gate_contents(verdict))
    assert [row[1] for row in gate_tables(verdict)[1].plain()] == ["yes", "not judged"]
    partly = baselines_by_value(policies["high"], None, [policies["log"], unknown], rules)
    assert partly.outcome == "yes" and partly.because.endswith(
        f"it earns more than every simple baseline that can be judged. Not judged: {said}"
    )
    assert baselines_by_value(policies["high"], None, [], rules).outcome == "not asked"


def test_a_policy_is_judged_against_what_is_deployed_and_then_estimates():
    """One rule for the commands of `go` and of a comparison's page."""
    value, rewards = Question("value", ""), Question("rewards", "")
    assert opponents(value, [], ["mle-1", "mle-2"]) == ["log", "mle-1", "mle-2"]
    assert opponents(value, ["own.csv"], ["mle-1"]) == ["own.csv", "mle-1"], "what is known to be deployed"
    assert opponents(rewards, [], ["mle-1", "mle-2"]) == ["mle-1", "mle-2"], "the first stands for what wrote the log"


def test_a_value_is_refused_by_all_who_ask_or_by_none():
    """Before: an effective sample of 3 % was an estimate on the page, and none in the gate."""
    rng = np.random.default_rng(0)
    reward, weight = (rng.random(20_000) < 0.3).astype(float), np.where(rng.random(20_000) < 0.03, 1 / 0.03, 1e-9)
    far = valued("far", weight / weight.mean(), reward)
    assert far.off_policy.overlap.effective > 500 and far.off_policy.estimates == {}
    assert "effective sample of 2.9%" in far.off_policy.refusal and "10% are needed" in far.off_policy.refusal
    assert value_check(far, None, GateRules()).because == f"no estimate of far: {far.off_policy.refusal}"
    allowed = GateRules(min_effective_share=0.01).refusals
    assert allowed.min_effective_share == 0.01 and GateRules().refusals.min_effective_share == LEAST_EFFECTIVE
    assert value_of(decisions(far.scores), rules=allowed).refusal is None


def test_a_tile_says_what_its_number_is_of():
    """Before: "reward per decision ... over 514 lists", and "less what the log earned" of another policy's."""
    new, old = (valued(name, np.ones(400), np.tile([0.0, 1.0], 200)) for name in ("new", "old"))
    unit = partial(check, "value", "yes", "", 0.4, 0.2, 0.6, 514)
    (tile,) = gate_headline(Gate([unit(unit="lists")], new, old, GateRules())).numbers
    assert tile.name == "estimated gain in reward per list"
    assert "less what old would have earned. +0.2000 to +0.6000" in tile.meaning and "514 lists" in tile.meaning
    (tile,) = gate_headline(Gate([unit(unit="decisions")], new, None, GateRules())).numbers
    assert tile.name == "estimated gain in reward per decision" and "less what the log earned." in tile.meaning


def test_intervals_of_several_differences_are_holms():
    """The clearest of three at 1 - α/3, the next at 1 - α/2; after one that is not significant the level stays."""
    rng = np.random.default_rng(0)
    gaps = {
        name: Contributions(rng.normal(mean, 1, 400), np.arange(400), np.zeros(400), np.zeros(400))
        for name, mean in {"small": 0.01, "large": 1.0, "middle": 0.5}.items()
    }
    found = value_tests(gaps, 0.95)
    for name, level in {"large": 0.05 / 3, "middle": 0.05 / 2, "small": 0.05}.items():
        low, high = skewed(gaps[name], confidence=1 - level)
        assert found[name].numbers == pytest.approx((gaps[name].mean, low, high, 400))
    alike = {name: gaps["small"] for name in ("one", "two")}
    low, high = skewed(gaps["small"], confidence=1 - 0.05 / 2)
    assert value_tests(alike, 0.95)["two"].numbers[1:3] == pytest.approx((low, high))


def test_a_deployed_policy_far_from_the_log_is_not_the_log():
    """100 items shown at random; D stakes .95 on the best, of which the log says little: its value is refused.

    The log's mean (.31) stood for D's (.87) here, and X (.38) was to be deployed instead of D.
    """
    rng = np.random.default_rng(0)
    worth = np.clip(0.3 + 0.12 * rng.standard_normal(100), 0.02, 0.6)
    worth[7] = 0.9
    better, staked = np.exp(worth / 0.25) / np.exp(worth / 0.25).sum(), np.full(100, 0.05 / 99)
    staked[7] = 0.95
    action = rng.choice(100, 3_000)
    reward = (rng.random(3_000) < worth[action]).astype(float)
    new, deployed = (valued(name, 100 * policy[action], reward) for name, policy in (("X", better), ("D", staked)))
    assert staked @ worth > 2 * better @ worth and value_check(new, None, GateRules()).outcome == "yes"
    check = value_check(new, deployed, GateRules())
    assert check.outcome == "cannot tell" and "no estimate of D, which is deployed" in check.because
    assert check.because.endswith("--against log"), "the way out, as it is typed"


def test_who_learnt_from_what_people_did_is_judged_by_the_log_it_wrote(small):
    """It is not measured on what was shown; the way out is named."""
    policy = SimpleNamespace(origin=SimpleNamespace(kind="interactions"))
    with on_command_line(), pytest.raises(RunError, match=r"RUN wrote this log as it served.*--against log\.$"):
        _elsewhere(SimpleNamespace(name="RUN", policy=policy), None, small, "test")


def test_a_value_must_significantly_be_no_worse_than_the_deployed_one():
    rng = np.random.default_rng(1)
    count = 20_000
    reward = (rng.random(count) < 0.3).astype(float)
    log_like = np.where(rng.random(count) < 0.5, 0.9, 1.1)
    good, same, bad = (
        valued(name, weight / weight.mean(), reward)
        for name, weight in (
            ("good", log_like * (1 + reward)),
            ("same", log_like),
            ("bad", log_like * (1.2 - 0.4 * reward)),
        )
    )
    rules = GateRules()
    assert value_check(good, same, rules).outcome == "yes"
    assert value_check(bad, same, rules).outcome == "no"
    equal = value_check(same, None, rules, decides=False)
    assert equal.outcome == "yes" and equal.low < 0, "no worse by 5 % is enough where it does not decide"
    assert value_check(same, None, rules).outcome == "no", "all of the interval is below the smallest gain worth having"
    little = value_check(good, same, GateRules(smallest_gain=9.0))
    assert little.low > 0 and little.outcome == "no" and little.plain.endswith("by as much as is worth having")
    unsure = value_check(same, None, GateRules(smallest_gain=0.0))
    assert unsure.outcome == "cannot tell" and (unsure.value <= 0 or unsure.needed > count)
    assert value_check(same, None, GateRules(value_margin=0.0), decides=False).outcome == "cannot tell"
    nothing = made("x", np.ones(3))
    assert value_check(nothing, None, rules, decides=False).outcome == "not asked", "no propensities"
    refused = valued("far", np.r_[np.full(99, 1e-6), 1e6], np.ones(100))
    assert value_check(refused, None, rules).outcome == "cannot tell"


def policy_of_a_moving_world(data, name, tmp_path, **objective):
    settings = {"data": {"length": 4}, "model": {"width": 16}, "train": {"epochs": 6, "batch_size": 128}}
    settings["train"] |= {"learning_rate": 0.01, "seed": {"mle": 0}.get(name, 1)}
    return train(data, out=tmp_path / name, config=Config.parse({**settings, "objective": {"name": name, **objective}}))


def test_a_policy_whose_beta_the_value_chose_is_not_refused_for_its_ranks(tmp_path):
    world = BanditWorld(BanditConfig(contexts=12, items=8, appeal=2.0), seed=1)
    write_prepared(world, tmp_path / "data", sequences=6_000, seed=2)
    data = Prepared(tmp_path / "data")
    mle, lpi = (policy_of_a_moving_world(data, name, tmp_path) for name in ("mle", "lpi_cb"))
    config = {"min_history": 3}
    verdict = gate(lpi, against=[mle], config=config)
    assert verdict.answer == "deploy" and verdict.checks[0].figure == "value"
    assert {check.outcome for check in verdict.checks if check.figure in ("gain", "other events", "segments")} == {
        "not asked"
    }
    ranks = gate(lpi, against=[mle], config=config, rules=GateRules(metric="all.nDCG@20"))
    assert ranks.checks[0].figure == "gain" and ranks.checks[0].outcome != "not asked", (
        "a metric that was named decides"
    )
    truth = [true_value(run.policy(), world).value for run in (mle, lpi)]
    assert truth[1] > truth[0] + 0.03


def test_the_policy_that_wrote_an_impression_log_is_judged_by_value(small, tmp_path):
    run = train(small, out=tmp_path / "run", config=small_config(epochs=1))
    rules = GateRules(baselines=False, overlap={"min_effective": 1.0, "max_share": 1.0, "max_bias": 1e9})
    found = gate(run, against=["log"], rules=rules)
    assert found.deployed is None and found.against == "the policy that wrote the log"
    value = found.checks[0]
    assert value.figure == "value" and "against the log's own" in value.because and value.n
    assert "its lower end must be above 0" in value.because, "no worse is no reason to deploy"
    assert found.question.kind == "value" and found.days is None
    said = found.to_dict()
    assert (said["decided_by"], said["metric"]) == ("value", "reward-weighted.nDCG@20"), "the metric was only looked at"
    assert "Decided by: value (estimated reward per decision)." in gate_tables(found)[1].note
    facts = gate_contents(found).sections[0].facts
    assert facts["decided by"] == "value (estimated reward per decision)"
    assert "the policy that wrote the log" in gate_tables(found)[0].title
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_value_that_made_the_answer_has_its_own_unit():
    """Where the rules name a metric, the gain counts positions, and the value that speaks against it counts lists."""
    gain = check("gain", "yes", "", plain="it ranks higher")
    lower = check("value", "no", "", plain="its estimated reward is lower", unit="lists")
    found = Gate([gain, lower], made("new", np.ones(4)), made("old", np.ones(4)), GateRules(), "all.nDCG@20")
    assert "Decided by: value (estimated reward per list)." in gate_tables(found)[1].note
