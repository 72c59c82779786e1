"""Yesterday's data set plus today's log: what preparing both at once gives; with `like`, indices stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from raw_logs import Row, grouped, random_log, split_of, stored, write_csv, write_parquet

from localpolicy.data.prepare import prepare
from localpolicy.data.readers import Reader, events
from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, DataError, LocalPolicyError
from localpolicy.runtime.files import SEAL
from localpolicy.simulation import simulate

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
    log = write_csv(tmp_path / "2.csv", today)
    new = prepare(log, out=tmp_path / "new", append=old.path, like=old.path)
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


CASES = {
    "plain": {},
    "filters": {"min_events": 3, "min_item_events": 4, "iterate": True},
    "a cut": {"min_item_sequences": 3, "most_recent": 4},
    "sessions": {"session_gap": "20m", "min_events": 2},
    "duplicates": {"duplicates": "exact"},
    "by time": {"split": "time", "min_clicks": 2},
    "numbers of sequences": {"validation": 9, "test": 11.0},
    "rewards": {"rewards": {"purchase": 5, "*": 1}, "drop_events": ["click"]},
}


def month(days: int = 6) -> list[list[Row]]:
    """Days that share sequences and items; each brings items of its own, and the last a new event."""
    logs = [
        [
            {**row, "timestamp": row["timestamp"] + DAY * number, "item_id": row["item_id"] + 3 * number}
            for row in random_log(number, events=300, sequences=120, step=60_000)
        ]
        for number in range(days)
    ]
    for row in logs[-1][:20]:
        row["event"] = "basket"
    return logs


def content(data: Prepared) -> dict[str, Any]:
    """Bytes of every file, and the manifest's entries about them."""
    manifest = {key: value for key, value in data.manifest.items() if key not in ("continues", SEAL)}
    return {**manifest, **{name: (data.path / name).read_bytes() for name in data.manifest["files"]}}


@pytest.mark.parametrize("case", CASES)
def test_a_month_day_by_day_is_the_month_at_once(tmp_path: Path, case: str) -> None:
    logs = [write_parquet(tmp_path / f"{n}.parquet", rows) for n, rows in enumerate(month())]
    settings = {"rewards": {"purchase": 1, "click": 0.2, "basket": 0.5}, **CASES[case]}
    data = prepare(logs[0], out=tmp_path / "day-0", **settings)
    for number, log in enumerate(logs[1:], 1):
        data = prepare(log, out=tmp_path / f"day-{number}", append=data)
    once = prepare(*logs, out=tmp_path / "once", **settings)
    assert content(data) == content(once)


def test_a_month_without_times_and_with_bad_rows_appends_as_at_once(tmp_path: Path) -> None:
    days = [[{k: v for k, v in row.items() if k != "timestamp"} for row in day] for day in month()]
    days[1][5]["item_id"] = days[3][7]["item_id"] = days[3][8]["event"] = None
    logs = [write_csv(tmp_path / f"{n}.csv", rows) for n, rows in enumerate(days)]
    settings = {"min_events": 3, "rewards": "*=1"}
    data = prepare(logs[0], out=tmp_path / "day-0", skip_bad_rows=True, **settings)
    for number, log in enumerate(logs[1:], 1):
        data = prepare(log, out=tmp_path / f"day-{number}", append=data, skip_bad_rows=True)
    once = prepare(*logs, out=tmp_path / "once", skip_bad_rows=True, **settings)
    assert sum(once.manifest["bad_rows"].values()) == 3
    assert content(data) == content(once)


def test_held_out_numbers_of_a_recipe_are_decided_again(tmp_path: Path) -> None:
    """A recipe's 20,000 held-out users are a tenth of a small log, also when that log has grown a little."""
    reader = Reader(events.tables, {"validation": 20, "test": 20, "rewards": "*=1"})
    logs = [write_parquet(tmp_path / f"{n}.parquet", rows) for n, rows in enumerate(month(3))]
    first = prepare(logs[0], source=reader, out=tmp_path / "first")
    assert first.manifest["settings"]["test"] == 0.1
    rest = [row for day in month(4)[1:] for row in day]
    rest += [{**row, "sequence_id": row["sequence_id"] + n * 1000} for n in range(1, 5) for row in rest]
    log = write_parquet(tmp_path / "rest.parquet", rest)
    appended = prepare(log, source=reader, out=tmp_path / "appended", append=first)
    assert appended.manifest["settings"]["test"] == 20
    assert content(appended) == content(prepare(logs[0], log, source=reader, out=tmp_path / "once"))


def test_two_rows_do_not_shrink_a_data_set(tmp_path: Path) -> None:
    """Filters ran again on filtered data: two more rows cost hundreds."""
    rows = random_log(events=2000, items=400, sequences=300)
    settings = {"min_events": 4, "min_item_events": 4}
    old = prepare(write_parquet(tmp_path / "1.parquet", rows), out=tmp_path / "old", **settings)
    more = [{**rows[0], "timestamp": rows[0]["timestamp"] + DAY, "sequence_id": 5000 + n} for n in range(2)]
    new = prepare(write_parquet(tmp_path / "2.parquet", more), out=tmp_path / "new", append=old)
    before, after = (sum(data.manifest["counts"]["events"].values()) for data in (old, new))
    assert before - 2 <= after <= before + 2


