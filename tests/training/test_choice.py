"""β and the slope are chosen without the truth: where there is a signal the policy earns more, where not it stays."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from localpolicy.data.batches import Windows
from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.judge.checks.value import value_check
from localpolicy.judge.rules import GateRules
from localpolicy.measure.decisions import LEAST_EFFECTIVE, decisions
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.score import ItemMeans, score
from localpolicy.measure.truth import true_value
from localpolicy.measure.value import value_bounds, value_of
from localpolicy.runs.config import Config
from localpolicy.runtime.ranks import ALONE
from localpolicy.simulation.bandit import BanditConfig, BanditWorld
from localpolicy.simulation.prepared import write_prepared
from localpolicy.training.beta_selection import MULTIPLES, choose
from localpolicy.training.critic_quality import calibrate
from localpolicy.training.setup import resolve
from localpolicy.training.train import train
from localpolicy.training.validation import validate
from localpolicy.worlds.scenarios import SCENARIOS

SETTINGS = {
    "data": {"length": 4},
    "model": {"width": 16},
    "train": {"epochs": 6, "batch_size": 128, "learning_rate": 0.01},
}
HISTORIES, ANSWERS = [[0, 1, 2], [3, 3, 5]], [["context"] * 3] * 2


def config(**objective):
    return Config.parse({**SETTINGS, "objective": {"name": "lpi_cb", **objective}})


@pytest.fixture(scope="module")
def world():
    return BanditWorld(BanditConfig(contexts=12, items=8, appeal=2.0), seed=1)


@pytest.fixture(scope="module")
def log(world, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bandit") / "data"
    write_prepared(world, folder, sequences=6_000, seed=2)
    return Prepared(folder)


def rewritten(data: Prepared, folder, *, shuffled=False, propensity=True, kind=None, shift=0.0) -> Prepared:
    """Copy of a log with rewards permuted within each split, or without propensities."""
    names = ("propensity",) if propensity else ()
    options = {"kind": kind or data.kind, "events": data.events, "rewards": data.manifest["rewards"]}
    with writing(folder, optional=names, **options) as store:
        for split in ("train", "validation", "test"):
            source = data[split]
            arrays = {name: np.asarray(source.arrays[name]).copy() for name in ("item", "event", "reward", *names)}
            arrays["reward"] += np.float32(shift)
            decided = arrays["event"] != data.events.index("context")
            if shuffled:
                order = np.random.default_rng(0).permutation(int(decided.sum()))
                for name in ("event", "reward"):
                    arrays[name][decided] = arrays[name][decided][order]
            store.splits[split].append(np.diff(source.offsets), arrays)
        store.write_items(data.catalogue["item_id"], np.ones(data.n_items, np.int64))
    return Prepared(folder)


@pytest.fixture(scope="module")
def run(log, tmp_path_factory):
    return train(log, out=tmp_path_factory.mktemp("choice") / "run", config=config())


def test_with_propensities_the_largest_lower_bound_is_chosen_and_earns_more(run, world):
    chosen = run.manifest["improvement"]
    assert chosen["chosen_by"] == "value by logged propensities"
    assert 0 < chosen["slope"] == min(1.0, chosen["calibration"]["low"])
    fit = [one for one in chosen["candidates"] if one["effective"] >= 0.1]
    assert len(chosen["candidates"]) == len(MULTIPLES) + 1
    assert max(fit, key=lambda one: one["low"])["beta"] == chosen["beta"]
    policy = run.policy()
    assert true_value(policy, world).value > true_value(policy.logging(), world).value + 0.03
    js = [one["js"] for one in chosen["candidates"]]
    assert js[:-1] == sorted(js[:-1]) and js[-1] == pytest.approx(0, abs=1e-6), "candidates go further and further"


def test_the_lower_bounds_hold_for_all_candidates_at_once(run, log):
    """By hand for one of them: SNIPS at the logged propensities, t at δ/K, on the half that chose no epoch."""
    from scipy import stats

    chosen = run.manifest["improvement"]
    one = next(each for each in chosen["candidates"] if each["beta"] == chosen["beta"])
    windows = Windows(log, "validation", config().data).part(1, 2)
    batch = windows.cut(windows.chosen)
    policy = run.policy()
    rows = torch.log_softmax(policy.logits(batch).chunk(0, log.n_items), 1).double().numpy()
    at = batch.scored.numpy()
    weight = np.exp(rows[np.arange(len(at)), batch.item.numpy()[at]]) / batch.propensity.numpy()[at]
    reward = batch.reward.numpy()[at].astype(float)
    value = weight @ reward / weight.sum()
    error = np.sqrt(((weight * (reward - value)) ** 2).sum() * len(at) / (len(at) - 1)) / weight.sum()
    assert one["value"] == pytest.approx(value, rel=1e-4)
    level = 1 - 0.05 / (len(MULTIPLES) + 1)
    assert one["low"] == pytest.approx(value - stats.t.ppf(level, len(at) - 1) * error, rel=1e-3)


@pytest.mark.parametrize("name", ["lpi_cb", "lpi_rl"])
def test_on_an_improved_policys_own_log_steps_are_shorter(run, log, name):
    settings = resolve(Config.parse({**SETTINGS, "objective": {"name": name}}), log)
    windows, policy = Windows(log, "validation", settings.data).part(1, 2), run.policy()

    def chosen(objective, **options):
        policy.network.slope = 1.0
        choice = choose(policy, windows, objective, log, settings, ranks=ALONE, **options)
        return next(each.js for each in choice.candidates if each.beta == choice.beta)

    first, later = chosen(settings.objective), chosen(settings.objective, again=True)
    assert later <= 0.05 < first <= {"lpi_cb": np.log(2), "lpi_rl": 0.3}[name]
    given = settings.objective.model_copy(update={"max_js": 0.1})
    assert later < chosen(given, again=True) <= 0.1, "a ceiling that is given holds"


@pytest.mark.parametrize("estimator", ["snips", "dr", "log_smoothing"])
def test_beta_epochs_and_the_gate_are_chosen_by_one_rule(run, log, estimator):
    """Candidates of β, `value_low` of an epoch and the gate's value: the same estimate of the same decisions."""
    settings = resolve(Config.parse({**SETTINGS, "train": {**SETTINGS["train"], "estimator": estimator}}), log)
    windows = Windows(log, "validation", settings.data).part(1, 2)
    policy = run.policy()
    policy.network.slope = 1.0
    chosen = choose(policy, windows, settings.objective, log, settings, ranks=ALONE)
    assert [candidate.beta is None for candidate in chosen.candidates] == [False] * len(MULTIPLES) + [True]
    candidate = chosen.candidates[3]
    policy.network.slope, policy.network.beta = chosen.slope, candidate.beta
    scores = score(policy, windows, events=log.events, reward_model=ItemMeans.fit(log))
    decided = decisions(scores)
    bound, *_ = value_bounds([decided] * len(chosen.candidates), estimator)
    assert candidate.value == pytest.approx(bound.value, rel=1e-5)
    assert candidate.low == pytest.approx(bound.low, rel=1e-4)
    assert candidate.effective == pytest.approx(bound.effective, rel=1e-5)
    epoch = validate(policy, windows, settings, data=log, step=0, ranks=ALONE)
    assert epoch["value"] == pytest.approx(bound.value, rel=1e-6)
    assert epoch["value_low"] == pytest.approx(value_bounds([decided], estimator)[0].low, rel=1e-6)
    assert epoch["value_low"] > candidate.low, "one policy, not the best of many"
    if estimator != "log_smoothing":  # a bound, of which no difference can be taken
        rules = GateRules(estimator=estimator)
        judged = Evaluation("new", {}, None, scores, np.ones(1), {}, off_policy=value_of(decided))
        check = value_check(judged, None, rules)
        assert check.value == pytest.approx(bound.value - decided.reward.mean(), rel=1e-6)
        strict = value_of(decided, rules=rules.model_copy(update={"min_effective_share": 0.99}).refusals)
        refused = value_check(replace(judged, off_policy=strict), None, rules)
        assert refused.outcome == "cannot tell" and "effective sample" in refused.because


