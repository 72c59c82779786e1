"""Files that are too wide, too packed, or unexpected in a folder: reported by name, and bounded."""

from __future__ import annotations

import gzip
import logging
import os
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import localpolicy.data.preparation
from localpolicy.data.prepare import prepare
from localpolicy.data.rewards import RewardMap, event_name
from localpolicy.data.sources import MOST_COLUMNS, files_under, other_line_end
from localpolicy.errors import ConfigError, DataError

HEADER = "sequence_id,item_id,event,timestamp"
ROWS = [f"{s},{(s * 7 + t) % 9},{'click' if t % 2 else 'purchase'},{1700000000 + s * 100 + t}"
        for s in range(30) for t in range(4)]  # fmt: skip
FEW = {"validation": 3, "test": 3, "threads": 1}


# ---------------------------------------------------------------------- too wide, too long


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_more_columns_than_duckdb_can_take_are_refused_at_once(tmp_path, suffix):
    names = [*HEADER.split(","), *(f"f{number}" for number in range(MOST_COLUMNS))]
    path = tmp_path / f"wide.{suffix}"
    if suffix == "csv":
        path.write_text(",".join(names) + "\n" + ",".join("1" for _ in names) + "\n")
    else:
        pq.write_table(pa.table({name: [1] for name in names}), path)
    with pytest.raises(DataError, match=f"wide.{suffix} has 10,004 columns; expected at most 10,000"):
        prepare(path, out=tmp_path / "out")


