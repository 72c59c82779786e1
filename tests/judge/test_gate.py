"""The gate: like with like, three answers, and whatever may stand on either side of it."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
import typer
from measured import log, policy, scores
from small_logs import write_small
from typer.testing import CliRunner

from localpolicy.cli.gate import gate as gate_verb
from localpolicy.cli.options import complete
from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.errors import ConfigError, DataError, RunError, on_command_line
from localpolicy.judge import gate_checks
from localpolicy.judge.compare import compare
from localpolicy.judge.gate import BY_RANK, Gate, GateRules, gate
from localpolicy.judge.gate_baselines import baselines_check
from localpolicy.judge.gate_checks import Check, gain_check, reference_fit_check
from localpolicy.judge.gate_value import baselines_by_value, family, value_check
from localpolicy.measure.baselines import BASELINES, fit_baseline, load_baseline
from localpolicy.measure.estimate import mean_estimate, wilson
from localpolicy.measure.evaluation import Evaluation, evaluate_policy
from localpolicy.measure.metrics import EvaluateConfig
from localpolicy.measure.off_policy.estimators import Contributions
from localpolicy.measure.off_policy.intervals import skewed
from localpolicy.measure.opening import _elsewhere, on_data
from localpolicy.measure.recorded import read_recorded
from localpolicy.measure.run import evaluate
from localpolicy.measure.significance import ENOUGH, LEAST, more_needed, paired, sample_needed
from localpolicy.measure.summary import ranking
from localpolicy.measure.truth import true_value
from localpolicy.model.histories import recommend_with
from localpolicy.objectives import objective_of
from localpolicy.report.comparison import write_comparison
from localpolicy.report.gate import gate_headline, gate_table
from localpolicy.report.table import share_with_error
from localpolicy.runs.config import Config
from localpolicy.runs.run import LIKELIEST, Run
from localpolicy.runtime.files import sealed
from localpolicy.simulation.bandit import BanditConfig, BanditWorld
from localpolicy.simulation.prepared import write_prepared
from localpolicy.training.selection import rule, unheard
from localpolicy.training.train import train

app = typer.Typer()
app.command()(complete(gate_verb))


def made(name: str, rank: np.ndarray, **columns: object) -> Evaluation:
    """An evaluation of these ranks; one position per sequence unless told otherwise."""
    found = scores(rank=np.asarray(rank, float), **columns)
    return Evaluation(
        name=name, metrics=ranking(found, ["nDCG@20"]), rewards={}, policy={"coverage@20": 0.5}, divergence=None,
        scores=found, counts=np.ones(3), settings={"lists": 20},
    )  # fmt: skip


# ---------------------------------------------------------------------- how many positions are enough


def test_the_least_number_of_sequences_is_a_power_calculation():
    """By simulation: with so many a difference of 0.2 standard deviations is found four times in five."""
    assert sample_needed() == ENOUGH == math.ceil(((1.959964 + 0.841621) / 0.2) ** 2)
    assert LEAST == math.ceil(((1.959964 + 0.841621) / 0.5) ** 2) == 32
    draws = np.random.default_rng(0).normal(0.2, 1.0, (4000, ENOUGH))
    reach = 1.972 * draws.std(1, ddof=1) / math.sqrt(ENOUGH)
    assert (draws.mean(1) - reach > 0).mean() == pytest.approx(0.8, abs=0.025)


def test_what_would_tell_is_computed_from_the_spread_seen():
    rng = np.random.default_rng(1)
    first, second = rng.normal(0.1, 1, 400), np.zeros(400)
    test = paired(first, second, np.arange(400))
    assert more_needed(test, 0.1, confidence=0.95) == pytest.approx(sample_needed(0.1), rel=0.2)
    assert more_needed(test, 0.0, confidence=0.95) is None


def test_a_stricter_gate_asks_for_more_rows():
    """(z_{.995} + z_{.8})² / (z_{.975} + z_{.8})² = 1.49 times as many at 99 % as at 95 %."""
    new, old = made("new", np.tile([2.0, 6.0], 20)), made("old", np.tile([3.0, 4.0], 20))
    needed = {level: gain_check(new, old, "all.nDCG@20", GateRules(confidence=level)).needed for level in (0.95, 0.99)}
    assert needed[0.99] == pytest.approx(1.49 * needed[0.95], rel=0.01)


@pytest.mark.parametrize("shift", [0.13, 0.4])
def test_the_interval_beside_none_loses_holds_0(shift):
    """Of several comparisons one falls by chance: the interval that is shown is one of so many, as the verdict is."""
    rng = np.random.default_rng(3)
    clusters = np.arange(300)
    values = {f"segment {n}": (rng.normal(0, 1, 300), np.zeros(300), clusters) for n in range(40)}
    values["worst"] = (rng.normal(0, 1, 300) - shift, np.zeros(300), clusters)
    check = gate_checks._no_sure_loss("segments", values, 0.0, GateRules(), nothing="")
    assert (check.outcome == "yes") == (shift == 0.13) == (check.high > 0)


def test_no_more_is_asked_for_than_there_is(monkeypatch):
    """Where as many positions as there are should have told, no number is named."""
    rank = np.concatenate([np.full(200, 3.0), np.full(200, 5.0)])
    new, old = made("new", rank[::-1].copy()), made("old", rank)
    monkeypatch.setattr(gate_checks, "more_needed", lambda test, gain, confidence: test.n - 1)
    check = gate_checks.gain_check(new, old, "all.nDCG@20", GateRules())
    assert check.outcome == "cannot tell" and check.needed is None and "would tell" not in check.reason
    monkeypatch.setattr(gate_checks, "more_needed", lambda test, gain, confidence: test.n + 1)
    assert gate_checks.gain_check(new, old, "all.nDCG@20", GateRules()).needed == 401


def test_a_zero_of_seven_is_no_certainty():
    """Wilson 1927: 0 of 7 is 0 to 0.354, where mean ± 1.96 se says exactly 0."""
    found = mean_estimate(np.zeros(7), np.arange(7))
    z = 1.959964
    assert found.se == 0 and found.within_unit().high == pytest.approx(z**2 / (7 + z**2), abs=1e-6)
    assert found.within_unit().low == 0.0
    assert wilson(7, 7)[1] == 1.0 and wilson(7, 7)[0] == pytest.approx(1 - z**2 / (7 + z**2), abs=1e-6)
    assert share_with_error(found) == "0.0000 (0 to 0.35)"
    gap = paired(np.zeros(7), np.zeros(7), np.arange(7))
    assert gap.low < -0.3 and gap.high > 0.3, "two policies that both missed seven times may still differ"


def few_purchases(folder, purchases: int) -> Prepared:
    """400 clicks, and so many purchases, in validation and in test."""
    rng = np.random.default_rng(0)
    rewards = {"click": 0.2, "purchase": 1.0}
    with writing(folder, kind="interactions", events=["click", "purchase"], rewards=rewards) as store:
        for split in ("train", "validation", "test"):
            event = np.zeros(400 + purchases, np.int64)
            event[:purchases] = 1
            item = rng.integers(0, 9, len(event))
            lengths = np.full(len(event) // 2, 2)
            arrays = {"item": item[: 2 * len(lengths)], "event": event[: 2 * len(lengths)]}
            reward = np.where(arrays["event"] == 1, 1.0, 0.2)
            store.splits[split].append(lengths, {**arrays, "reward": reward})
        store.write_items(np.arange(9), np.ones(9, np.int64))
    return Prepared(folder)


def test_a_rule_of_selection_hears_no_event_with_too_few_positions(tmp_path):
    few, many = few_purchases(tmp_path / "few", 4), few_purchases(tmp_path / "many", ENOUGH)
    assert rule("auto", few, objective_of("lpi_rl")) == "0.2*click.nDCG@20"
    assert rule("auto", many, objective_of("lpi_rl")) == "0.2*click.nDCG@20 + 1*purchase.nDCG@20"
    assert rule("purchase.nDCG@20", few, objective_of("lpi_rl")) == "purchase.nDCG@20", "what was asked for is done"
    said = unheard("auto", few, objective_of("lpi_rl"))
    assert said and "purchase 4" in said and f"{ENOUGH} are needed" in said and "0.2*click.nDCG@20" in said
    assert "rests on them" in (unheard("purchase.nDCG@20", few, objective_of("lpi_rl")) or "")
    assert unheard("auto", many, objective_of("lpi_rl")) is None and unheard("auto", few, objective_of("mle")) is None
    tiny = write_small(tmp_path / "tiny", propensity=False)
    assert rule("auto", tiny, objective_of("lpi_rl")) == "logp", "where nothing is enough, every position has a say"


# ---------------------------------------------------------------------- the answers


def verdict_of(*outcomes: str, needed: int | None = None, instead: str | None = None) -> Gate:
    checks = [
        Check(
            "gain" if number == 0 else f"check {number}",
            outcome,
            "",
            0.1,
            0.05,
            0.15,
            300,
            needed,
            instead,
            plain=("it ranks buy events higher", "it ranks view events lower", "it collapses")[number],
        )
        for number, outcome in enumerate(outcomes)
    ]
    return Gate(checks, made("new", np.ones(2)), made("old", np.ones(2)), GateRules())


def test_three_answers():
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
    assert "'item-kNN'" in gate_headline(baseline).next_step, "what to do next agrees with the answer"
    said = verdict_of("yes", "cannot tell").to_dict()
    assert said["answer"] == "cannot tell" and said["checks"][0]["n"] == 300
    json.dumps(said, allow_nan=False)


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
    assert found.outcome == "cannot tell" and found.needed > 300 and f"About {found.needed:,} positions" in found.reason
    warned = asked(better, worse, count=ENOUGH - 1)
    assert warned.outcome == "yes" and f"Below {ENOUGH} sequences" in warned.reason and warned.n == ENOUGH - 1
    assert "Below" not in asked(better, worse, count=ENOUGH).reason
    few = asked(better, worse, count=LEAST - 1)
    assert few.outcome == "cannot tell" and "too few for a verdict" in few.reason, "however sure it looks"


def test_a_baseline_that_does_better_is_what_should_be_deployed():
    rng = np.random.default_rng(0)
    low, high = (np.where(rng.random(2000) < share, 1.0, 99.0) for share in (0.25, 0.45))
    new, knn, popular = made("new", low), made("item-kNN", high), made("popularity", np.full(2000, 99.0))
    check = baselines_check(new, [popular, knn], "click.nDCG@20", GateRules())
    assert check.outcome == "no" and check.instead == "item-kNN" and "is what should be deployed" in check.reason
    assert baselines_check(knn, [popular], "click.nDCG@20", GateRules()).outcome == "yes"
    twin = made("last item", rng.permutation(low))
    unsure = baselines_check(new, [popular, twin], "click.nDCG@20", GateRules())
    assert unsure.outcome == "cannot tell" and unsure.needed
    few = baselines_check(made("new", np.ones(2)), [made("popularity", [9.0, 99.0])], "click.nDCG@20", GateRules())
    assert few.outcome == "cannot tell" and few.needed == LEAST and "2 sequences are too few" in few.reason


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
    assert unsure.outcome == "yes" and "Not told from same" in unsure.reason, "it does not block a gain"
    one = np.zeros(20_000)
    one[0] = 1e6
    unknown = valued("unknown", np.maximum(one, 1e-9), reward)
    alone = baselines_by_value(policies["high"], None, [unknown], rules)
    assert alone.outcome == "not asked" and "unknown" in alone.reason, "neither blocks nor passes, and is named"
    partly = baselines_by_value(policies["high"], None, [policies["log"], unknown], rules)
    assert partly.outcome == "yes" and "too little of their reward: unknown" in partly.reason
    assert baselines_by_value(policies["high"], None, [], rules).outcome == "not asked"


def test_intervals_of_several_differences_are_holms():
    """The clearest of three at 1 - α/3, the next at 1 - α/2; after one that is not significant the level stays."""
    rng = np.random.default_rng(0)
    gaps = {
        name: Contributions(rng.normal(mean, 1, 400), np.arange(400), np.zeros(400), np.zeros(400))
        for name, mean in {"small": 0.01, "large": 1.0, "middle": 0.5}.items()
    }
    found = family(gaps, 0.95)
    for name, level in {"large": 0.05 / 3, "middle": 0.05 / 2, "small": 0.05}.items():
        assert found[name] == pytest.approx(skewed(gaps[name], confidence=1 - level))
    alike = {name: gaps["small"] for name in ("one", "two")}
    assert family(alike, 0.95)["two"] == pytest.approx(skewed(gaps["small"], confidence=1 - 0.05 / 2))


def valued(name: str, weight: np.ndarray, reward: np.ndarray) -> Evaluation:
    """Off-policy figures of these importance weights, with r̂ = 0."""
    from localpolicy.measure.off_policy import decisions, off_policy

    count = len(weight)
    none = np.zeros(count)
    found = made(
        name, np.ones(count), logp=np.log(weight * 0.1), propensity=np.full(count, 0.1), reward=reward,
        value_taken=none, value_expected=none,
    )  # fmt: skip
    return replace(found, off_policy=off_policy(decisions(found.scores), largest_reward=1.0))


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
    assert check.outcome == "cannot tell" and "no estimate of D, which is deployed" in check.reason
    assert check.reason.endswith("--against log"), "the way out, as it is typed"


def test_who_learnt_from_what_people_did_is_judged_by_the_log_it_wrote(small):
    """It is not measured on what was shown; the way out is said."""
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
    assert verdict.answer == "deploy" and verdict.checks[0].name == "value"
    assert {check.outcome for check in verdict.checks if check.name in BY_RANK[:-1]} == {"not asked"}
    ranks = gate(lpi, against=[mle], config=config, rules=GateRules(metric="all.nDCG@20"))
    assert ranks.checks[0].name == "gain" and ranks.checks[0].outcome != "not asked", "a metric that was named decides"
    truth = [true_value(run.policy(), world).value for run in (mle, lpi)]
    assert truth[1] > truth[0] + 0.03


def test_two_that_rank_everything_alike_have_no_interval():
    """Before: "gain +0.0000, 95% interval -0.1645 to +0.1645", of two that are the same."""
    ranks = np.arange(1.0, 41.0)
    found = gain_check(made("new", ranks), made("old", ranks), "all.nDCG@20", GateRules())
    assert found.outcome == "no" and "rank everything alike" in found.reason and "interval" not in found.reason


def test_a_reference_that_learned_nothing_measures_no_distance():
    rng = np.random.default_rng(0)
    popular = np.log(rng.uniform(0.1, 0.2, 500))
    new = made("new", np.ones(500))
    sharp, dull = popular + 0.5, np.full(500, -math.log(20)) + rng.normal(0, 0.01, 500)
    for logp, outcome, said in (
        (sharp, "yes", ""), (dull, "cannot tell", "no better than chance,"),
        (popular - 0.1, "cannot tell", "no better than popularity,"),
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


# ---------------------------------------------------------------------- like with like


def shop(folder, *, seed: int = 0, sequences: int = 900, items: int = 30, days: int = 1) -> Prepared:
    """Interactions in which clicks follow a rule of thumb (the next item) and purchases repeat the item before.

    Ids are kept, and later days hold more sequences and more items: what an older run does not know.
    """
    rng = np.random.default_rng(seed)
    rewards = {"click": 0.2, "purchase": 1.0}
    known = items + 3 * (days - 1)
    with writing(folder, kind="interactions", events=["click", "purchase"], rewards=rewards) as store:
        counts = np.zeros(known, np.int64)
        for split, share in (("train", 0.5), ("validation", 0.25), ("test", 0.25)):
            count = int(sequences * share)
            item = rng.integers(0, known, (count, 4))
            item[:, 1:3] = (item[:, :1] + [[1, 2]]) % known
            item[:, 3] = item[:, 2]
            event = np.tile([0, 0, 0, 1], count)
            arrays = {"item": item.ravel(), "event": event, "reward": np.where(event == 1, 1.0, 0.2)}
            store.splits[split].append(np.full(count, 4), arrays)
            store.splits[split].append_ids(pa.array([f"{split}-{number}" for number in range(count)]))
            counts += np.bincount(item.ravel(), minlength=known)
        store.write_items(np.arange(100, 100 + known), counts)
    return Prepared(folder)


def small_config(objective: str = "mle", seed: int = 0, **changes: object) -> Config:
    training = {"epochs": 4, "seed": seed, "batch_size": 64, "learning_rate": 0.01, **changes}
    return Config.parse({"objective": {"name": objective}, "model": {"width": 16}, "train": training})


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A shop's log, two estimates of its logging policy, and one kept by another figure."""
    folder = tmp_path_factory.mktemp("gate")
    data = shop(folder / "data")
    for name, config in {
        "mle0": small_config(),
        "mle1": small_config(seed=1),
        "chosen": small_config(seed=2, select="purchase.nDCG@20"),
    }.items():
        train(data, out=folder / name, config=config)
    return folder


