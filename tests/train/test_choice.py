"""β and the slope are chosen without the truth: where there is a signal the policy earns more, where not it stays."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from localpolicy.data.batches import Windows
from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.evaluation.truth import true_value
from localpolicy.runs.config import Config
from localpolicy.simulation.bandit import BanditConfig, BanditWorld
from localpolicy.simulation.prepared import write_prepared
from localpolicy.training.choice import MULTIPLES
from localpolicy.training.loop import train

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


def rewritten(data: Prepared, folder, *, shuffled=False, propensity=True, kind=None) -> Prepared:
    """The same log with rewards dealt out anew within each split, or without propensities."""
    names = ("propensity",) if propensity else ()
    options = {"kind": kind or data.kind, "events": data.events, "rewards": data.manifest["rewards"]}
    with writing(folder, optional=names, **options) as store:
        for split in ("train", "validation", "test"):
            source = data[split]
            arrays = {name: np.asarray(source.arrays[name]).copy() for name in ("item", "event", "reward", *names)}
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
    assert 0 < chosen["slope"] == chosen["calibration"]["low"]
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
    forced = train(data, out=tmp_path / "forced", config=config(believe=True, beta=0.1)).policy()
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
