"""What worlds write: events, truth and prepared data sets; same seed, same bytes; whole or absent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, DataError, LocalPolicyError
from localpolicy.runtime.files import sha256
from localpolicy.simulation import (
    BanditConfig,
    BanditWorld,
    StoreConfig,
    StoreWorld,
    load_world,
    simulate,
    write_log,
    write_prepared,
)
from localpolicy.simulation import bandit as bandit_module
from localpolicy.simulation import store_world as store_module

BANDIT = BanditWorld(BanditConfig(contexts=20, items=15))
SHOP = StoreWorld(StoreConfig(items=50, categories=5, mean_length=6))


def digests(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): sha256(file) for file in sorted(folder.rglob("*")) if file.is_file()}


@pytest.mark.parametrize("world", ["bandit", "store"])
@pytest.mark.parametrize("prepared", [False, True])
def test_equal_seeds_give_equal_bytes(world: str, prepared: bool, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        simulate(world, tmp_path / name, sequences=300, seed=seed, prepared=prepared)
    same, other = digests(tmp_path / "a"), digests(tmp_path / "c")
    assert digests(tmp_path / "b") == same
    data = "train/item.npy" if prepared else "events.parquet"
    assert same[data] != other[data]


def test_events_have_the_columns_types_and_order_that_readers_expect(tmp_path: Path) -> None:
    write_log(BANDIT, tmp_path / "log", sequences=400)
    table = pq.read_table(tmp_path / "log" / "events.parquet")
    assert {name: str(kind) for name, kind in zip(table.schema.names, table.schema.types, strict=True)} == {
        "sequence_id": "int64",
        "item_id": "int64",
        "event": "string",
        "timestamp": "int64",
        "reward": "double",
        "propensity": "double",
        "policy": "string",
    }
    sequence, time = (table[name].to_numpy() for name in ("sequence_id", "timestamp"))
    order = np.lexsort([time, sequence])
    np.testing.assert_array_equal(order, np.arange(len(order)))
    context = np.array(table["event"].to_pylist()) == "context"
    for column, known in (("propensity", None), ("policy", "logging")):
        values = table[column].to_pylist()
        assert all(values[row] is None for row in np.flatnonzero(context))
        assert all(values[row] == known if known else values[row] > 0 for row in np.flatnonzero(~context))


def test_interactions_keep_what_users_did_and_no_propensity(tmp_path: Path) -> None:
    write_log(SHOP, tmp_path / "shown", sequences=400, seed=1)
    write_log(SHOP, tmp_path / "done", sequences=400, seed=1, interactions=True)
    shown = pq.read_table(tmp_path / "shown" / "events.parquet")
    done = pq.read_table(tmp_path / "done" / "events.parquet")
    assert done.schema.names == ["sequence_id", "item_id", "event", "timestamp", "reward"]
    answered = np.array(shown["event"].to_pylist()) != "none"
    assert done.equals(shown.filter(answered).select(done.schema.names))


def test_interactions_of_the_bandit_keep_histories_of_answered_decisions_alone(tmp_path: Path) -> None:
    shown, written = write_log(BANDIT, tmp_path / "done", sequences=400, interactions=True)
    assert written.counts == {"none": 0, "click": shown.counts["click"], "context": 3 * shown.counts["click"]}
    assert written.sequences == shown.counts["click"]


@pytest.mark.parametrize("world", [BANDIT, SHOP], ids=["bandit", "store"])
@pytest.mark.parametrize("interactions", [False, True])
def test_the_fast_path_holds_what_the_events_hold(
    world: BanditWorld | StoreWorld, interactions: bool, tmp_path: Path
) -> None:
    options = {"sequences": 500, "seed": 4, "interactions": interactions}
    write_log(world, tmp_path / "log", **options)
    write_prepared(world, tmp_path / "data", **options)
    events, data = pq.read_table(tmp_path / "log" / "events.parquet"), Prepared(tmp_path / "data")
    data.verify()
    assert data.kind == ("interactions" if interactions else "impressions")
    assert ("none" in data.events) != interactions
    names = np.array(events["event"].to_pylist())
    assert data.manifest["counts"]["events"] == {name: int((names == name).sum()) for name in data.events}
    assert len(data) == len(set(events["sequence_id"].to_pylist()))

    item_id = data.catalogue["item_id"].to_numpy()
    count = data.catalogue["count"].to_numpy()
    assert np.all(np.diff(count) <= 0)
    assert count.min() > 0
    np.testing.assert_array_equal(count, np.bincount(events["item_id"].to_numpy(), minlength=world.n_items)[item_id])

    # Whole sequences in one order, whatever their split: both ways hold the same rows.
    wanted: dict[int, list[tuple[object, ...]]] = {}
    for row in events.to_pylist():
        wanted.setdefault(row["sequence_id"], []).append(
            (row["item_id"], row["event"], np.float32(row["reward"]), row["timestamp"])
        )
    found = [
        list(zip(item_id[s["item"]], [data.events[e] for e in s["event"]], s["reward"], s["time"], strict=True))
        for split in data.splits.values()
        for s in split
    ]
    assert sorted(found) == sorted(wanted.values())


def test_the_splits_have_their_shares_and_the_propensities_survive(tmp_path: Path) -> None:
    write_prepared(SHOP, tmp_path / "data", sequences=3000, fractions=(0.5, 0.3, 0.2))
    data = Prepared(tmp_path / "data")
    assert [len(data[name]) / 3000 for name in ("train", "validation", "test")] == pytest.approx(
        [0.5, 0.3, 0.2], abs=0.04
    )
    sequence = data["test"][0]
    items = data.catalogue["item_id"].to_numpy()[sequence["item"]]
    events = sequence["event"][None, :]
    for step, propensity in enumerate(sequence["propensity"]):
        (row,) = SHOP.logging_probabilities(items[None, :step], events[:, :step])
        assert propensity == pytest.approx(row[items[step]], rel=1e-4)
    assert data.manifest["policies"] == ["logging"]
    assert set(sequence["policy"]) == {0}


def test_context_rows_have_no_propensity_and_no_policy(tmp_path: Path) -> None:
    write_prepared(BANDIT, tmp_path / "data", sequences=100)
    data = Prepared(tmp_path / "data")
    train = data["train"].arrays
    context = train["event"] == data.events.index("context")
    np.testing.assert_array_equal(np.isnan(train["propensity"]), context)
    np.testing.assert_array_equal(train["policy"], np.where(context, -1, 0))


def test_unseen_items_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    world = StoreWorld(StoreConfig(items=5000))
    write_prepared(world, tmp_path / "seen", sequences=50)
    write_prepared(world, tmp_path / "all", sequences=50, all_items=True)
    seen, everything = Prepared(tmp_path / "seen"), Prepared(tmp_path / "all")
    assert seen.n_items < everything.n_items == 5000
    np.testing.assert_array_equal(seen["train"].arrays["item"], everything["train"].arrays["item"])
    assert sorted(everything.catalogue["item_id"].to_pylist()) == list(range(5000))


def test_another_policys_log_can_be_written(tmp_path: Path) -> None:
    chunks = BANDIT.log(300, 9, probabilities=BANDIT.tilted(0.1))
    shown, _ = write_prepared(BANDIT, tmp_path / "data", sequences=300, chunks=chunks, policy="round-1")
    assert shown.impressions == 300
    assert Prepared(tmp_path / "data").manifest["policies"] == ["round-1"]


def test_a_later_log_keeps_the_numbers_of_the_items(tmp_path: Path) -> None:
    write_prepared(BANDIT, tmp_path / "first", sequences=300)
    first = Prepared(tmp_path / "first")
    log = list(BANDIT.log(200, 9, probabilities=BANDIT.tilted(0.1)))
    options = {"sequences": 200, "seed": 9, "policy": "round-1"}
    write_prepared(BANDIT, tmp_path / "plain", chunks=log, **options)
    write_prepared(BANDIT, tmp_path / "next", chunks=log, like=first, **options)
    write_prepared(BANDIT, tmp_path / "both", chunks=log, append=first, **options)
    plain, following, both = (Prepared(tmp_path / name) for name in ("plain", "next", "both"))
    assert following.catalogue["item_id"].equals(first.catalogue["item_id"])
    assert not plain.catalogue["item_id"].equals(first.catalogue["item_id"]), "else nothing is proven"
    assert following.manifest["policies"] == ["round-1"] and both.manifest["policies"] == ["logging", "round-1"]
    both.verify()
    counts = [data.catalogue["count"].to_numpy() for data in (first, following, both)]
    np.testing.assert_array_equal(counts[0] + counts[1], counts[2])
    for name in ("train", "validation", "test"):
        ids = [data.catalogue["item_id"].to_numpy()[data[name].arrays["item"]] for data in (plain, following)]
        np.testing.assert_array_equal(*ids)
        assert len(both[name]) == len(first[name]) + len(following[name])
        old = first[name].events
        np.testing.assert_array_equal(both[name].offsets[len(first[name]) :] - old, following[name].offsets)
        for column, array in both[name].arrays.items():
            np.testing.assert_array_equal(array[:old], first[name].arrays[column])
            later = following[name].arrays[column]
            np.testing.assert_array_equal(array[old:], np.where(later < 0, later, 1) if column == "policy" else later)


def test_a_later_log_shows_no_item_that_the_earlier_lacks(tmp_path: Path) -> None:
    world = StoreWorld(StoreConfig(items=5000))
    write_prepared(world, tmp_path / "first", sequences=50)
    with pytest.raises(DataError, match="shows items that .*first lacks"):
        write_prepared(world, tmp_path / "next", sequences=50, seed=1, like=Prepared(tmp_path / "first"))
    assert not (tmp_path / "next").exists()


def test_many_chunks_make_one_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by a chunk; the joints must not show."""
    monkeypatch.setattr(bandit_module, "CHUNK", 64)
    monkeypatch.setattr(store_module, "CHUNK", 64)
    for world in (BANDIT, SHOP):
        assert max(len(chunk.sequence) for chunk in world.log(500, 0)) == 64
        told: list[int] = []
        write_log(world, tmp_path / world.name / "log", sequences=500, progress=told.append)
        write_prepared(world, tmp_path / world.name / "data", sequences=500)
        table = pq.read_table(tmp_path / world.name / "log" / "events.parquet")
        assert sorted(set(table["sequence_id"].to_pylist())) == list(range(500))
        assert sum(told) == 500
        assert sum(split.events for split in Prepared(tmp_path / world.name / "data").splits.values()) == len(table)