def test_a_run_keeps_its_likeliest_weights_whatever_selects(place):
    run = Run(place / "chosen")
    best = max(run.metrics(), key=lambda line: line["validation"]["logp"])
    assert run.manifest["likeliest"]["epoch"] == best["epoch"] and run.manifest["likeliest"]["step"] == best["step"]
    held_out = {"config": EvaluateConfig(split="validation"), "window": run.config.data, "name": "x"}
    found = evaluate_policy(run.policy(likeliest=True), Prepared(place / "data"), **held_out)
    assert found.estimate("logp").mean == pytest.approx(run.manifest["likeliest"]["value"], abs=1e-5)
    assert not (place / "mle0" / LIKELIEST).exists(), "a run selected by likelihood has one file for both"
    plain = Run(place / "mle0")
    assert plain.policy(likeliest=True).network.embedding.equal(plain.policy().network.embedding)
    assert run.manifest["patience"] == run.config.train.patience


def broken_apart(place, tmp_path):
    """A run whose selected weights are good and whose likeliest are those of an untrained network."""
    copy = tmp_path / "chosen"
    shutil.copytree(place / "chosen", copy)
    train(Prepared(place / "data"), out=tmp_path / "poor", config=small_config(seed=2, epochs=1, learning_rate=1e-5))
    shutil.copyfile(tmp_path / "poor" / "policy.safetensors", copy / LIKELIEST)
    from localpolicy.runtime.files import sha256

    about = json.loads((copy / "manifest.json").read_text())
    about["likeliest"]["sha256"] = about["files"][LIKELIEST] = sha256(copy / LIKELIEST)
    (copy / "manifest.json").write_text(json.dumps(sealed(about)))
    return copy, about


