"""Lists with one reward each, from the log to critic, policy and value, in a world small enough to enumerate."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pyarrow as pa
import pytest
import torch

import localpolicy as lp
from localpolicy.data.batches import Windows
from localpolicy.errors import ConfigError, DataError
from localpolicy.measure.decisions import decisions
from localpolicy.measure.estimators import by_name
from localpolicy.measure.score import score
from localpolicy.model.readout import critic_targets, lower_rewards

ITEMS, K = 6, 2
MU = np.array([0.35, 0.25, 0.15, 0.1, 0.1, 0.05])
WORTH = np.array([0.1, 0.9, 0.2, 0.8, 0.1, 0.7])
LISTS = np.array(list(permutations(range(ITEMS), K)))
EARNS = WORTH[LISTS].prod(1)  # what a list brings depends on both of its places: neither has a reward of its own


def law(policy: np.ndarray) -> np.ndarray:
    """P(list) of every list there is."""
    shown = policy[LISTS]
    return np.asarray((shown / (1 - np.cumsum(shown, 1) + shown)).prod(1))


def frame(lists: np.ndarray, reward: np.ndarray, on: str) -> pa.Table:
    """A log of one list per person, its reward on the `first` row, on the `last`, or on `each`."""
    rows = []
    chance = MU[lists] / (1 - np.cumsum(MU[lists], 1) + MU[lists])
    for number, (items, earned) in enumerate(zip(lists.tolist(), reward.tolist(), strict=True)):
        for place, item in enumerate(items):
            here = on == "each" or place == {"first": 0, "last": K - 1}.get(on)
            rows.append({"sequence_id": number, "item_id": item, "event": "shown", "timestamp": 1_000_000 + number,
                         "reward": earned if here else 0.0, "propensity": chance[number, place],
                         "policy": "served", "request": f"r{number}", "place": place})  # fmt: skip
    return pa.Table.from_pylist(rows)


def prepared(folder, table, **settings) -> lp.Prepared:
    return lp.prepare(table, out=folder, **{"test": 0.3, "validation": 0.3, "kind": "impressions", **settings})


@pytest.mark.parametrize(("on", "setting"), [("first", "sum"), ("last", "sum"), ("each", "repeated")])
def test_the_lists_reward_stands_on_its_last_row(tmp_path, on, setting):
    rng = np.random.default_rng(0)
    lists, reward = LISTS[rng.integers(len(LISTS), size=40)], rng.random(40).round(3)
    data = prepared(tmp_path / "data", frame(lists, reward, on), list_reward=setting)
    total = np.concatenate([data[split].arrays["reward"] for split in ("train", "validation", "test")]).reshape(-1, K)
    assert data.one_reward and not total[:, 0].any()
    np.testing.assert_allclose(np.sort(total[:, -1]), np.sort(reward), rtol=1e-6)
    assert data.position_bias is None, "a reward of the whole list says nothing of its places"


def test_rows_that_contradict_each_other_are_refused(tmp_path):
    table = frame(LISTS, np.ones(len(LISTS)), "first")
    with pytest.raises(DataError, match=r"'r\d+' states 1 and 0\..*list_reward=sum"):
        prepared(tmp_path / "data", table, list_reward="repeated")
    with pytest.raises(ConfigError, match="needs an impression log of lists"):
        prepared(tmp_path / "none", table.drop_columns(["request", "place"]), list_reward="sum")


def test_every_place_is_credited_with_the_list_and_no_list_twice(tmp_path):
    """Two lists a person: r of the whole list at each place, γ times the next list's once; TD adds nothing to it."""
    table = frame(LISTS, EARNS, "last")
    person = pa.array(np.repeat(np.arange(len(LISTS)) // 2, K))
    data = prepared(tmp_path / "data", table.set_column(0, "sequence_id", person), list_reward="sum")
    (batch,) = Windows(data, "train", lp.configure().data).in_order(1000)
    targets, weight = critic_targets(batch, gamma=0.5)
    own = batch.reward.reshape(-1, 2 * K)
    first, second = own[:, :K].sum(1), own[:, K:].sum(1)
    expected = torch.stack([first + 0.5 * second] * K + [second] * K, 1).flatten()
    torch.testing.assert_close(targets, expected)
    assert (weight == 1).all() and (batch.credited >= batch.reward).all()
    begins = batch.context == torch.arange(len(batch.context))
    assert (lower_rewards(batch)[begins] == 0).all(), "the first place's value holds the whole list's reward"


def test_a_target_is_what_showing_the_item_earns_with_the_rest_left_to_the_log(tmp_path):
    """Enumerated: every list as often as μ draws it. The mean target of an item at a place is E_μ[R | a there]."""
    often = np.rint(law(MU) * 4000).astype(int)
    lists, reward = np.repeat(LISTS, often, 0), np.repeat(EARNS, often)
    data = prepared(tmp_path / "data", frame(lists, reward, "last"), list_reward="sum", test=3, validation=3)
    (batch,) = Windows(data, "train", lp.configure().data).in_order(10_000)
    ids = data.catalogue["item_id"].to_numpy()[batch.item.numpy()]
    targets = critic_targets(batch, gamma=0.0)[0].numpy()
    place = (torch.arange(len(batch.context)) - batch.context).numpy()
    for item in range(ITEMS):
        for at in range(K):
            here = LISTS[:, at] == item
            expected = (often[here] @ EARNS[here]) / often[here].sum()
            assert targets[(ids == item) & (place == at)].mean() == pytest.approx(expected, abs=0.01)


def test_a_policy_learns_from_whole_lists_and_is_judged_by_them(tmp_path):
    rng = np.random.default_rng(1)
    lists = LISTS[rng.choice(len(LISTS), size=2500, p=law(MU))]
    reward = (rng.random(2500) < WORTH[lists].prod(1)).astype(float)
    data = prepared(tmp_path / "data", frame(lists, reward, "last"), list_reward="sum", test=0.5)
    run = lp.train(data, "lpi_cb", out=tmp_path / "run", seed=0, device="cpu", width=8, length=4, epochs=5,
                   learning_rate=0.02, batch_size=32, min_history=0)  # fmt: skip
    policy = run.policy()
    shown = policy.recommend([[]], ITEMS)
    learnt = np.zeros(ITEMS)
    learnt[np.array(shown.items[0])] = shown.log_probability[0].double().exp().numpy()
    before, after = law(MU) @ EARNS, law(learnt) @ EARNS
    assert run.manifest["improvement"]["slope"] > 0 and after > 1.1 * before
    gate = lp.gate(run.folder, against=["log"], config={"min_history": 0})
    value = gate.checks[0]
    assert value.figure == "value" and value.unit == "lists" and value.n == len(data["test"])
    assert "first place" not in value.because and gate.evaluation.off_policy.beside == {}
    assert value.low is not None and value.low <= after - before <= value.high, value.because
    windows = Windows(data, "test", run.config.data)
    log = decisions(score(policy, windows, events=data.events, min_history=0))
    np.testing.assert_allclose(log.weight.reshape(-1, K)[:, -1], log.whole_weight)
    assert by_name("ips").values(log).mean() == pytest.approx((log.whole_weight * log.earned).mean())
