"""Yesterday's data set plus today's log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from raw_logs import grouped, random_log, split_of, stored, write_csv, write_parquet

from localpolicy.data.prepare import prepare
from localpolicy.errors import ConfigError, DataError, LocalPolicyError

DAY = 86_400_000


def two_days() -> tuple[list[dict], list[dict]]:
    """Today brings new sequences, new items, a new event, and continues some of yesterday's sequences."""
    yesterday = random_log(0)
    today = [
        {
            **row,
            "timestamp": row["timestamp"] + DAY,
            "sequence_id": row["sequence_id"] + 30,
            "item_id": row["item_id"] + 10,
        }
        for row in random_log(1)
    ]
    return yesterday, today


def test_nothing_is_lost_and_nothing_moves(tmp_path: Path) -> None:
    yesterday, today = two_days()
    today[0]["event"] = "basket"
    rewards = "purchase=1,click=0.2,basket=0.5"
    old = prepare("events", [write_parquet(tmp_path / "1.parquet", yesterday)], out=tmp_path / "old", rewards=rewards)
    new = prepare("events", [write_csv(tmp_path / "2.csv", today)], out=tmp_path / "new", append=old.path)
    expected = grouped([*yesterday, *today], order=("timestamp",))
    assert {s: sorted(e[:3] for e in events) for s, events in stored(new).items()} == {
        s: sorted((r["item_id"], r["event"], r["timestamp"]) for r in group) for s, group in expected.items()
    }
    assert all(events == sorted(events, key=lambda event: event[2]) for events in stored(new).values())
    before, after = (data.catalogue.column("item_id").to_pylist() for data in (old, new))
    assert after[: len(before)] == before
    assert len(after) == len({row["item_id"] for row in [*yesterday, *today]}) > len(before)
    counts = new.catalogue.column("count").to_pylist()[len(before) :]
    assert counts == sorted(counts, reverse=True)
    assert new.events == ["click", "purchase", "basket"]  # codes stay, though names are out of order
    assert {s: split_of(new)[s] for s in split_of(old)} == split_of(old)
    assert new.manifest["continues"] == old.digest


def test_appending_in_two_steps_is_appending_both(tmp_path: Path) -> None:
    yesterday, today = two_days()
    logs = [
        write_parquet(tmp_path / f"{n}.parquet", rows) for n, rows in enumerate((yesterday, today[:300], today[300:]))
    ]
    old = prepare("events", logs[:1], out=tmp_path / "old")
    prepare("events", logs[1:2], out=tmp_path / "half", append=old.path)
    steps = prepare("events", logs[2:], out=tmp_path / "steps", append=tmp_path / "half")
    once = prepare("events", logs[1:], out=tmp_path / "once", append=old.path)
    assert stored(steps) == stored(once)
    assert set(steps.catalogue.column("item_id").to_pylist()) == set(once.catalogue.column("item_id").to_pylist())


def test_a_rare_item_of_yesterday_keeps_its_index(tmp_path: Path) -> None:
    yesterday, today = two_days()
    old = prepare("events", [write_parquet(tmp_path / "1.parquet", yesterday)], out=tmp_path / "old", min_item_events=3)
    today = [row for row in today if row["item_id"] not in old.catalogue.column("item_id").to_pylist()]
    today += [{**row, "item_id": 999_999} for row in today[:2]]
    new = prepare("events", [write_parquet(tmp_path / "2.parquet", today)], out=tmp_path / "new", append=old.path)
    items = new.catalogue.column("item_id").to_pylist()
    assert items[: old.items] == old.catalogue.column("item_id").to_pylist()
    assert 999_999 not in items  # a new item still has to pass the filter


def test_what_became_rare_by_a_cut_is_not_filtered_again(tmp_path: Path) -> None:
    yesterday, today = two_days()
    settings = {"min_item_events": 8, "most_recent": 3}
    old = prepare("events", [write_parquet(tmp_path / "1.parquet", yesterday)], out=tmp_path / "old", **settings)
    assert min(old.catalogue.column("count").to_pylist()) < 8
    today = [{**row, "sequence_id": row["sequence_id"] + 1000, "item_id": row["item_id"] + 1000} for row in today]
    new = prepare("events", [write_parquet(tmp_path / "2.parquet", today)], out=tmp_path / "new", append=old.path)
    assert {sequence: events for sequence, events in stored(new).items() if sequence < 1000} == stored(old)


def test_sessions_keep_their_names_and_splits(tmp_path: Path) -> None:
    yesterday, _ = two_days()
    later = [{**row, "timestamp": row["timestamp"] + 300_000} for row in yesterday]  # continues the running sessions
    logs = [write_parquet(tmp_path / f"{n}.parquet", rows) for n, rows in enumerate((yesterday, later))]
    old = prepare("events", logs[:1], out=tmp_path / "old", session_gap="10m")
    new = prepare("events", logs[1:], out=tmp_path / "new", append=old.path)
    both = prepare("events", logs, out=tmp_path / "both", session_gap="10m")
    assert {s: sorted(e) for s, e in stored(new).items()} == {s: sorted(e) for s, e in stored(both).items()}
    assert {s: split_of(new)[s] for s in split_of(old) if s in split_of(new)} == split_of(old)