def test_a_gain_that_selection_made_is_no_gain(place, tmp_path):
    """The weights kept by purchase nDCG are good; by the common figure they are not, and that decides."""
    copy, about = broken_apart(place, tmp_path)
    found = gate(copy, against=[place / "mle0"], rules=GateRules(baselines=False, metric="purchase.nDCG@20"))
    gain = next(check for check in found.checks if check.name == "gain")
    assert gain.outcome == "no" and "chosen by purchase.nDCG@20, that of mle0 by logp" in gain.reason
    as_kept = gain_check(found.evaluation, found.deployed, found.metric, found.rules)
    assert gain.value < as_kept.value - 0.1, "the selected weights would have looked far better"
    beside = compare([place / "mle0", copy], baselines=False)
    assert beside.gains["chosen"][found.metric].difference == gain.value, "a comparison shows the gate's gain"
    assert beside["chosen"].estimate(found.metric).mean > beside["mle0"].estimate(found.metric).mean + gain.value
    assert any("the epochs of chosen and mle0 were chosen by different figures" in note for note in beside.notes)
    assert beside.to_dict()["notes"] == list(beside.notes)
    about["likeliest"].pop("sha256")
    (copy / "manifest.json").write_text(json.dumps(sealed(about)))
    older = gate(copy, against=[place / "mle0"], rules=GateRules(baselines=False, metric="purchase.nDCG@20"))
    refused = next(check for check in older.checks if check.name == "gain")
    assert refused.outcome == "cannot tell" and "has no weights kept by likelihood" in refused.reason
    assert "--set train.select='purchase.nDCG@20'" in refused.reason
    refusing = compare([place / "mle0", copy], baselines=False)
    assert "chosen" not in refusing.gains and any("train both with one rule" in note for note in refusing.notes)