@pytest.mark.parametrize("write", [write_log, write_prepared])
@pytest.mark.parametrize("world", [BANDIT, SHOP], ids=["bandit", "store"])
def test_a_world_is_loaded_from_the_folder_of_its_log(
    world: BanditWorld | StoreWorld, write: object, tmp_path: Path
) -> None:
    write(world, tmp_path / "out", sequences=50)
    for folder in (tmp_path / "out", tmp_path / "out" / "truth"):
        loaded = load_world(folder)
        assert loaded.config == world.config
        for name, array in world.hidden().items():
            np.testing.assert_array_equal(loaded.hidden()[name], array)


def test_a_world_that_is_not_the_same_is_refused(tmp_path: Path) -> None:
    write_log(BANDIT, tmp_path / "out", sequences=50)
    reward = tmp_path / "out" / "truth" / "reward.npy"
    original = reward.read_bytes()
    altered = np.load(reward)
    altered[3, 4] += 1e-3
    np.save(reward, altered)
    with pytest.raises(DataError, match=r"reward\.npy differs"):
        load_world(tmp_path / "out")
    reward.write_bytes(original[:-8])
    with pytest.raises(DataError, match="truncated"):
        load_world(tmp_path / "out")
    reward.write_bytes(original)
    world = tmp_path / "out" / "truth" / "world.json"
    world.write_text(world.read_text().replace('"taste": 1.0', '"taste": 1.1'))
    with pytest.raises(DataError, match="'reward' of the world built again differs"):
        load_world(tmp_path / "out")
    with pytest.raises(DataError, match="no simulated world"):
        load_world(tmp_path)