def test_the_rule_is_the_same_by_default_everywhere(log):
    """Training, sweeps (which ask the runs), the demo's arms and the gate."""
    assert GateRules().estimator == Config().train.estimator == "snips"
    assert GateRules().refusals.min_effective_share == LEAST_EFFECTIVE
    for scenario in SCENARIOS.values():
        for arm in scenario.arms:
            resolved = resolve(Config.parse({**scenario.settings, "objective": arm.objective}), log)
            assert resolved.train.estimator == "snips"
            assert resolved.train.select == ("logp" if arm.objective["name"] == "mle" else "value_low"), arm.name


def test_an_unsupported_estimator_is_refused_before_training(log, tmp_path):
    from localpolicy.errors import ConfigError, DataError

    train_settings = {**SETTINGS["train"], "estimator": "dr", "shard_catalogue": True}
    with pytest.raises(ConfigError, match="dr reads whole rows"):
        train(log, out=tmp_path / "run", config=Config.parse({**SETTINGS, "train": train_settings}))
    negative = rewritten(log, tmp_path / "negative", shift=-1.0)
    with pytest.raises(DataError, match="log_smoothing needs rewards >= 0, found -1"):
        train(negative, out=tmp_path / "run", config=config(), estimator="log_smoothing")
    assert not (tmp_path / "run").exists()