def test_runs_kept_alike_are_compared_as_they_were_kept(place):
    found = gate(place / "mle1", against=[place / "mle0"], rules=GateRules(baselines=False))
    gain = next(check for check in found.checks if check.name == "gain")
    assert "was chosen by" not in gain.reason and not found.deploy
    assert gain.n == 675 and found.metric == "reward-weighted.nDCG@20"


def test_one_seed_on_both_sides_is_flagged(place, tmp_path):
    train(Prepared(place / "data"), out=tmp_path / "twin", config=small_config("reward_weighted", epochs=1))
    found = gate(tmp_path / "twin", against=[place / "mle0", place / "mle1"], rules=GateRules(baselines=False))
    assert any("twin and mle0 have the same seed (0)" in note for note in found.notes)
    assert not any("mle1" in note for note in found.notes)
    said = evaluate(tmp_path / "twin", against=[place / "mle0"], out=tmp_path / "out").settings["notes"]
    assert any("have the same seed" in note for note in said)
    beside = compare([place / "mle0", tmp_path / "twin"], against=[place / "mle1"], baselines=False)
    assert not any("have the same seed" in note for note in beside.notes)
    beside = compare([place / "mle0", place / "mle1", tmp_path / "twin"], baselines=False)
    assert [note for note in beside.notes if "twin and mle0 have the same seed (0)" in note]