def test_impressions_keep_their_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    days = [
        [
            {
                **row,
                "event": str(rng.choice(["click", "none"])),
                "reward": float(rng.normal()),
                "propensity": float(rng.uniform(0.1, 1)),
                "policy": f"v{number}",
            }
            for row in rows
        ]
        for number, rows in enumerate(two_days())
    ]
    logs = [write_parquet(tmp_path / f"{n}.parquet", rows) for n, rows in enumerate(days)]
    old = prepare("events", logs[:1], out=tmp_path / "old")
    new = prepare("events", logs[1:], out=tmp_path / "new", append=old.path)
    assert new.manifest["policies"] == ["v0", "v1"]
    for name in ("reward", "propensity"):
        found = np.sort(np.concatenate([split.arrays[name] for split in new.splits.values()]))
        expected = np.sort(np.array([row[name] for rows in days for row in rows], dtype=np.float32))
        np.testing.assert_array_equal(found, expected)
    bare = [{key: value for key, value in row.items() if key != "propensity"} for row in days[1]]
    with pytest.raises(DataError, match="propensities"):
        prepare("events", [write_parquet(tmp_path / "bare.parquet", bare)], out=tmp_path / "no", append=old.path)


def test_without_times_new_rows_come_after_the_old(tmp_path: Path) -> None:
    days = [[{k: v for k, v in row.items() if k != "timestamp"} for row in day] for day in two_days()]
    logs = [write_parquet(tmp_path / f"{n}.parquet", rows) for n, rows in enumerate(days)]
    old = prepare("events", logs[:1], out=tmp_path / "old")
    new = prepare("events", logs[1:], out=tmp_path / "new", append=old.path)
    expected = grouped([*days[0], *days[1]], order=())
    assert {s: [e[0] for e in events] for s, events in stored(new).items()} == {
        s: [row["item_id"] for row in group] for s, group in expected.items()
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": 5}, "seed is 0"),
        ({"min_events": 4}, "min_events is 0"),
        ({"rename": {"click": "view"}}, "cannot rename 'click'"),
    ],
)
def test_what_was_done_yesterday_stays(tmp_path: Path, settings: dict, message: str) -> None:
    yesterday, today = two_days()
    old = prepare("events", [write_parquet(tmp_path / "1.parquet", yesterday)], out=tmp_path / "old")
    with pytest.raises(ConfigError, match=message):
        prepare(
            "events", [write_parquet(tmp_path / "2.parquet", today)], out=tmp_path / "new", append=old.path, **settings
        )


def test_ids_of_another_kind_are_refused(tmp_path: Path) -> None:
    yesterday, today = two_days()
    old = prepare("events", [write_parquet(tmp_path / "1.parquet", yesterday)], out=tmp_path / "old")
    today = [{**row, "item_id": f"x{row['item_id']}"} for row in today]
    with pytest.raises(DataError, match="cannot be matched"):
        prepare("events", [write_parquet(tmp_path / "2.parquet", today)], out=tmp_path / "new", append=old.path)
    with pytest.raises(LocalPolicyError, match="not a prepared data set"):
        prepare("events", [tmp_path / "2.parquet"], out=tmp_path / "new", append=tmp_path / "nowhere")


def test_like_takes_indices_and_codes_but_no_rows(tmp_path: Path) -> None:
    yesterday, today = two_days()
    old = prepare("events", [write_parquet(tmp_path / "1.parquet", yesterday)], out=tmp_path / "old", rewards="*=1")
    new = prepare("events", [write_parquet(tmp_path / "2.parquet", today[:200])], out=tmp_path / "new", like=old.path)
    assert {s: sorted(e[:3] for e in events) for s, events in stored(new).items()} == {
        s: sorted((r["item_id"], r["event"], r["timestamp"]) for r in group)
        for s, group in grouped(today[:200], order=("timestamp",)).items()
    }
    before, after = (data.catalogue.column("item_id").to_pylist() for data in (old, new))
    assert after[: len(before)] == before
    counts = dict(zip(after, new.catalogue.column("count").to_pylist(), strict=True))
    assert counts == {item: sum(row["item_id"] == item for row in today[:200]) for item in after}
    assert new.events == old.events and new.manifest["rewards"] == old.manifest["rewards"]
    assert new.manifest["like"] == old.digest and "continues" not in new.manifest
    with pytest.raises(ConfigError, match="name one of them"):
        prepare("events", [tmp_path / "2.parquet"], out=tmp_path / "no", like=old.path, append=old.path)