@pytest.mark.parametrize("name", ["1.parquet", "again.parquet"])
def test_a_day_taken_twice_is_refused(tmp_path: Path, name: str) -> None:
    logs = [write_parquet(tmp_path / f"{n}.parquet", rows) for n, rows in enumerate(month(3))]
    data = prepare(*logs[:2], out=tmp_path / "data", rewards="*=1")
    again = tmp_path / name
    again.write_bytes(logs[1].read_bytes())
    with pytest.raises(DataError, match=rf"{name} is part of .*data already \(the same bytes"):
        prepare(logs[2], again, out=tmp_path / "no", append=data)
    further = prepare(logs[2], out=tmp_path / "further", append=data)
    with pytest.raises(DataError, match="already"):
        prepare(again, out=tmp_path / "no", append=further)  # two days later, too
    table = pa.Table.from_pylist(month(1)[0])
    first = prepare(table, out=tmp_path / "table", rewards="*=1")
    with pytest.raises(DataError, match="already"):
        prepare(table.to_reader(max_chunksize=11), out=tmp_path / "no", append=first)


def test_append_logs_what_changed(tmp_path: Path, messages: Callable[[str], list[str]]) -> None:
    yesterday, today = two_days()
    old = prepare(write_parquet(tmp_path / "1.parquet", yesterday), out=tmp_path / "old")
    new = prepare(write_parquet(tmp_path / "2.parquet", today), out=tmp_path / "new", append=old)
    said = messages("localpolicy.data.prepare")
    assert f"  sequences: {len(old):,} -> {len(new):,} ({len(new) - len(old):+,})" in said
    assert f"  items: {old.n_items:,} -> {new.n_items:,} ({new.n_items - old.n_items:+,})" in said
    clicks = [data.manifest["counts"]["events"]["click"] for data in (old, new)]
    assert f"  click: {clicks[0]:,} -> {clicks[1]:,} ({clicks[1] - clicks[0]:+,})" in said


def test_times_of_another_unit_are_read_as_what_they_are(tmp_path: Path) -> None:
    yesterday, today = two_days()
    seconds = [{**row, "timestamp": row["timestamp"] // 1000} for row in today]
    old = prepare(write_parquet(tmp_path / "1.parquet", yesterday), out=tmp_path / "old")
    new = prepare(write_csv(tmp_path / "2.csv", seconds), out=tmp_path / "new", append=old)
    assert stored(new) == stored(prepare(pa.Table.from_pylist([*yesterday, *today]), out=tmp_path / "once"))


def test_a_data_set_without_its_log_cannot_be_continued(tmp_path: Path) -> None:
    yesterday, today = two_days()
    old = prepare(write_parquet(tmp_path / "1.parquet", yesterday), out=tmp_path / "old", keep_log=False)
    assert not (old.path / "log.parquet").exists()
    log = write_parquet(tmp_path / "2.parquet", today)
    with pytest.raises(DataError, match="keeps no log"):
        prepare(log, out=tmp_path / "new", append=old)
    simulate("bandit", tmp_path / "world", sequences=50, prepared=True)
    with pytest.raises(ConfigError, match="without prepared="):
        prepare(log, out=tmp_path / "new", append=tmp_path / "world")


def test_a_rare_item_keeps_its_index_where_that_is_asked_for(tmp_path: Path) -> None:
    yesterday, today = two_days()
    old = prepare("events", [write_parquet(tmp_path / "1.parquet", yesterday)], out=tmp_path / "old", min_item_events=3)
    today = [row for row in today if row["item_id"] not in old.catalogue.column("item_id").to_pylist()]
    today += [{**row, "item_id": 999_999} for row in today[:2]]
    log = write_parquet(tmp_path / "2.parquet", today)
    new = prepare(log, out=tmp_path / "new", append=old.path, like=old.path)
    items = new.catalogue.column("item_id").to_pylist()
    assert items[: old.n_items] == old.catalogue.column("item_id").to_pylist()
    assert 999_999 not in items  # a new item still has to pass the filter


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
    with pytest.raises(DataError, match='whole numbers in .* and texts .*cannot be matched.*ids="text"'):
        prepare("events", [write_parquet(tmp_path / "2.parquet", today)], out=tmp_path / "new", append=old.path)
    logs = [tmp_path / "1.parquet", tmp_path / "2.parquet"]
    both = prepare("events", logs, out=tmp_path / "both", ids="text")
    new = prepare("events", logs[1:], out=tmp_path / "new", append=old.path, ids="text")
    assert new.catalogue.equals(both.catalogue) and stored(new) == stored(both)
    like = prepare("events", logs[1:], out=tmp_path / "like", like=old.path, ids="text")
    assert like.catalogue["item_id"].to_pylist()[: old.n_items] == [
        str(i) for i in old.catalogue["item_id"].to_pylist()
    ]
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