# ---------------------------------------------------------------------- other data


def test_yesterdays_run_is_measured_on_todays_rows(place, tmp_path):
    """It does not know the three new items: what happens on them counts against it, and is counted in words."""
    today = shop(tmp_path / "today", days=2, seed=5)
    train(today, out=tmp_path / "new", config=small_config(seed=3))
    found = gate(tmp_path / "new", against=[place / "mle0"], rules=GateRules(baselines=False, metric="all.nDCG@20"))
    unknown = np.asarray(today["test"].arrays["item"]) >= 30
    assert any(
        f"mle0 does not know 3 of 33 items: {unknown.sum()} of the {len(unknown)} events" in note
        for note in found.notes
    )
    assert any("mle0 was trained on other data" in note for note in found.notes)
    lost = found.deployed.scores.item >= 30
    assert lost.any() and (found.deployed.scores.rank[lost] >= 31).all(), "ranked behind all it knows"
    assert np.isfinite(found.deployed.scores.logp).all() and np.isfinite(found.evaluation.divergence.js.overall.mean)
    # On the items both know, in an order of their own, it is the policy that it was.
    assert found.deployed.scores.rank[~lost].mean() < 20
    beside = compare([tmp_path / "new", place / "mle0"], baselines=False)
    assert beside.data.path == today.path and len({len(one.scores) for one in beside.evaluations}) == 1
    np.testing.assert_array_equal(beside["mle0"].scores.rank, found.deployed.scores.rank)
    assert any("mle0 does not know 3 of 33 items" in note for note in beside.notes)
    older = gate(place / "mle0", against=[tmp_path / "new"], data=today, rules=GateRules(baselines=False))
    assert older.evaluation.name == "mle0" and len(older.evaluation.scores) == len(found.evaluation.scores)


