"""Every mistake a user can make: an error that says what came, where, and what to do; nothing half-written."""

from __future__ import annotations

import errno
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from raw_logs import random_log, stored, write_csv, write_parquet

from localpolicy.data.growing_files import ArrayFile
from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, DataError, LocalPolicyError
from localpolicy.runtime.files import sealed


def refused(match: str, log: Path, tmp_path: Path, **options) -> str:
    """Prepare `log`, expecting an error; nothing may be left behind."""
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(LocalPolicyError, match=match) as caught:
        prepare("events", [log], out=tmp_path / "data", **options)
    assert sorted(tmp_path.rglob("*")) == before
    return str(caught.value)


def changed(number: int, **changes) -> list[dict]:
    rows = random_log()
    rows[number] = {**rows[number], **changes}
    return rows


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence_id": None}, "sequence_id is empty"),
        ({"item_id": None}, "item_id is empty"),
        ({"event": None}, "event is empty"),
        ({"timestamp": None}, "timestamp is empty"),
        ({"timestamp": "yesterday"}, "timestamp is not a time"),
        ({"reward": "many"}, "reward is not a number"),
        ({"reward": "nan"}, "reward is not a finite number"),
        ({"reward": "-inf"}, "reward is not a finite number"),
        ({"reward": None}, "reward is empty"),
        ({"propensity": "0"}, r"propensity is outside \(0, 1\]"),
        ({"propensity": "1.5"}, r"propensity is outside \(0, 1\]"),
    ],
)
def test_a_bad_row_is_named_and_can_be_passed_over(tmp_path: Path, changes: dict, message: str) -> None:
    extra = {key: 0.5 for key in changes if key in ("reward", "propensity")}
    rows = [{**row, **extra} for row in random_log()]
    rows[41].update(changes)
    log = write_csv(tmp_path / "log.csv", rows)
    text = refused(message, log, tmp_path)
    assert f"{log}, row 42: " in text
    assert "skip_bad_rows=True" in text
    data = prepare("events", [log], out=tmp_path / "data", skip_bad_rows=True)
    assert sum(data.manifest["bad_rows"].values()) == 1
    assert sum(data.manifest["counts"]["events"].values()) == len(rows) - 1


def test_all_bad_rows_are_counted(tmp_path: Path) -> None:
    rows = random_log()
    for row in rows[10:20]:
        row["item_id"] = None
    rows[3]["sequence_id"] = None
    text = refused("row 4: sequence_id is empty", write_parquet(tmp_path / "log.parquet", rows), tmp_path)
    assert "11 bad rows in all" in text
    assert "10 × item_id is empty" in text


def test_a_bad_row_is_found_in_the_right_file(tmp_path: Path) -> None:
    rows = random_log()
    write_csv(tmp_path / "log" / "a.csv", rows[:300])
    rows[310]["item_id"] = None
    write_csv(tmp_path / "log" / "b.csv", rows[300:])
    assert f"{tmp_path / 'log' / 'b.csv'}, row 11" in refused("item_id is empty", tmp_path / "log", tmp_path)


@pytest.mark.parametrize("odd", ["0105", "105.5", "+105", "x105", "-0", str(2**63)])
def test_ids_that_would_collide_as_integers_are_refused(tmp_path: Path, odd: str) -> None:
    rows = random_log(events=1500)
    rows[1400]["item_id"] = odd
    log = write_csv(tmp_path / "log.csv", rows)
    refused('row 1401: item_id is no whole number of 8 bytes.*ids="text"', log, tmp_path)
    assert odd in prepare("events", [log], out=tmp_path / "data", ids="text").catalogue.column("item_id").to_pylist()


