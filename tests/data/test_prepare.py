"""`prepare` against an independent computation in plain Python."""

from __future__ import annotations

import gzip
from collections import Counter
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from raw_logs import by_popularity, grouped, lot, random_log, random_split, split_of, stored, write_csv, write_parquet

from localpolicy.data import sql
from localpolicy.data.batches import WindowConfig, Windows
from localpolicy.data.prepare import prepare
from localpolicy.data.store import SPLITS

WORTH = {"click": 0.2, "purchase": 1.0}


def test_sequences_order_rewards_and_index_are_those_of_plain_python(tmp_path: Path) -> None:
    rows = random_log(step=60_000)
    data = prepare("events", [write_parquet(tmp_path / "log.parquet", rows)], out=tmp_path / "data")
    found = stored(data)
    expected = grouped(rows)
    assert set(found) == set(expected)
    for sequence, events in found.items():
        assert [event[:3] for event in events] == [
            (r["item_id"], r["event"], r["timestamp"]) for r in expected[sequence]
        ]
        assert [event[3] for event in events] == pytest.approx([WORTH[r["event"]] for r in expected[sequence]])
    assert data.catalogue.column("item_id").to_pylist() == by_popularity(rows)
    counts = Counter(row["item_id"] for row in rows)
    assert data.catalogue.column("count").to_pylist() == [counts[item] for item in by_popularity(rows)]
    assert data.manifest["counts"]["events"] == Counter(row["event"] for row in rows)
    assert data.manifest["rewards"] == WORTH
    data.verify()


@pytest.mark.parametrize("seed", [0, 7])
def test_the_random_split_is_an_md5_of_seed_and_id(tmp_path: Path, seed: int) -> None:
    log = write_parquet(tmp_path / "log.parquet", random_log(sequences=200, events=900))
    data = prepare("events", [log], out=tmp_path / "data", seed=seed, validation=0.2, test=0.15)
    assert split_of(data) == {s: random_split(s, seed=seed, validation=0.2, test=0.15) for s in split_of(data)}


def test_the_random_split_can_take_numbers_of_sequences(tmp_path: Path) -> None:
    log = write_parquet(tmp_path / "log.parquet", random_log(sequences=200, events=2000))
    data = prepare("events", [log], out=tmp_path / "data", validation=7, test=11)
    assert (len(data["validation"]), len(data["test"])) == (7, 11)


def test_by_time_everything_trained_on_precedes_what_is_held_out(tmp_path: Path) -> None:
    rows = random_log(sequences=100, events=300)
    data = prepare("events", [write_parquet(tmp_path / "log.parquet", rows)], out=tmp_path / "data", split="time")
    last = {sequence: group[-1]["timestamp"] for sequence, group in grouped(rows).items()}
    ends = {name: [last[sequence] for sequence, split in split_of(data).items() if split == name] for name in SPLITS}
    assert max(ends["train"]) < data.manifest["cuts"][0] <= min(ends["validation"])
    assert max(ends["validation"]) < data.manifest["cuts"][1] <= min(ends["test"])
    assert abs(len(data["test"]) - 10) <= 5  # a tenth, but for ties


def test_the_time_split_can_be_given_dates(tmp_path: Path) -> None:
    rows = random_log(sequences=100, events=300, step=86_400_000)
    log = write_parquet(tmp_path / "log.parquet", rows)
    cuts = ("2021-02-01", "2021-03-01")
    data = prepare("events", [log], out=tmp_path / "data", split="time", split_times=cuts)
    assert data.manifest["cuts"] == [
        int(datetime.fromisoformat(cut).replace(tzinfo=UTC).timestamp()) * 1000 for cut in cuts
    ]