@pytest.mark.parametrize("left_out", [(), ("event",), ("timestamp",), ("event", "timestamp")])
def test_the_nameless_index_of_a_frame_is_no_column_of_ours(tmp_path, left_out):
    """Before: `frame.to_csv()` of a log without times was a traceback."""
    rows = [{"sequence_id": n // 6, "item_id": n * 7 % 11, "event": "click", "timestamp": n} for n in range(960)]
    names = [name for name in rows[0] if name not in left_out]
    found = {}
    for index in (False, True):
        lines = [",".join([*[""] * index, *names]), *(
            ",".join([*[str(number)] * index, *(str(row[name]) for name in names)]) for number, row in enumerate(rows)
        )]  # fmt: skip
        (tmp_path / f"{index}.csv").write_text("\n".join(lines) + "\n")
        data = prepare("events", [tmp_path / f"{index}.csv"], out=tmp_path / str(index), event="click", min_events=0)
        found[index] = [data[name].arrays[column].tolist() for name in data.splits for column in ("item", "event")]
    assert found[True] == found[False] and sum(map(len, found[True])) == 2 * 960


def test_a_column_is_found_without_a_search_through_all_others():
    """A list's `index` for each of 10,000 columns took seconds."""
    from localpolicy.data.sources import SourceTable

    names = (*(f"f{number}" for number in range(MOST_COLUMNS)), "f0")
    table = SourceTable((Path("x.csv"),), "csv", {}, names)
    assert [table.place(name) for name in ("f0", "f9999")] == [0, 9999]
    assert table.parts("f1+f2") == ("f1", "f2")


def test_a_sequence_that_would_fill_the_memory_is_refused_by_name(tmp_path, monkeypatch):
    """24 million rows of one sequence, in a gzip of 1.3 MB, took 2.3 GB."""
    monkeypatch.setattr(localpolicy.data.preparation, "LONGEST_SEQUENCE", 50)
    packed = tmp_path / "packed.csv.gz"
    packed.write_bytes(gzip.compress("\n".join([HEADER, *ROWS, *60 * ["robot,1,click,1700000000"], ""]).encode()))
    with pytest.raises(DataError, match=r"sequence 'robot' has 60 events; expected at most 50.*most_recent="):
        prepare(packed, out=tmp_path / "out", ids="text", **FEW)
    assert (
        prepare(packed, out=tmp_path / "out", ids="text", most_recent=50, **FEW).manifest["counts"]["sequences"] == 31
    )


# ---------------------------------------------------------------------- lines, links, pipes


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("ends", "says"), [
    (["\n"] * 50 + ["\r\n"] * 71, "line 51: it ends in CR LF, and line 1 in LF"),
    (["\r\n"] * 50 + ["\n"] * 71, "line 51: it ends in LF, and line 1 in CR LF"),
    (["\n"] * 120 + ["\r"], "line 121: it ends in CR, and line 1 in LF"),
])  # fmt: skip
def test_mixed_line_ends_are_reported_with_file_and_line(tmp_path, ends, says, packed):
    text = "".join(line + end for line, end in zip([HEADER, *ROWS], ends, strict=True)) + (
        "1,2,click,1" * ("\r" in ends[-1:])
    )
    path = tmp_path / f"log.csv{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    (tmp_path / "fine.csv").write_text("\n".join([HEADER, *ROWS]))
    with pytest.raises(DataError, match=f"log.csv.*{says}"):
        prepare(tmp_path / "fine.csv", path, out=tmp_path / "out", **FEW)


def test_a_line_end_that_two_blocks_share_is_one(tmp_path, monkeypatch):
    monkeypatch.setattr("localpolicy.data.sources.LONGEST_LINE", 3)
    for text, expected in ((b"ab\r\ncd\r\n", None), (b"ab\r\ncd\n", (2, "LF", "CR LF")), (b"a\rb\r", None)):
        (tmp_path / "log").write_bytes(text)
        assert other_line_end(tmp_path / "log") == expected


def test_a_dangling_link_in_a_folder_is_reported(tmp_path):
    """Exit 0 without the day whose disk is not mounted would be silently wrong."""
    (tmp_path / "a.csv").write_text("x")
    (tmp_path / "b.csv").symlink_to("/nowhere/b.csv")
    with pytest.raises(DataError, match=r"b\.csv is a link to nothing"):
        files_under([tmp_path])
    with pytest.raises(DataError, match="does not exist: it is a link to nothing"):
        files_under([tmp_path / "b.csv"])


def test_a_link_to_a_folder_is_skipped_with_a_warning(tmp_path, caplog):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.csv").write_text("x")
    (tmp_path / "logs" / "self").symlink_to(".")
    with caplog.at_level(logging.WARNING):
        assert files_under([tmp_path / "logs"]) == [tmp_path / "logs" / "a.csv"]
    assert "self is a link to a folder, and its files are not read" in caplog.text


def test_a_pipe_is_not_reported_as_missing(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(DataError, match="is a pipe or a device, and a log is read more than once"):
        files_under([tmp_path / "pipe.csv"])


# ---------------------------------------------------------------------- columns, rewards


@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_every_unit_are_read_with_or_without_a_zone(tmp_path, unit, zone):
    seconds = [int(row.split(",")[3]) for row in ROWS]
    stamps = pa.array(seconds).cast(pa.timestamp("s")).cast(pa.timestamp(unit, tz=zone))
    table = pa.table({"sequence_id": [n // 4 for n in range(120)], "item_id": [n % 9 for n in range(120)],
                      "event": ["click", "purchase"] * 60, "timestamp": stamps})  # fmt: skip
    pq.write_table(table, tmp_path / "log.parquet")
    data = prepare(tmp_path / "log.parquet", out=tmp_path / "out", **FEW)
    found = sorted(int(time) for split in data.splits.values() for time in split.arrays["time"])
    assert found == sorted(1000 * second for second in seconds)
    assert data.manifest["dates"]["first"].startswith(datetime.fromtimestamp(seconds[0], UTC).isoformat()[:19])


TWO_MEANINGS = ["purchase=1_0,click=1", ">=1_0=1,*=0", "purchase=1,purchase=2", "*=0,*=1", ">=4=1,>=4=2", "4=1,4.0=2"]


@pytest.mark.parametrize("zone", [None, "UTC", "number"])
def test_nanoseconds_are_cut_off_and_never_rounded(tmp_path, zone):
    """A cast of .000999999 s would make it the next millisecond."""
    stamps = [1_690_999_999_000_999_999 + number * 10**9 for number in range(120)]
    times = pa.array(stamps) if zone == "number" else pa.array(stamps).cast(pa.timestamp("ns", tz=zone))
    table = pa.table({"sequence_id": [n // 4 for n in range(120)], "item_id": [n % 9 for n in range(120)],
                      "event": ["click", "purchase"] * 60, "timestamp": times})  # fmt: skip
    pq.write_table(table, tmp_path / "log.parquet")
    for log, out in ((tmp_path / "log.parquet", "file"), (table, "frame")):
        data = prepare(log, out=tmp_path / out, **FEW)
        found = sorted(int(time) for split in data.splits.values() for time in split.arrays["time"])
        assert found == [stamp // 10**6 for stamp in stamps]


@pytest.mark.parametrize("rewards", TWO_MEANINGS)
def test_rewards_that_mean_two_things_are_refused(rewards):
    with pytest.raises(ConfigError, match="not a finite number|given twice"):
        RewardMap.parse(rewards)


def test_an_event_with_an_underscore_is_no_rating():
    assert event_name("1_0") == "1_0" and event_name("4.0") == "4"


@pytest.mark.parametrize("memory", ["-1GB", "-5", "0", "0.0GB", "1e9", "nan", "-50%", "1", "99999999999999TB"])
def test_an_amount_of_memory_that_is_none_is_refused(tmp_path, memory):
    path = tmp_path / "log.csv"
    path.write_text("\n".join([HEADER, *ROWS]))
    with pytest.raises(ConfigError, match="memory"):
        prepare(path, out=tmp_path / "out", memory=memory, **FEW)
    assert not list(tmp_path.glob(".*"))