def test_rows_that_a_run_was_trained_on_decide_nothing(place, tmp_path):
    own = Prepared(place / "data")
    with writing(tmp_path / "leaky", kind=own.kind, events=own.events, rewards=own.manifest["rewards"]) as store:
        for split, source in (("train", "test"), ("validation", "validation"), ("test", "train")):
            part = own[source]
            store.splits[split].append(np.diff(part.offsets), {name: np.asarray(a) for name, a in part.arrays.items()})
            store.splits[split].append_ids(own.sequence_ids(source))
        store.write_items(own.catalogue["item_id"].combine_chunks(), own.catalogue["count"].to_numpy())
    found = gate(place / "mle0", against=[place / "mle1"], data=tmp_path / "leaky", rules=GateRules(baselines=False))
    assert any("was trained on 450 of the 450 sequences" in note for note in found.notes)
    assert next(check for check in found.checks if check.name == "gain").outcome != "yes"


def test_a_policy_on_a_catalogue_in_another_order_is_the_same(tmp_path):
    """Rows follow the ids; rank and probability of what both know do not move."""
    data = log(tmp_path / "data", [[0, 1, 2, 3], [4, 5, 6]], items=9)
    order = np.array([8, 2, 5, 0, 1, 7, 3, 6, 4])
    other = log(
        tmp_path / "other", [[int(np.flatnonzero(order == i)[0]) for i in one] for one in ([0, 1, 2, 3], [4, 5, 6])],
        items=9, item_id=order,
    )  # fmt: skip
    mine = policy(data)
    from localpolicy.data.batches import WindowConfig

    here, there = (
        evaluate_policy(on_data(mine, where), where, name="x", window=WindowConfig()) for where in (data, other)
    )
    np.testing.assert_allclose(there.scores.rank, here.scores.rank)
    np.testing.assert_allclose(there.scores.logp, here.scores.logp, atol=1e-5)


# ---------------------------------------------------------------------- what is really deployed


def write_lists(path, rows, names):
    pa.csv.write_csv(pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))), path)


def test_a_file_of_lists_is_a_policy(place, tmp_path):
    """Perfect lists for each sequence, by rank, beat the estimate; and the estimate does not replace them."""
    data = Prepared(place / "data")
    ids, items = data.sequence_ids("test").to_pylist(), data.catalogue["item_id"].to_pylist()
    rows = []
    for number, sequence in enumerate(data["test"]):
        for after, item in enumerate(sequence["item"]):
            rows += [(ids[number], after, items[item], 1), (ids[number], after, items[(item + 7) % 30], 2)]
    write_lists(tmp_path / "deployed.csv", rows, ["sequence_id", "after", "item_id", "rank"])
    by_ranks = GateRules(baselines=False, metric="reward-weighted.nDCG@20")
    found = gate(place / "mle0", against=[tmp_path / "deployed.csv", place / "mle1"], rules=by_ranks)
    assert found.deployed.name == "deployed.csv" and (found.deployed.scores.rank == 1).all()
    assert found.answer == "do not deploy"
    unsaid = gate(place / "mle0", against=[tmp_path / "deployed.csv", place / "mle1"], rules={"baselines": False})
    assert unsaid.answer == "cannot tell", "ranks alone do not say what people would have answered"
    assert [one.name for one in found.evaluation.divergence.references] == ["mle1"], "ranks are no probabilities"
    new = gate(tmp_path / "deployed.csv", against=[place / "mle0"], rules=by_ranks, data=data)
    assert next(check for check in new.checks if check.name == "gain").outcome == "yes"
    fit_baseline("item-kNN", data, out=tmp_path / "neighbours")
    beside = compare([tmp_path / "deployed.csv", place / "mle0", tmp_path / "neighbours"], baselines=False)
    assert [one.estimate("all.nDCG@20").mean == 1.0 for one in beside.evaluations] == [True, False, False]
    assert beside.gains["deployed.csv"]["purchase.nDCG@20"].sign == 1 and beside.baseline == "mle0"
    write_comparison(beside, tmp_path / "page.html")
    alone = evaluate(tmp_path / "deployed.csv", data=data, out=tmp_path / "out")
    assert alone.estimate("all.nDCG@20").mean == 1.0
    with pytest.raises(Exception, match="name the prepared data with data="):
        evaluate(tmp_path / "deployed.csv", out=tmp_path / "out")