@pytest.mark.parametrize("iterate", [False, True])
def test_filters_are_those_of_plain_python(tmp_path: Path, iterate: bool) -> None:
    rows = random_log(sequences=150, items=120, events=700)
    log = write_parquet(tmp_path / "log.parquet", rows)
    limits = {"min_clicks": 2, "min_events": 3, "min_item_events": 4, "min_item_sequences": 3}
    data = prepare("events", [log], out=tmp_path / "data", iterate=iterate, **limits)
    kept = rows
    while True:
        before = len(kept)
        groups = grouped(kept)
        good = {s for s, g in groups.items() if len(g) >= 3 and sum(r["event"] == "click" for r in g) >= 2}
        kept = [row for row in kept if row["sequence_id"] in good]
        events = Counter(row["item_id"] for row in kept)
        holders = Counter(item for item, _ in {(row["item_id"], row["sequence_id"]) for row in kept})
        kept = [row for row in kept if events[row["item_id"]] >= 4 and holders[row["item_id"]] >= 3]
        if not iterate or len(kept) == before:
            break
    assert data.manifest["counts"]["sequences"] == len(grouped(kept))
    assert data.manifest["counts"]["items"] == len({row["item_id"] for row in kept})
    assert data.manifest["counts"]["events"] == Counter(row["event"] for row in kept)
    assert len(data.manifest["filters"]) > 2 if iterate else len(data.manifest["filters"]) == 2
    assert data.manifest["filters"][-1]["events_after"] == len(kept)


def test_sessions_are_cut_where_the_gap_is_exceeded(tmp_path: Path) -> None:
    rows = random_log(sequences=20, events=400, step=60_000)
    log = write_parquet(tmp_path / "log.parquet", rows)
    data = prepare("events", [log], out=tmp_path / "data", session_gap="10m")
    expected = []
    for sequence, group in grouped(rows).items():
        start = before = None
        for row in group:
            if before is None or row["timestamp"] - before > 600_000:
                start = row["timestamp"]
            before = row["timestamp"]
            expected.append(f"{sequence}#{start}")
    assert {sequence: len(events) for sequence, events in stored(data).items()} == Counter(expected)


@pytest.mark.parametrize("policy", ["keep", "exact", "consecutive"])
def test_exact_and_consecutive_duplicates_are_dropped(tmp_path: Path, policy: str) -> None:
    rows = random_log(items=3, events=2500, step=300_000)
    log = write_parquet(tmp_path / "log.parquet", rows)
    data = prepare("events", [log], out=tmp_path / "data", duplicates=policy)
    total = sum(data.manifest["counts"]["events"].values())
    if policy == "keep":
        assert total == len(rows)
    elif policy == "exact":
        assert total == len({tuple(row.values()) for row in rows}) < len(rows)
    else:
        runs = sum(len(list(groupby(group, key=itemgetter("item_id", "event")))) for group in grouped(rows).values())
        assert total == runs < len(rows)


