"""The true value of a policy: the world's own sum, and rollouts that meet the same shoppers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from measured import policy

from localpolicy.data.batches import batch_of_histories
from localpolicy.data.store import Prepared
from localpolicy.errors import DataError
from localpolicy.measure.truth import (
    PolicyAgent,
    batch_of_arrays,
    histories,
    true_value,
)
from localpolicy.model.baselines import Popularity
from localpolicy.simulation import BanditConfig, BanditWorld, StoreConfig, StoreWorld, write_prepared
from localpolicy.worlds.loop import RoundMeasure


@pytest.fixture(scope="module")
def bandit(tmp_path_factory):
    world = BanditWorld(BanditConfig(contexts=15, items=12), seed=0)
    folder = tmp_path_factory.mktemp("truth") / "bandit"
    write_prepared(world, folder, sequences=60, seed=0)
    return world, Prepared(folder)


@pytest.fixture(scope="module")
def shops(tmp_path_factory):
    world = StoreWorld(StoreConfig(items=40, categories=4), seed=0)
    made = {}
    for kind in ("impressions", "interactions"):
        folder = tmp_path_factory.mktemp("truth") / kind
        write_prepared(world, folder, sequences=80, seed=0, interactions=kind == "interactions")
        made[kind] = Prepared(folder)
    return world, made


def test_bandit_value_is_the_double_sum(bandit):
    world, data = bandit
    made = policy(data, event_embeddings=True)
    ids = data.catalogue["item_id"].to_pylist()
    expected = 0.0
    for context, share in zip(world.contexts.tolist(), world.context_probabilities, strict=True):
        number = world.contexts.tolist().index(context)
        logp = made.log_probabilities([context], [["context"] * len(context)])[0]
        expected += share * sum(logp[k].exp().item() * world.reward[number, ids[k]] for k in range(len(ids)))
    found = true_value(made, world)
    assert found.value == pytest.approx(expected, abs=1e-6)
    assert found.se == 0.0
    assert found.gain == pytest.approx(found.value - world.logging_value())
    assert found.optimum == pytest.approx(world.optimum())


def test_rounds_of_a_bandit_are_exact(bandit):
    world, data = bandit
    found = RoundMeasure(world, episodes=10, seed=0).of(policy(data, event_embeddings=True), None)
    exact = ("truth", "gain", "step", "js_before", "js_first", "kl_first")
    assert [found[name]["se"] for name in exact] == [0.0] * len(exact)
    assert found["js_before"] == found["js_first"] and found["gain"] == found["step"], "the policy before is μ"


@pytest.mark.parametrize("kind", ["bandit", "store"])
def test_a_world_of_another_class_is_measured_by_what_it_answers(bandit, shops, kind):
    world, data = {"bandit": bandit, "store": (shops[0], shops[1]["impressions"])}[kind]

    class Another:
        def __getattr__(self, name):
            return getattr(world, name)

    made = policy(data, event_embeddings=True)
    assert true_value(made, Another(), episodes=20) == true_value(made, world, episodes=20)
    rounds = [RoundMeasure(each, episodes=20, seed=0).of(made, None) for each in (world, Another())]
    assert rounds[0] == rounds[1] and (rounds[0]["truth"]["se"] == 0) == world.exact


def test_the_logging_policy_of_a_bandit_is_asked_by_history(bandit):
    world, _ = bandit
    rows = [3, 0, 3]
    asked = world.logging_probabilities(world.contexts[rows], np.zeros((3, 3), int))
    assert (asked == world.logging[rows]).all()


def test_items_the_policy_never_saw_get_no_probability(tmp_path):
    world = BanditWorld(BanditConfig(contexts=4, items=60, history=1), seed=0)
    write_prepared(world, tmp_path / "few", sequences=12, seed=0)
    data = Prepared(tmp_path / "few")
    assert data.n_items < 30, "the log must miss some items for this to say anything"
    found = world.table(PolicyAgent(policy(data), world))
    unseen = np.setdiff1d(np.arange(60), data.catalogue["item_id"].to_numpy())
    assert (found[:, unseen] == 0).all()
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-6)


def test_a_policy_of_another_log_is_refused(bandit):
    other = BanditWorld(BanditConfig(contexts=3, items=5), seed=0)
    with pytest.raises(DataError, match="not those of this world"):
        true_value(policy(bandit[1]), other)


def test_batches_of_arrays_equal_batches_of_lists():
    rng = np.random.default_rng(0)
    item, event = rng.integers(0, 9, (20, 7)), rng.integers(0, 3, (20, 7))
    kept = rng.random((20, 7)) < 0.6
    for length in (1, 3, 20):
        found = batch_of_arrays(item, event, kept, length=length)
        lists = [row[mask].tolist() for row, mask in zip(item, kept, strict=True)]
        answers = [row[mask].tolist() for row, mask in zip(event, kept, strict=True)]
        expected = batch_of_histories(lists, answers, length=length)
        for name in ("row", "column", "previous_item", "previous_event", "history", "scored", "sequences"):
            assert torch.equal(getattr(found, name), getattr(expected, name)), name


def test_a_policy_reads_what_its_own_log_held(shops):
    world, data = shops
    shown = data["impressions"].catalogue["item_id"].to_pylist()
    answered = set(data["interactions"].catalogue["item_id"].to_pylist())
    known = [item for item in shown if item in answered][:3]
    items, events = np.array([known]), np.array([[1, 0, 2]])  # click, none, purchase
    every = histories(policy(data["impressions"]), items, events, world.events, world.n_items)
    some = histories(policy(data["interactions"]), items, events, world.events, world.n_items)
    index = {kind: data[kind].catalogue["item_id"].to_pylist().index for kind in data}
    assert every.previous_item.tolist() == [-1, *(index["impressions"](item) for item in known)]
    assert every.previous_event.tolist() == [0, 1, 0, 2]
    assert some.previous_item.tolist() == [-1, index["interactions"](known[0]), index["interactions"](known[2])]
    assert some.previous_event.tolist() == [
        0,
        *(data["interactions"].events.index(name) for name in ("click", "purchase")),
    ]


def test_an_agent_draws_from_the_policy_and_tells_the_probability(shops):
    world, data = shops
    made = policy(data["interactions"])
    choose = PolicyAgent(made, world)
    known = data["interactions"].catalogue["item_id"].to_pylist()
    histories_BT = np.tile(np.array([[known[0], known[1]]]), (20_000, 1))
    items, probability = choose(histories_BT, np.ones_like(histories_BT), np.random.default_rng(0))
    share = made.log_probabilities([[known[0], known[1]]], [["click", "click"]])[0].exp().numpy()
    seen = np.bincount(items, minlength=world.n_items)[known] / 20_000
    # The largest of some 40 frequencies: 5 standard errors.
    assert (np.abs(seen - share) < 5 * np.sqrt(share * (1 - share) / 20_000) + 1e-4).all()
    expected = dict(zip(known, share, strict=True))
    np.testing.assert_allclose(probability[:50], [expected[item] for item in items[:50]], rtol=1e-4)
    best, sure = PolicyAgent(made, world, greedy=True)(histories_BT[:3], np.ones((3, 2), int), np.random.default_rng(0))
    assert best.tolist() == [known[int(share.argmax())]] * 3
    assert sure.tolist() == [1.0] * 3


def test_rollouts_agree_with_an_agent_written_by_hand(shops):
    world, data = shops
    baseline = Popularity.fit(data["interactions"])
    ids, share = data["interactions"].catalogue["item_id"].to_numpy(), baseline.share.double().numpy()

    def popular(items, events, rng):
        return rng.choice(ids, size=len(items), p=share / share.sum())

    found = world.visit_rewards(PolicyAgent(baseline, world), 3000, 5, 0)
    expected = world.visit_rewards(popular, 3000, 5, 0)
    # Both turn the same luck into the same draws but for rounding, before the same shoppers.
    assert (found == expected).mean() > 0.99
    assert found.std() > 0


def test_the_gain_over_the_logging_policy_is_paired(shops):
    world, data = shops
    found = true_value(policy(data["interactions"]), world, episodes=300, steps=5)
    assert found.gain == pytest.approx(found.value - found.logging)
    assert 0 < found.gain_se < 2 * found.se
    assert found.optimum is None