@pytest.mark.parametrize("write", [write_csv, write_parquet])
@pytest.mark.parametrize("column", ["sequence_id", "item_id"])
@pytest.mark.parametrize("large", [2**31, -(2**31) - 1, 2**62 + 1])
def test_ids_larger_than_the_first_ones_are_read(tmp_path: Path, write: Callable, column: str, large: int) -> None:
    rows = random_log(events=1500)
    rows[1400][column] = large
    rows[1450]["item_id"] = None
    log = write(tmp_path / ("log.csv" if write is write_csv else "log.parquet"), rows)
    text = refused("row 1451: item_id is empty", log, tmp_path)
    assert "bad rows in all" not in text
    data = prepare("events", [log], out=tmp_path / "data", skip_bad_rows=True)
    assert data.manifest["bad_rows"] == {"item_id is empty": 1}
    found = {(s, item) for s, events in stored(data).items() for item, *_ in events}
    assert found == {(row["sequence_id"], row["item_id"]) for row in rows if row["item_id"] is not None}
    assert pq.read_schema(data.path / "items.parquet").field("item_id").type == pa.int64()
    assert pq.read_schema(data.path / "train" / "sequences.parquet").field("sequence_id").type == pa.int64()


def test_fractional_ids_are_refused_and_whole_ones_read(tmp_path: Path) -> None:
    whole = [{**row, "item_id": float(row["item_id"])} for row in random_log()]
    data = prepare("events", [write_parquet(tmp_path / "whole.parquet", whole)], out=tmp_path / "whole")
    assert set(data.catalogue.column("item_id").to_pylist()) == {int(row["item_id"]) for row in whole}
    whole[5]["item_id"] = 7.5
    refused("row 6: item_id is not a whole number", write_parquet(tmp_path / "log.parquet", whole), tmp_path)


def test_a_missing_column_is_named_with_its_neighbours(tmp_path: Path) -> None:
    rows = [{"user": r["sequence_id"], "item_id": r["item_id"], "event": r["event"]} for r in random_log()]
    log = write_csv(tmp_path / "log.csv", rows)
    assert "columns: user, item_id, event" in refused("no column 'sequence_id'", log, tmp_path)
    refused("did you mean 'user'", log, tmp_path, columns={"sequence_id": "usr"})
    refused(
        "'sequnce_id' is not a column of events .did you mean 'sequence_id'",
        log,
        tmp_path,
        columns={"sequnce_id": "user"},
    )
    rows = [{"sequence_id": r["user"], "item_id": r["item_id"]} for r in rows]
    refused('event="click"', write_csv(tmp_path / "bare.csv", rows), tmp_path)


def test_a_reward_without_an_event_is_named(tmp_path: Path, caplog) -> None:
    caplog.set_level("INFO", logger="localpolicy")
    log = write_parquet(tmp_path / "log.parquet", random_log())
    prepare("events", [log], out=tmp_path / "data", rewards="purchse=1,click=0.2,zzz=3,*=0")
    notes = [record.getMessage() for record in caplog.records if "reward map" in record.getMessage()]
    assert notes == [
        "note: the log has no event 'purchse' of the reward map (did you mean 'purchase'?)",
        "note: the log has no event 'zzz' of the reward map (known: click, purchase)",
    ]


def test_an_event_without_a_reward_is_refused(tmp_path: Path) -> None:
    log = write_parquet(tmp_path / "log.parquet", changed(7, event="wishlist"))
    refused("event 'wishlist' is missing from the reward map", log, tmp_path)
    data = prepare("events", [log], out=tmp_path / "data", rewards="purchase=1,click=0.2,wishlist=-0.5")
    assert data["train"].arrays["reward"].min() in (-0.5, pytest.approx(0.2))  # negative rewards are allowed here


@pytest.mark.parametrize("rewards", ["click", "click=", "click=much", "=1", "click=inf", ">=x=1"])
def test_a_reward_map_that_cannot_be_read(tmp_path: Path, rewards: str) -> None:
    refused("rewards: ", write_parquet(tmp_path / "log.parquet", random_log()), tmp_path, rewards=rewards)


