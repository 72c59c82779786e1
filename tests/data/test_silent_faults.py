"""What would go wrong in silence, or fill the memory: sentinels, cut files, endless lines, tiny numbers."""

from __future__ import annotations

import gzip
import os
import resource
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from raw_logs import random_log, stored, write_csv, write_parquet

from localpolicy.data.prepare import prepare
from localpolicy.data.quality import measure
from localpolicy.data.sources import check_text
from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, DataError
from localpolicy.report.results import quality_tables

UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


@pytest.mark.parametrize("unit", UNITS)
def test_a_sentinel_time_does_not_change_the_unit_of_the_others(tmp_path: Path, unit: str) -> None:
    scale = UNITS[unit]
    rows = random_log()
    whole = stored(prepare(write_csv(tmp_path / "whole.csv", rows), out=tmp_path / "whole"))
    scaled = [{**row, "timestamp": row["timestamp"] // 1000 * scale} for row in rows]
    scaled[7]["timestamp"] = 253_402_300_799 * min(scale, 10**6)  # 9999-12-31; in ns it fits no integer of 8 bytes
    data = prepare(write_csv(tmp_path / "log.csv", scaled), out=tmp_path / "data")
    assert data.manifest["settings"]["time_unit"] == "auto"
    times = {event[:3] for events in stored(data).values() for event in events}
    expected = {event[:3] for events in whole.values() for event in events}
    assert len(expected - times) <= 1
    if unit != "ns":
        assert data.manifest["dates"]["last"].startswith("9999-12-31")
        assert measure(data).odd_times == 1


def test_a_time_that_no_calendar_has_is_a_bad_row(tmp_path: Path) -> None:
    rows = random_log()
    rows = [{**row, "timestamp": row["timestamp"] // 1000} for row in rows]
    rows[7]["timestamp"] = 253_402_300_799_000  # in another unit than the others
    with pytest.raises(DataError, match="row 8.*: timestamp is beyond the years 1 to 9999"):
        prepare(write_csv(tmp_path / "log.csv", rows), out=tmp_path / "data")


def test_the_dates_of_the_data_are_in_the_manifest(tmp_path: Path) -> None:
    rows = random_log()
    rows[0]["timestamp"], rows[1]["timestamp"] = 1_500_000_000_000, 1_700_000_000_123
    data = prepare(write_parquet(tmp_path / "log.parquet", rows), out=tmp_path / "data")
    assert data.manifest["dates"] == {"first": "2017-07-14T02:40:00.000", "last": "2023-11-14T22:13:20.123"}
    bare = pa.Table.from_pylist(rows).drop_columns("timestamp")
    assert prepare(bare, out=tmp_path / "bare").manifest["dates"] is None


@pytest.mark.parametrize("part", [0.1, 0.5, 0.999])
def test_gzip_cut_short_is_refused_whatever_the_engine_says(tmp_path: Path, part: float, monkeypatch) -> None:
    content = gzip.compress(write_csv(tmp_path / "log.csv", random_log(events=20_000)).read_bytes())
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(content[: round(len(content) * part)])
    with pytest.raises(DataError, match=r"cut.csv.gz is not whole .*cut short or altered"):
        check_text(cut)
    checked: list[Path] = []
    monkeypatch.setattr("localpolicy.data.inputs.check_text", checked.append)
    whole = tmp_path / "whole.csv.gz"
    whole.write_bytes(content)
    check_text(whole)
    prepare(whole, out=tmp_path / "data")
    assert checked == [whole]


@pytest.mark.parametrize("value", [1e-46, 1e-39, 5e-324])
def test_a_propensity_that_would_be_kept_as_zero_is_a_bad_row(tmp_path: Path, value: float) -> None:
    rows = [{**row, "propensity": 0.5} for row in random_log()]
    rows[3]["propensity"] = value
    with pytest.raises(DataError, match="row 4 .*: propensity is below 1.2e-38, and would be kept as 0"):
        prepare(pa.Table.from_pylist(rows), out=tmp_path / "data")
    rows[3]["propensity"] = 2e-38
    data = prepare(pa.Table.from_pylist(rows), out=tmp_path / "data")
    assert min(float(split.arrays["propensity"].min()) for split in data.splits.values()) > 0


HEADER = b"sequence_id,item_id,event,timestamp\n1,2,click,3\n"


@pytest.mark.parametrize("source", ["events", "netflix"])
@pytest.mark.parametrize("beginning", [b"", HEADER, HEADER + b'1,2,"'], ids=["at once", "later", "in quotes"])
@pytest.mark.parametrize("ending", [b"", b"\n1,2,click,3\n"], ids=["the last", "in between"])
def test_an_endless_line_fills_neither_memory_nor_screen(
    tmp_path: Path, source: str, beginning: bytes, ending: bytes
) -> None:
    name = "log.csv.gz" if source == "events" else "combined_data_1.txt"
    packed = {"compresslevel": 1} if source == "events" else {}
    with (gzip.open if packed else open)(tmp_path / name, "wb", **packed) as log:
        log.write(beginning)
        for _ in range(100):
            log.write(b"a" * 1_000_000)
        log.write(ending)
    command = [sys.executable, "-m", "localpolicy", "prepare", source, str(tmp_path / name)]
    limit = 3 << 30  # of addresses, of which DuckDB and Arrow take many without using them
    result = subprocess.run(
        [*command, "--out", str(tmp_path / "data"), "--threads", "1", "--memory", "500MB"],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert result.returncode == 2, result.stderr[-2000:]
    assert "Traceback" not in result.stderr
    assert len(result.stderr) < 2200
    assert not (tmp_path / "data").exists()


def test_a_long_value_is_shown_in_part(tmp_path: Path) -> None:
    rows = [{**row, "timestamp": str(row["timestamp"])} for row in random_log()]
    rows[3]["timestamp"] = "x" * 500_000
    with pytest.raises(DataError, match="row 4 .*: timestamp is not a time") as caught:
        prepare(pa.Table.from_pylist(rows), out=tmp_path / "data")
    assert len(str(caught.value)) < 2000
    columns = {f"a column with a very long name, number {number}": [1] for number in range(10_000)}
    with pytest.raises(DataError, match="no column 'sequence_id'") as caught:
        prepare(pa.table(columns), out=tmp_path / "data")
    assert len(str(caught.value)) < 2000 and "Map it with columns=" in str(caught.value)


@pytest.mark.parametrize("threads", [0, -1, 10**9])
def test_threads_are_bounded(tmp_path: Path, threads: int) -> None:
    with pytest.raises(ConfigError, match=f"threads: expected a number .* than or equal to (1|1024), got {threads}"):
        prepare(pa.Table.from_pylist(random_log()), out=tmp_path / "data", threads=threads)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
@pytest.mark.parametrize("odd", ["input", "output", "world"])
def test_names_that_are_not_utf8_are_refused(tmp_path: Path, odd: str) -> None:
    name = os.fsencode(tmp_path) + b"/\xff.csv"
    log = write_csv(tmp_path / "log.csv", random_log())
    Path(os.fsdecode(name)).write_bytes(log.read_bytes()) if odd == "input" else None
    commands = {
        "input": ["prepare", "events", name, "--out", str(tmp_path / "data")],
        "output": ["prepare", "events", str(log), "--out", name],
        "world": ["simulate", "bandit", "--sequences", "10", "--out", name],
    }
    result = subprocess.run([sys.executable, "-m", "localpolicy", *commands[odd]], capture_output=True, check=False)
    assert result.returncode == 2, result.stderr
    assert rb"\xff.csv: the name is not UTF-8" in result.stderr
    assert b"Traceback" not in result.stderr


def findings(data: Prepared, what: str) -> list[list[str]]:
    """The rows of the quality report about something, as text."""
    rows = [[cell.text for cell in row] for table in quality_tables(data, measure(data)) for row in table.body]
    return [row for row in rows if row[0] == what]


def test_a_session_of_thousands_of_events_is_flagged(tmp_path: Path) -> None:
    rows = random_log()
    data = prepare(pa.Table.from_pylist(rows), out=tmp_path / "plain")
    assert measure(data).long == 0
    rows += [{**rows[0], "sequence_id": 999, "timestamp": rows[0]["timestamp"] + n} for n in range(3000)]
    data = prepare(pa.Table.from_pylist(rows), out=tmp_path / "data")
    assert measure(data).long == 1 and measure(data).longest == 3000
    (told,) = findings(data, "long sequences")
    assert told[1] == "1" and "--session-gap" in told[3]


def test_a_log_of_single_events_says_how_to_train_on_it(tmp_path: Path) -> None:
    rows = [{**row, "sequence_id": number} for number, row in enumerate(random_log())]
    data = prepare(pa.Table.from_pylist(rows), out=tmp_path / "data")
    (told,) = findings(data, "single events")
    assert "train.min_history=0" in told[3]