# Files that the failed block left open are closed by the collector, which says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("write", [write_log, write_prepared])
def test_an_interrupted_writing_leaves_nothing(write: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "CHUNK", 64)

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(SHOP, tmp_path / "out", sequences=500, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_an_occupied_folder_is_replaced_only_by_force(tmp_path: Path) -> None:
    simulate("store", tmp_path / "out", sequences=50)
    with pytest.raises(LocalPolicyError, match="force=True"):
        simulate("store", tmp_path / "out", sequences=50)
    simulate("bandit", tmp_path / "out", sequences=50, force=True)
    assert load_world(tmp_path / "out").name == "bandit"


def test_simulate_says_what_it_wrote(tmp_path: Path) -> None:
    result = simulate("bandit", tmp_path / "b", sequences=500, items=20, changes=["contexts=10", "noise=0.5"])
    world = load_world(tmp_path / "b")
    assert (world.config.items, world.config.contexts, world.config.noise) == (20, 10, 0.5)
    assert result.logging_value == world.logging_value()
    assert result.rows["context"] == 1500
    assert sum(result.rows.values()) == 2000
    assert result.sequences == 500


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"world": "stroe"}, "did you mean 'store'"),
        ({"world": "store", "sequences": 0}, "at least 1"),
        ({"world": "store", "seed": -1}, "negative"),
        ({"world": "store", "changes": ["lookahed=1"]}, "did you mean 'lookahead'"),
    ],
)
def test_bad_requests_are_refused(options: dict[str, object], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        simulate(out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_split_fractions_must_add_up(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sum 1"):
        write_prepared(SHOP, tmp_path / "data", sequences=10, fractions=(0.5, 0.1, 0.1))


def test_an_item_table_is_written_next_to_the_log(tmp_path: Path) -> None:
    """Raw and prepared: with items that the log never shows, and numbers that stay as more of them come."""
    world = BanditWorld(BanditConfig(contexts=20, items=30, features=1, new_items=0.4, new_rounds=2))
    write_log(world, tmp_path / "raw", sequences=200)
    table = world.item_table()
    assert table is not None and pq.read_table(tmp_path / "raw" / "items.parquet").equals(table)
    first = write_prepared(world, tmp_path / "first", sequences=200, round_number=1)
    data = Prepared(tmp_path / "first")
    assert data.n_items == world.on_sale(1) == 24 and first[1].items[18:].sum() == 0
    ids = data.catalogue["item_id"].to_pylist()
    true = dict(zip(table["item_id"].to_pylist(), table["true_1"].to_pylist(), strict=True))
    assert data.catalogue["true_1"].to_pylist() == [true[item] for item in ids]
    write_prepared(world, tmp_path / "next", sequences=200, append=data, round_number=2, seed=1)
    more = Prepared(tmp_path / "next").catalogue
    assert more["item_id"].to_pylist() == [*ids, *range(24, 30)]
    assert sum(more["count"].to_pylist()) == 2 * sum(data.catalogue["count"].to_pylist())