def test_the_most_recent_events_are_the_last_of_the_stored_order(tmp_path: Path) -> None:
    rows = random_log(step=600_000)
    log = write_parquet(tmp_path / "log.parquet", rows)
    whole = stored(prepare("events", [log], out=tmp_path / "whole"))
    cut = stored(prepare("events", [log], out=tmp_path / "cut", most_recent=5))
    assert cut == {sequence: events[-5:] for sequence, events in whole.items()}


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns", "iso", "iso text", "timestamp", "date text"])
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_times_in_every_form_are_the_same(tmp_path: Path, unit: str, form: str) -> None:
    rows = random_log(step=86_400_000)
    plain = prepare("events", [write_parquet(tmp_path / "plain.parquet", rows)], out=tmp_path / "plain")
    instants = [datetime.fromtimestamp(row["timestamp"] / 1000, UTC) for row in rows]
    times = {
        "s": [row["timestamp"] // 1000 for row in rows],
        "ms": [row["timestamp"] for row in rows],
        "us": [row["timestamp"] * 1000 for row in rows],
        "ns": [row["timestamp"] * 1_000_000 for row in rows],
        "iso": [instant.strftime("%Y-%m-%dT%H:%M:%S.000Z") for instant in instants],
        "iso text": [instant.strftime("%Y-%m-%d %H:%M:%S") for instant in instants],
        "date text": [instant.strftime("%Y-%m-%d %H:%M:%S+00:00") for instant in instants],
        "timestamp": instants,
    }[unit]
    told = [{**row, "timestamp": time} for row, time in zip(rows, times, strict=True)]
    log = (write_csv if form == "csv" else write_parquet)(tmp_path / f"log.{form}", told)
    assert stored(prepare("events", [log], out=tmp_path / "data")) == stored(plain)


def test_without_times_row_order_stands(tmp_path: Path) -> None:
    rows = [{k: v for k, v in row.items() if k != "timestamp"} for row in random_log(events=3000)]
    parts = [write_parquet(tmp_path / "log" / f"part-{n}.parquet", rows[n * 1000 : n * 1000 + 1000]) for n in range(3)]
    expected = {s: [(r["item_id"], r["event"]) for r in g] for s, g in grouped(rows, order=()).items()}
    for log in (parts, [tmp_path / "log"], [write_csv(tmp_path / "log.csv", rows)]):
        data = prepare("events", log, out=tmp_path / "data", force=True)
        assert {s: [e[:2] for e in events] for s, events in stored(data).items()} == expected
        assert "time" not in data["train"].arrays


def test_csv_gzip_parquet_and_folders_give_the_same_bytes(tmp_path: Path) -> None:
    rows = random_log()
    reference = prepare("events", [write_parquet(tmp_path / "log.parquet", rows)], out=tmp_path / "data")
    text = write_csv(tmp_path / "log.csv", rows)
    packed = tmp_path / "log.csv.gz"
    packed.write_bytes(gzip.compress(text.read_bytes()))
    for number in range(3):
        write_parquet(tmp_path / "parts" / f"part-{number}.parquet", rows[number::3])
        write_csv(tmp_path / "mixed" / f"part-{number}.csv", rows[number::3], delimiter=",;\t"[number])
    (tmp_path / "parts" / "_SUCCESS").touch()
    for log in (text, packed, tmp_path / "parts", tmp_path / "mixed"):
        assert prepare("events", [log], out=tmp_path / "again", force=True).digest == reference.digest, log


def test_columns_can_be_mapped_named_and_joined(tmp_path: Path) -> None:
    rows = [{**row, "timestamp": 1000 * number} for number, row in enumerate(random_log())]  # ids break ties
    reference = stored(prepare("events", [write_parquet(tmp_path / "log.parquet", rows)], out=tmp_path / "data"))
    told = [
        {
            "who": r["sequence_id"] // 10,
            "ses sion": r["sequence_id"] % 10,
            "ünit": r["item_id"],
            "what": r["event"],
            "t": r["timestamp"],
        }
        for r in rows
    ]
    columns = {"sequence_id": "who+ses sion", "item_id": "ünit", "event": "what", "timestamp": "t"}
    joined = {f"{sequence // 10}+{sequence % 10}": events for sequence, events in reference.items()}
    log = write_parquet(tmp_path / "told.parquet", told)
    assert stored(prepare("events", [log], out=tmp_path / "joined", columns=columns)) == joined
    bare = write_csv(tmp_path / "bare.txt", told, delimiter="\t", header=False)
    data = prepare("events", [bare], out=tmp_path / "bare", columns=columns, names=tuple(told[0]))
    assert stored(data) == joined


def test_text_ids_stay_text_and_padded_ids_are_text(tmp_path: Path) -> None:
    rows = [
        {**row, "item_id": f"{row['item_id']:05d}", "sequence_id": f"u{row['sequence_id']}"} for row in random_log()
    ]
    for log in (write_parquet(tmp_path / "log.parquet", rows), write_csv(tmp_path / "log.csv", rows)):
        data = prepare("events", [log], out=tmp_path / "data", force=True)
        assert data.catalogue.column("item_id").to_pylist() == by_popularity(rows)
        assert set(stored(data)) == {row["sequence_id"] for row in rows}


def test_ratings_are_events_with_thresholds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [{**row, "event": float(rng.integers(1, 11)) / 2} for row in random_log(step=86_400_000)]
    for log in (write_parquet(tmp_path / "log.parquet", rows), write_csv(tmp_path / "log.csv", rows)):
        data = prepare("events", [log], out=tmp_path / "data", force=True, rewards=">=4=1,>=3=0.5,*=0")
        assert data.manifest["counts"]["events"] == Counter(f"{row['event']:g}" for row in rows)
        assert data.manifest["rewards"]["3.5"] == 0.5
        assert {data.manifest["rewards"][rating] for rating in ("4", "4.5", "5")} == {1.0}
        assert {data.manifest["rewards"][rating] for rating in ("0.5", "1", "2.5")} == {0.0}
        # Within a tie the order is random: by rating it would tell the answer, and by item models would learn it.
        for who, events in stored(data).items():
            assert events == sorted(events, key=lambda event: (event[2], lot(who, event[0], event[2]), float(event[1])))


def test_events_are_renamed_dropped_and_named(tmp_path: Path) -> None:
    rows = [{**row, "event": {"click": 0, "purchase": 1}[row["event"]]} for row in random_log()]
    rows += [{**row, "event": 2} for row in rows[:50]]
    log = write_parquet(tmp_path / "log.parquet", rows)
    data = prepare("events", [log], out=tmp_path / "data", rename={"0": "click", "1": "purchase"}, drop_events=("2",))
    assert data.manifest["counts"]["events"] == Counter({0: "click", 1: "purchase"}[row["event"]] for row in rows[:-50])
    data = prepare("events", [log], out=tmp_path / "one", event="view", rewards="view=0.3")
    assert data.manifest["counts"]["events"] == {"view": len(rows)}
    assert np.unique(data["train"].arrays["reward"]) == np.float32(0.3)


@pytest.fixture
def impressions(tmp_path: Path) -> tuple[Path, list[dict]]:
    rng = np.random.default_rng(3)
    rows = []
    for row in random_log(events=800):
        event = str(rng.choice(["click", "none", "context"], p=[0.3, 0.5, 0.2]))
        shown = event != "context"
        rows.append({**row, "event": event, "reward": float(rng.normal()) if shown else None,
                     "propensity": float(rng.uniform(0.01, 1)) if shown else None,
                     "policy": str(rng.choice(["v1", "v2"])) if shown else None})  # fmt: skip
    return write_parquet(tmp_path / "events.parquet", rows), rows


def test_impression_logs_keep_propensities_policies_and_stated_rewards(tmp_path: Path, impressions) -> None:
    log, rows = impressions
    data = prepare("events", [log.parent], out=tmp_path / "out" / "data")
    assert data.kind == "impressions"
    assert data.manifest["policies"] == ["v1", "v2"]
    assert data.manifest["rewards"] == {}
    found = []
    for name in SPLITS:
        ids = data.sequence_ids(name).to_pylist()
        for r in data[name].to_arrow().to_pylist():
            event = data.events[r["event"]]
            found.append((ids[r["sequence"]], r["time"], r["item"], event, r["reward"], r["propensity"], r["policy"]))
    item = {item: index for index, item in enumerate(data.catalogue.column("item_id").to_pylist())}
    policy = {"v1": 0, "v2": 1, None: -1}

    def as_float32(value: float | None, missing: float) -> float:
        return float(np.float32(missing if value is None else value))

    expected = [
        (r["sequence_id"], r["timestamp"], item[r["item_id"]], r["event"], as_float32(r["reward"], 0.0),
         as_float32(r["propensity"], np.nan), policy[r["policy"]]) for r in rows
    ]  # fmt: skip
    np.testing.assert_equal(sorted(found, key=str), sorted(expected, key=str))


def test_an_impression_log_reduces_to_interactions(tmp_path: Path, impressions) -> None:
    log, rows = impressions
    data = prepare("events", [log], out=tmp_path / "data", kind="interactions")
    assert data.kind == "interactions"
    assert data.manifest["counts"]["events"] == Counter(r["event"] for r in rows if r["event"] != "none")
    assert set(data["train"].arrays) == {"item", "event", "reward", "time"}
    assert data.manifest["policies"] == []


def test_unanswered_items_make_an_impression_log(tmp_path: Path) -> None:
    rows = [{**row, "event": "none" if row["event"] == "click" else "click"} for row in random_log()]
    assert prepare("events", [write_csv(tmp_path / "log.csv", rows)], out=tmp_path / "data").kind == "impressions"


def test_a_spilling_memory_limit_changes_nothing(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 600_000
    table = pa.table({"sequence_id": rng.integers(0, 100_000, n), "item_id": rng.integers(0, 9000, n),
                      "timestamp": 1_600_000_000_000 + rng.integers(0, 10**9, n)})  # fmt: skip
    pq.write_table(table, tmp_path / "log.parquet")
    made = [
        prepare("events", [tmp_path / "log.parquet"], out=tmp_path / memory, event="click", memory=memory, threads=1)
        for memory in ("40MB", "1GB")
    ]
    assert made[0].digest == made[1].digest
    assert not list(tmp_path.glob(".*")), "scratch was left behind"


@pytest.mark.parametrize("most", [1, 2, 4])
def test_the_parts_of_the_last_sort_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    log = write_parquet(tmp_path / "log.parquet", random_log())
    whole = prepare("events", [log], out=tmp_path / "whole")
    monkeypatch.setattr(sql, "EVENTS_PER_PART", 7)
    monkeypatch.setattr(sql, "MOST_PARTS", most)
    assert len(sql.parts(60, 600)) == most
    assert prepare("events", [log], out=tmp_path / "parts").manifest == whole.manifest


def test_split_last_holds_out_the_last_event_and_the_one_before(tmp_path: Path) -> None:
    rows = random_log(3, sequences=60, items=12, events=300)
    data = prepare("events", [write_parquet(tmp_path / "log.parquet", rows)], out=tmp_path / "data", split="last")
    whole = {sequence: events for sequence, events in grouped(rows).items() if len(events) >= 3}
    assert 0 < len(whole) < len(grouped(rows)), "a sequence of fewer than three events has nothing to hold out"
    ids = data.catalogue["item_id"].to_pylist()
    for split, hidden in (("train", 2), ("validation", 1), ("test", 0)):
        stored = {
            sequence: [ids[index] for index in arrays["item"]]
            for sequence, arrays in zip(data.sequence_ids(split).to_pylist(), data[split], strict=True)
        }
        assert stored == {s: [row["item_id"] for row in events][: len(events) - hidden] for s, events in whole.items()}
    events = sum(len(events) for events in whole.values())
    assert data.manifest["counts"]["sequences"] == len(whole) == len(data)
    assert sum(data.manifest["counts"]["events"].values()) == events == sum(data.catalogue["count"].to_pylist())
    assert sum(data.held_out_events("test").values()) == len(whole)
    frame = data.to_arrow().select(["split", "sequence_id", "item_id"]).to_pylist()
    assert len(frame) == events, "no event is there twice"
    for split, place in (("validation", -2), ("test", -1)):
        rows_of = {row["sequence_id"]: row["item_id"] for row in frame if row["split"] == split}
        assert rows_of == {s: events[place]["item_id"] for s, events in whole.items()}
    for split in ("validation", "test"):
        windows = Windows(data, split, WindowConfig(length=50))
        batch = windows.cut(torch.arange(len(windows)))
        assert batch.scored.tolist() == (batch.row.bincount().cumsum(0) - 1).tolist()
    assert Windows(data, "train", WindowConfig(length=50)).positions == events - 2 * len(whole)


@pytest.mark.parametrize("ids", [int, str])
def test_ties_are_ordered_by_reward_then_pseudo_randomly(tmp_path: Path, ids: type) -> None:
    """Before: `buy` came before the `view` it followed, and a person's weekly basket lay in one order every week."""
    rng = np.random.default_rng(0)
    rows = []
    for person in range(160):
        basket = rng.choice(30, 5, replace=False)
        for week in range(8):
            for item in basket:
                for event in ("buy", "view"):
                    time = 604_800_000 * week
                    rows.append({"sequence_id": ids(person), "item_id": ids(item), "event": event, "timestamp": time})
    log = write_parquet(tmp_path / "log.parquet", rows)
    data = prepare("events", [log], out=tmp_path / "data", rewards="buy=1,view=0.2", time_unit="ms")
    orders = Counter()
    for who, events in stored(data).items():
        for week in range(8):
            tied = events[10 * week : 10 * week + 10]
            assert [event for _, event, *_ in tied] == ["view"] * 5 + ["buy"] * 5, "a view precedes what it led to"
            orders[who, tuple(item for item, *_ in tied[5:])] += 1
    assert max(orders.values()) <= 3 and len(orders) > 0.95 * 160 * 8, "120 orders, drawn anew each week"