def test_without_a_signal_the_policy_stays_at_mu_and_says_why(log, tmp_path):
    data = rewritten(log, tmp_path / "shuffled", shuffled=True)
    run = train(data, out=tmp_path / "run", config=config())
    found = run.manifest["improvement"]
    assert found["slope"] == 0 and "does not tell good items from bad" in found["said"]
    policy = run.policy()
    for served in (policy, policy.dialled(0.01)):
        torch.testing.assert_close(
            served.log_probabilities(HISTORIES, ANSWERS), policy.logging().log_probabilities(HISTORIES, ANSWERS)
        )
    forced = train(data, out=tmp_path / "forced", config=config(calibrate_critic=False, beta=0.1)).policy()
    difference = forced.log_probabilities(HISTORIES, ANSWERS) - forced.logging().log_probabilities(HISTORIES, ANSWERS)
    assert difference.abs().max() > 0.05


def test_without_propensities_an_impression_log_gives_a_guess(log, tmp_path):
    data = rewritten(log, tmp_path / "data", propensity=False, kind="impressions")
    found = train(data, out=tmp_path / "run", config=config()).manifest["improvement"]
    assert "a guess" in found["chosen_by"]


def test_on_an_interaction_log_beta_is_the_spread_and_a_budget_only_raises_it(log, tmp_path):
    data = rewritten(log, tmp_path / "data", propensity=False, kind="interactions")
    found = train(data, out=tmp_path / "run", config=config()).manifest["improvement"]
    assert found["chosen_by"] == "spread" and not found["candidates"]
    assert found["beta"] == pytest.approx(found["calibration"]["spread"])
    near = train(data, out=tmp_path / "near", config=config(max_js=0.002))
    raised = near.manifest["improvement"]
    assert raised["beta"] > found["beta"] and "raised" in raised["said"]
    far = train(data, out=tmp_path / "far", config=config(max_js=math.log(2))).manifest["improvement"]
    assert far["beta"] == found["beta"], "a ceiling, never a target"


# ---------------------------------------------------------------------- lists, and rows that choose once