def test_too_many_events_means_the_wrong_column(tmp_path: Path) -> None:
    rows = [{**row, "event": f"e{number}"} for number, row in enumerate(random_log())]
    refused("600 different events", write_parquet(tmp_path / "log.parquet", rows), tmp_path, rewards="*=1")


def test_empty_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").touch()
    refused("is empty", tmp_path / "empty.csv", tmp_path)
    (tmp_path / "head.csv").write_text("sequence_id,item_id,event\n")
    refused("no usable rows", tmp_path / "head.csv", tmp_path)
    (tmp_path / "blank.csv").write_text("\n1,2,click\n")
    refused("no first line", tmp_path / "blank.csv", tmp_path)
    (tmp_path / "folder").mkdir()
    refused("holds no log", tmp_path / "folder", tmp_path)
    refused("does not exist", tmp_path / "absent.csv", tmp_path)


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.99])
def test_a_truncated_gzip_is_refused(tmp_path: Path, keep: float) -> None:
    rows = random_log(events=30_000)
    whole = gzip.compress(write_csv(tmp_path / "log.csv", rows).read_bytes())
    (tmp_path / "cut.csv.gz").write_bytes(whole[: int(len(whole) * keep)])
    assert "cut.csv.gz" in refused("fetch it again|Fetch it again", tmp_path / "cut.csv.gz", tmp_path)


def test_a_truncated_parquet_is_refused(tmp_path: Path) -> None:
    whole = write_parquet(tmp_path / "log.parquet", random_log()).read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    refused("not a whole Parquet file", tmp_path / "cut.parquet", tmp_path)


def test_an_altered_parquet_is_refused(tmp_path: Path) -> None:
    whole = bytearray(write_parquet(tmp_path / "log.parquet", random_log(events=5000)).read_bytes())
    whole[50:2050] = b"\xff" * 2000
    (tmp_path / "log.parquet").write_bytes(whole)
    refused("fetch it again", tmp_path / "log.parquet", tmp_path)


def test_files_that_are_not_what_their_names_say(tmp_path: Path) -> None:
    rows = random_log()
    text, table = write_csv(tmp_path / "log.csv", rows), write_parquet(tmp_path / "log.parquet", rows)
    for source, name, message in [
        (text.read_bytes(), "a.parquet", "named .parquet but is not"),
        (table.read_bytes(), "b.csv", "is a Parquet file by its content"),
        (text.read_bytes(), "c.csv.gz", "named .gz but is not"),
        (gzip.compress(text.read_bytes()), "d.csv", "is gzip by its content"),
        (b"\x00\x01" * 500, "e.csv", "is not text"),
        ("name;Grüße\n".encode("latin1"), "f.csv", "not UTF-8"),
    ]:
        (tmp_path / name).write_bytes(source)
        refused(message, tmp_path / name, tmp_path)


def test_lines_that_cannot_be_cut_are_refused_or_skipped(tmp_path: Path) -> None:
    log = write_csv(tmp_path / "log.csv", random_log())
    lines = log.read_text().splitlines()
    lines[10], lines[20] = "1,2", "1,2,click,1600000000000,5"
    log.write_text("\n".join(lines) + "\n")
    text = refused("line 11", log, tmp_path)
    assert str(log) in text
    data = prepare("events", [log], out=tmp_path / "data", skip_bad_rows=True)
    assert data.manifest["bad_rows"] == {"the line cannot be cut into columns": 2}
    assert sum(data.manifest["counts"]["events"].values()) == 598


def test_everything_filtered_away_says_by_which_filter(tmp_path: Path) -> None:
    log = write_parquet(tmp_path / "log.parquet", random_log())
    text = refused("the filters leave nothing", log, tmp_path, min_events=2, min_item_events=10_000)
    assert "min_item_events=10000 kept 0 of" in text
    assert "min_events=2 kept" in text
    refused("no events are left", log, tmp_path, drop_events=("click", "purchase"))
    refused("no event 'clack' in this log .did you mean 'click'", log, tmp_path, drop_events=("clack",))