def perfect_lists(data, people):
    """What each of these people took first, as the frame of somebody's own recommender."""
    ids, items = data.sequence_ids("test").to_pylist(), data.catalogue["item_id"].to_pylist()
    sequences = list(data["test"])
    return [
        {"user_id": ids[number], "item_id": items[item], "score": 9.0 - place, "rank": place}
        for number in people
        for place, item in enumerate(dict.fromkeys(sequences[number]["item"].tolist()), start=1)
    ]


def test_ones_own_lists_are_whose_they_say_and_all_are_measured_on_the_same_people(place, tmp_path):
    data = Prepared(place / "data")
    half = range(0, len(data["test"]), 2)
    frame = pa.Table.from_pylist(perfect_lists(data, half))
    found = compare([place / "mle0", place / "mle1", frame], data=data, baselines=False)
    own = found.evaluations[-1]
    assert own.name == "own lists" and set(own.scores.sequence) <= set(half)
    assert (own.scores.rank <= 8).all(), "everything that was taken is in their own list"
    for other in found.evaluations[:-1]:
        np.testing.assert_array_equal(other.scores.sequence, own.scores.sequence)
    assert any(f"lists for {len(half)} of the {len(data['test'])} sequences" in note for note in found.notes)
    judged = gate(place / "mle0", against=[frame, place / "mle1"], rules={"baselines": False}, data=data)
    np.testing.assert_array_equal(judged.evaluation.scores.sequence, own.scores.sequence)
    assert judged.deployed.name == "own lists"
    with pytest.raises(ConfigError, match="rules: ruler: no such key any more: it is called reference_fit now"):
        gate(place / "mle0", against=[place / "mle1"], rules={"ruler": False}, data=data)
    with pytest.raises(ConfigError, match="rules: min_gian: no such key .did you mean 'min_gain'"):
        gate(place / "mle0", against=[place / "mle1"], rules={"min_gian": 1}, data=data)
    with pytest.raises(ConfigError, match="expected a run.*got a value of type int"):
        compare([place / "mle0", 7], data=data)


def test_lists_whose_owners_are_not_said_are_refused_and_a_rank_beats_a_score(place, tmp_path):
    data = Prepared(place / "data")
    rows = [{"who": 1, "item_id": 100}, {"who": 2, "item_id": 100}]
    pa.csv.write_csv(pa.Table.from_pylist(rows), tmp_path / "lists.csv")
    with pytest.raises(DataError, match="1 items are listed more than once, and no column says whose"):
        read_recorded(tmp_path / "lists.csv", data, "test")
    rows = [
        {"item": 100, "score": 1.0, "rank": 2},
        {"item": 101, "score": 9.0, "rank": 2.5},
        {"item": 102, "score": 3.0, "rank": 1},
    ]
    pa.csv.write_csv(pa.Table.from_pylist(rows), tmp_path / "lists.csv")
    found = read_recorded(tmp_path / "lists.csv", data, "test")
    assert found.order == "rank" and found.item.tolist() == [2, 0, 1] and "the rank is taken" in found.notes[0]


def test_the_latest_list_of_a_sequence_holds_and_a_list_without_an_owner_is_everyones(place, tmp_path):
    data = Prepared(place / "data")
    ids = data.sequence_ids("test").to_pylist()
    rows = [(ids[1], 0, 100, 2.0), (ids[1], 0, 101, 1.0), (ids[1], 3, 105, 1.0)]
    write_lists(tmp_path / "lists.csv", rows, ["sequence_id", "after", "item_id", "score"])
    found = read_recorded(tmp_path / "lists.csv", data, "test")
    assert found.lists_of(np.array([1, 1, 1, 0]), np.array([0, 2, 3, 1])).tolist() == [0, 0, 1, -1]
    share = np.exp([2.0, 1.0]) / np.exp([2.0, 1.0]).sum()
    np.testing.assert_allclose(found.weight[:2], share)
    write_lists(tmp_path / "all.csv", [(110, 0.5), (111, 0.25)], ["item_id", "probability"])
    everyone = read_recorded(tmp_path / "all.csv", data, "test")
    assert everyone.lists_of(np.array([0, 224]), np.array([0, 3])).tolist() == [0, 0]
    windows = Run(place / "mle0").config.data
    shown = evaluate_policy(everyone, data, name="x", window=windows).scores
    assert set(shown.top) == {10} and (shown.rank[shown.item == 10] == 1).all()