def list_log(folder, lists: int = 900, *, items: int = 8, places: int = 3) -> Prepared:
    """Lists of 3 of 8 items, drawn place by place, clicked more the higher their number; after one row of context."""
    rng, width = np.random.default_rng(0), places + 1
    mu = np.linspace(1, 3, items) / np.linspace(1, 3, items).sum()
    options = {"kind": "impressions", "events": ["none", "click", "context"], "rewards": {"none": 0.0, "click": 1.0}}
    with writing(folder, optional=("propensity", "place", "above"), **options) as store:
        for split in ("train", "validation", "test"):
            shown = np.argsort(-(np.log(mu) + rng.gumbel(size=(lists, items))), axis=1)[:, :places]
            chosen = mu[shown]
            click = (rng.random(shown.shape) < 0.1 + 0.1 * shown).astype(np.int64)
            arrays = {
                "item": np.c_[rng.integers(items, size=lists), shown], "event": np.c_[np.full(lists, 2), click],
                "reward": np.c_[np.zeros(lists), click].astype(np.float32),
                "propensity": np.c_[np.full(lists, np.nan), chosen / (1 - np.cumsum(chosen, 1) + chosen)],
                "place": np.tile(np.r_[0, np.arange(places)], (lists, 1)),
                "above": np.tile(np.r_[0, np.arange(places)], (lists, 1)),
            }  # fmt: skip
            flat = {name: values.ravel() for name, values in arrays.items()}
            store.splits[split].append(np.full(lists, width), flat)
        store.write_items(np.arange(items), np.ones(items, np.int64))
    return Prepared(folder)


@pytest.mark.parametrize("estimator", ["snips", "dr"])
def test_beta_is_chosen_by_the_value_of_whole_lists(tmp_path, estimator):
    """As it is evaluated on the same rows: among open items in both factors, with products of ratios."""
    data = list_log(tmp_path / "data")
    changed = {**SETTINGS, "train": {**SETTINGS["train"], "epochs": 2, "estimator": estimator}}
    run = train(data, out=tmp_path / "run", config=Config.parse({**changed, "objective": {"name": "lpi_cb"}}))
    settings, policy = run.config, run.policy()
    windows = Windows(data, "validation", settings.data).part(1, 2)
    policy.network.slope = 1.0
    chosen = choose(policy, windows, settings.objective, data, settings, ranks=ALONE)
    assert 0 < chosen.slope <= 1
    candidate = chosen.candidates[2]
    policy.network.slope, policy.network.beta = chosen.slope, candidate.beta
    decided = decisions(score(policy, windows, events=data.events, reward_model=ItemMeans.fit(data)))
    assert decided is not None and decided.lists and len(decided.clusters) == 450
    bound, *_ = value_bounds([decided] * len(chosen.candidates), estimator)
    assert candidate.value == pytest.approx(bound.value, rel=1e-4)
    assert candidate.low == pytest.approx(bound.low, rel=1e-3)
    assert candidate.value > 0.5, "per list, of three places"


def test_a_critic_is_never_multiplied_up():
    """A nearly constant critic may have a slope of thousands, and its spread would choose β."""
    rng = np.random.default_rng(0)
    advantage = rng.normal(0, 1, 4000)
    found = calibrate(advantage, np.zeros(4000), 1e-5 * advantage, np.arange(4000))
    assert found.low > 1e4 and found.factor == 1.0


def test_rows_that_chose_an_epoch_do_not_choose_again(log, tmp_path):
    mle = {**SETTINGS, "objective": {"name": "mle"}, "train": {**SETTINGS["train"], "epochs": 2}}
    whole = train(log, out=tmp_path / "whole", config=Config.parse(mle))
    mle["train"]["choose_on"] = "half"
    half = train(log, out=tmp_path / "half", config=Config.parse(mle))
    windows = Windows(log, "validation", half.config.data)
    for run, rows in ((whole, windows), (half, windows.part(0, 2))):
        figures = validate(run.policy(), rows, run.config, data=log, step=0, ranks=ALONE)
        assert run.manifest["selected"]["value"] == pytest.approx(figures["logp"], rel=1e-5)
        short = {"epochs": 1, "batch_size": 128, "learning_rate": 0.01}
        settings = {**SETTINGS, "objective": {"name": "lpi_cb", "logging": str(run.folder)}, "train": short}
        made = train(log, out=tmp_path / f"{run.folder.name}-lpi", config=Config.parse(settings))
        said = made.manifest["improvement"]["chosen_twice"]
        assert (said is None) == (run is half) and (said is None or "choose_on=half" in said)