def test_too_few_sequences_are_refused(tmp_path: Path) -> None:
    log = write_parquet(tmp_path / "log.parquet", random_log(sequences=8))
    refused("fewer than 3", log, tmp_path)
    refused("leave nothing of 8", log, tmp_path, validation=4, test=4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "tme"}, "split: "),
        ({"min_clix": 3}, "min_clix: no such key .did you mean 'min_clicks'"),
        ({"validation": 0.6, "test": 0.5}, "leave nothing to train on"),
        ({"validation": 5, "test": 0.5}, "both be shares or both be numbers"),
        ({"split_times": ("2020-01-01",)}, "two times"),
        ({"split": "time", "split_times": ("soon", "later")}, "'soon' is not an ISO time"),
        ({"session_gap": "long"}, "session_gap: "),
        ({"memory": "much"}, "memory=much"),
        ({"engine": "duck"}, "did you mean 'duckdb'"),
    ],
)
def test_meaningless_settings_are_refused(tmp_path: Path, settings: dict, message: str) -> None:
    refused(message, write_parquet(tmp_path / "log.parquet", random_log()), tmp_path, **settings)


@pytest.mark.parametrize("settings", [{"split": "time"}, {"session_gap": 60}, {"duplicates": "exact"}])
def test_what_needs_times_says_so(tmp_path: Path, settings: dict) -> None:
    rows = [{key: value for key, value in row.items() if key != "timestamp"} for row in random_log()]
    refused("needs times", write_parquet(tmp_path / "log.parquet", rows), tmp_path, **settings)


def test_an_unknown_source_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'yoochoose'"):
        prepare("yochoose", [tmp_path], out=tmp_path / "data")


def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: ArrayFile, values: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    log = write_parquet(tmp_path / "log.parquet", random_log())
    with monkeypatch.context() as patch:
        original = ArrayFile.append
        patch.setattr(ArrayFile, "append", lambda self, values: (full if self.length else original)(self, values))
        refused("could not be written: No space left on device", log, tmp_path)


def test_a_newer_format_and_an_altered_array_are_refused(tmp_path: Path) -> None:
    data = prepare("events", [write_parquet(tmp_path / "log.parquet", random_log())], out=tmp_path / "data")
    array = data.path / "train" / "item.npy"
    content = bytearray(array.read_bytes())
    content[-1] ^= 1
    array.write_bytes(content)
    with pytest.raises(DataError, match="was altered"):
        Prepared(data.path).verify()
    array.write_bytes(content[:-4])
    with pytest.raises(DataError, match="damaged"):
        Prepared(data.path)
    manifest = json.loads((data.path / "manifest.json").read_text())
    (data.path / "manifest.json").write_text(json.dumps(sealed({**manifest, "format": 99})))
    with pytest.raises(DataError, match="upgrade localpolicy"):
        Prepared(data.path)


def test_of_two_prepares_into_one_folder_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that ends second is refused, and the first stays whole."""
    log = write_parquet(tmp_path / "log.parquet", random_log())
    others = iter([{"validation": 0.2}])  # one

    def interrupt(line: str) -> None:
        if line.startswith("sorting") and (settings := next(others, None)):
            prepare("events", [log], out=tmp_path / "data", **settings)

    monkeypatch.setattr("localpolicy.data.prepare.log.info", interrupt)
    with pytest.raises(LocalPolicyError, match="not empty"):
        prepare("events", [log], out=tmp_path / "data")
    again = Prepared(tmp_path / "data")
    again.verify()
    assert again.manifest["settings"]["validation"] == 0.2
    assert stored(again)
    with pytest.raises(LocalPolicyError, match="force=True"):
        prepare("events", [log], out=tmp_path / "data")