@pytest.mark.parametrize(
    ("rows", "names", "said"),
    [
        ([("a", 1)], ["sequence_id", "what"], "no column item_id"),
        ([("nobody", 100)], ["sequence_id", "item_id"], "no list is of a sequence of the test split"),
        ([(100, 0.9), (101, 0.9)], ["item_id", "probability"], "sum to 1.8"),
        ([(100, "x")], ["item_id", "score"], "score must be numbers"),
        ([("film", 1)], ["item_id", "rank"], "item_id is string, and the log writes it as int64"),
    ],
)
def test_a_file_that_holds_no_lists_is_refused(place, tmp_path, rows, names, said):
    write_lists(tmp_path / "lists.csv", rows, names)
    with pytest.raises(DataError, match=said):
        read_recorded(tmp_path / "lists.csv", Prepared(place / "data"), "test")


def test_the_policy_that_wrote_an_impression_log_is_judged_by_value(small, tmp_path):
    run = train(small, out=tmp_path / "run", config=small_config(epochs=1))
    rules = GateRules(baselines=False, overlap={"min_effective": 1.0, "max_share": 1.0, "max_bias": 1e9})
    found = gate(run, against=["log"], rules=rules)
    assert found.deployed is None and found.against == "the policy that wrote the log"
    value = found.checks[0]
    assert value.name == "value" and "against the log's own" in value.reason and value.n
    assert "its lower end must be above 0" in value.reason, "no worse is no reason to deploy"
    assert found.question.kind == "value" and found.days is None
    assert "the policy that wrote the log" in gate_table(found).title
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize("name", list(BASELINES))
def test_a_baseline_saves_loads_and_recommends(name, place, tmp_path):
    data = Prepared(place / "data")
    fitted = fit_baseline(name, data, out=tmp_path / "base")
    again = fit_baseline(name, data, out=tmp_path / "again")
    loaded = load_baseline(tmp_path / "base")
    weights = [(tmp_path / folder / "policy.safetensors").read_bytes() for folder in ("base", "again")]
    assert weights[0] == weights[1]
    windows = Run(place / "mle0").config.data
    one, two = (evaluate_policy(each, data, name="x", window=windows).scores for each in (fitted, loaded))
    assert one.rank.tolist() == two.rank.tolist() and one.logp.tolist() == two.logp.tolist()
    histories = [[105, 106], []]
    lists = recommend_with(loaded, histories, 3)
    assert lists.items == recommend_with(again, histories, 3).items and len(lists.items[0]) == 3
    if name == "last item":
        assert lists.items[0][0] == 106
    assert 106 not in recommend_with(loaded, histories, 3, exclude_seen=True).items[0]


@pytest.mark.parametrize("name", ["policy.json", "policy.safetensors", "items.parquet"])
def test_a_baseline_with_an_altered_file_is_refused(name, place, tmp_path):
    fit_baseline("popularity", place / "data", out=tmp_path / "base")
    content = bytearray((tmp_path / "base" / name).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "base" / name).write_bytes(content)
    with pytest.raises(RunError, match=f"{name} was altered"):
        load_baseline(tmp_path / "base")


def test_a_saved_baseline_stands_on_either_side(place, tmp_path):
    fit_baseline("item-knn", place / "data", out=tmp_path / "knn")
    found = gate(place / "mle0", against=[tmp_path / "knn", place / "mle1"], rules=GateRules(metric="all.nDCG@20"))
    assert found.deployed.name == "knn" and found.evaluation.divergence.references[0].name == "mle1"
    baselines = next(check for check in found.checks if check.name == "baselines")
    assert "item-kNN" not in baselines.reason, "it is what is deployed already"
    turned = gate(tmp_path / "knn", against=[place / "mle0"], data=place / "data")
    assert turned.evaluation.name == "knn" and turned.evaluation.divergence is not None
    with pytest.raises(ConfigError, match="did you mean 'item-kNN'"):
        fit_baseline("item-kn", place / "data", out=tmp_path / "other")


def test_the_verb_gives_three_exit_codes(place, tmp_path):
    rules = tmp_path / "rules.yaml"

    def code(text):
        rules.write_text(text)
        words = [place / "chosen", "--against", place / "mle0", "--rules", rules, "--json", tmp_path / "g.json"]
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code in (0, 3, 4), done.output + str(done.exception)
        assert json.loads((tmp_path / "g.json").read_text())["answer"].upper() in done.stdout
        return done.exit_code

    lenient = "baselines: false, max_event_loss: 1, max_segment_loss: 1"
    assert code(f"{{{lenient}, min_gain: -1}}") == 0
    assert code(f"{{{lenient}, min_gain: 1}}") == 3
    assert code(f"{{{lenient}, min_sequences: 100000}}") == 4
