"""A path is a path, a column is the file's own, and times are read by one rule, on both engines."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from localpolicy.data.engines.duckdb import DuckDB
from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.data.times import milliseconds, notation, unit_of, written
from localpolicy.errors import DataError

START = datetime(2024, 5, 1, tzinfo=UTC)
ROWS = 240


def log(item: int, *, rows: int = ROWS, **changes: Any) -> list[dict[str, Any]]:
    """A log in which every row is of one item (and its neighbour), so that one can see which file was read."""
    return [
        {"sequence_id": number // 3, "item_id": item + number % 2, "event": "purchase",
         "timestamp": (START + timedelta(minutes=number)).isoformat(sep=" ")[:19], **changes}
        for number in range(rows)
    ]  # fmt: skip


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    return path


def items(data: Prepared) -> list[Any]:
    return sorted(data.catalogue["item_id"].to_pylist())


def times(data: Prepared) -> list[int]:
    """All times, in milliseconds, in order."""
    return sorted(int(time) for split in data.splits.values() for time in split.arrays["time"])


# ---------------------------------------------------------------------- names of files


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("name", ["[ab]", "*", "?", "[ab]/a", "a]", "[!b]", "{a,b}"])
def test_a_name_is_no_pattern(tmp_path, name, suffix):
    for other in ("a", "b", "[", "x/a"):
        write(tmp_path / f"{other}.{suffix}", log(100))
    path = write(tmp_path / f"{name}.{suffix}", log(1))
    assert items(prepare("events", [path], out=tmp_path / "data")) == [1, 2]


def test_a_question_mark_hides_no_gzip(tmp_path):
    path = write(tmp_path / "a?b.csv", log(1))
    packed = tmp_path / "a?b.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert items(prepare("events", [packed], out=tmp_path / "data")) == [1, 2]
    both = [path.rename(tmp_path / "a.csv"), tmp_path / "b.csv.gz"]
    both[1].write_bytes(gzip.compress(write(tmp_path / "c.csv", log(5)).read_bytes()))
    assert items(prepare("events", both, out=tmp_path / "both")) == [1, 2, 5, 6]


def test_a_folder_name_is_no_pattern(tmp_path):
    write(tmp_path / "a" / "log.csv", log(100))
    write(tmp_path / "[ab]" / "log.csv", log(1))
    assert items(prepare("events", [tmp_path / "[ab]"], out=tmp_path / "data")) == [1, 2]


def test_a_name_that_duckdb_cannot_read_is_refused(tmp_path):
    with pytest.raises(DataError, match="Rename it"):
        prepare("events", [write(tmp_path / "a\\[b].csv", log(1))], out=tmp_path / "data")


@pytest.mark.parametrize("folder", ["event=click", "item_id=7", "timestamp=2024-05-01"])
def test_columns_come_from_the_file_and_not_from_its_folders(tmp_path, folder):
    plain = prepare("events", [write(tmp_path / "log.parquet", log(1))], out=tmp_path / "plain")
    for suffix in ("parquet", "csv"):
        data = prepare("events", [write(tmp_path / folder / f"log.{suffix}", log(1))], out=tmp_path / suffix)
        assert (items(data), times(data)) == (items(plain), times(plain))
        assert data.manifest["counts"]["events"] == {"purchase": ROWS}


# ---------------------------------------------------------------------- names of columns


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_two_columns_of_one_name_are_refused(tmp_path, suffix):
    names = ["sequence_id", "item_id", "item_id", "event"]
    table = pa.table([pa.array([number // 3 for number in range(ROWS)]), pa.array([1] * ROWS), pa.array([2] * ROWS),
                      pa.array(["click"] * ROWS)], names=names)  # fmt: skip
    path = tmp_path / f"log.{suffix}"
    if suffix == "parquet":
        pq.write_table(table, path)
    else:
        path.write_text("\n".join([",".join(names), *(f"{n // 3},1,2,click" for n in range(ROWS))]) + "\n")
    with pytest.raises(DataError, match="two columns are called 'item_id'"):
        prepare("events", [path], out=tmp_path / "data")


def test_names_that_differ_in_case_alone_are_two_columns(tmp_path):
    rows = [{"Item_ID": 500, **row} for row in log(1)]
    assert items(prepare("events", [write(tmp_path / "log.parquet", rows)], out=tmp_path / "data")) == [1, 2]


def test_a_column_called_row_is_the_users(tmp_path):
    rows = [{**row, "_row": 7 + row["item_id"] % 2} for row in log(1)]
    for suffix in ("csv", "parquet"):
        path = write(tmp_path / f"log.{suffix}", rows)
        data = prepare("events", [path], out=tmp_path / suffix, columns={"item_id": "_row"})
        assert items(data) == [7, 8]


def test_a_column_whose_name_holds_a_plus_is_one_column(tmp_path):
    rows = [{**row, "a": "x", "b": "y", "a+b": f"i{row['item_id']}"} for row in log(1)]
    data = prepare("events", [write(tmp_path / "log.csv", rows)], out=tmp_path / "data", columns={"item_id": "a+b"})
    assert items(data) == ["i1", "i2"]


# ---------------------------------------------------------------------- times

INSTANT = datetime(2024, 1, 31, 20, 13, 21, tzinfo=UTC)
MS = int(INSTANT.timestamp() * 1000)
MIDNIGHT = int(datetime(2024, 1, 31, tzinfo=UTC).timestamp() * 1000)
ZONED = {
    "2024-01-31T20:13:21Z": MS, "2024-01-31 20:13:21.250Z": MS + 250, "2024-01-31T22:13:21+02:00": MS,
    "2024-01-31 22:13:21+0200": MS, "2024-01-31 22:13:21+02": MS, "2024-01-31 14:43:21-05:30": MS,
    "2024/01/31 20:13:21 UTC": MS, "2024-02-01T00:13:21.5 +04:00": MS + 500, "2024-01-31 22:13+02:00": MS - 21_000,
    "2024-01-31 20:13:21": None, "2024-01-31": None, "1706732001": None, "2024-01-31 20:13:21 CET": None,
    "2024-13-31T20:13:21Z": None, "": None,
}  # fmt: skip
DAY_FIRST = {
    "31.01.2024 20:13:21": MS, "31/1/2024 20:13": MS - 21_000, " 31-01-2024 ": MIDNIGHT,
    "31/01/2024T20:13:21.25": MS + 250, "01/31/2024": None, "2024-01-31": None, "31/01/24": None, "": None,
}  # fmt: skip
MONTH_FIRST = {
    "01/31/2024 20:13:21": MS, "1/31/2024": MIDNIGHT, "31/01/2024": None, "1/31/2024 8:13:21 PM": MS,
    "1/31/2024 12:00 AM": MIDNIGHT, "1/31/2024 12:00pm": MIDNIGHT + 43_200_000,
    "1/31/2024 7:00 am": MIDNIGHT + 25_200_000,
}  # fmt: skip
PLAIN = {
    "2024-01-31 20:13:21": MS, "2024-01-31T20:13:21": MS, "2024-01-31 20:13:21.250999": MS + 250,
    "2024/01/31 20:13:21": MS, "2024-01-31 20:13": MS - 21_000, "2024-01-31": MIDNIGHT, " 2024-1-31 ": MIDNIGHT,
    "2024-01-31T20:13:21Z": None, "2024-01-31T22:13:21+02:00": None, "20240131": None, "31.01.2024": None, "2024": None,
    "2024-01-31 20:13:21 Europe/Berlin": None,
}  # fmt: skip


def test_notations_are_told_apart_by_most_of_the_first_rows():
    assert notation(["2024-01-31 22:13:21+02:00", "2024-01-31T22:13:21Z", "2024-01-31"]) == "zoned"
    assert notation(["2024-01-31 22:13:21", "2024-01-31", "2024-01-31T22:13:21Z"]) == "plain"
    assert notation(["1700000000", "1700000001", "NULL"]) == "number" == notation([])
    assert notation(["31/01/2024", "1.2.2024 10:00", "2024-01-31"]) == "year last"


@pytest.mark.parametrize(
    ("texts", "order"),
    [
        (["01/02/2024", "02/13/2024"], "month first"), (["01/02/2024", "13/02/2024"], "day first"),
        (["01.02.2024", "02.03.2024"], "day first"), (["01.13.2024"], "month first"),
        (["13/02/2024", "14/02/2024", "02/13/2024"], "day first"),
    ],
)  # fmt: skip
def test_all_rows_decide_between_days_and_months(texts, order, engine):
    engine.small("texts", pa.table({"t": pa.array(texts)}))
    assert written(texts[:1], engine.rows, "texts", "t") == order


@pytest.fixture(params=["duckdb", pytest.param("spark", marks=[
    pytest.mark.slow, pytest.mark.cluster, pytest.mark.filterwarnings("ignore")])])  # fmt: skip
def engine(request, tmp_path) -> Iterator[Any]:
    if request.param == "spark":
        pytest.importorskip("pyspark.sql", reason="needs pyspark (the extra 'spark')")
        from localpolicy.data.engines.spark import Spark

        made: Any = Spark(tmp_path, master="local[1]")
    else:
        made = DuckDB(tmp_path)
    yield made
    made.close()


def test_both_engines_read_texts_equally(engine):
    """The same SQL and the same answers; Python's own clock is the third reading."""
    notations = {"zoned": ZONED, "plain": PLAIN, "day first": DAY_FIRST, "month first": MONTH_FIRST}
    for name, cases in notations.items():
        engine.small("texts", pa.table({"n": pa.array(range(len(cases)), pa.int32()), "t": pa.array(cases)}))
        sql = milliseconds("t", written=name, unit="s", is_text=True)
        found = engine.rows(f"SELECT {sql} FROM texts ORDER BY n")
        assert dict(zip(cases, (ms for (ms,) in found), strict=True)) == cases


def test_offsets_are_respected_and_order_events(tmp_path):
    zones = [timezone(timedelta(hours=hours, minutes=30)) for hours in (-5, 0, 2)]
    moments = [START + timedelta(minutes=number) for number in range(ROWS)]
    rows = [{**row, "timestamp": moment.astimezone(zones[number % 3]).isoformat()}
            for number, (row, moment) in enumerate(zip(log(1), moments, strict=True))]  # fmt: skip
    data = prepare("events", [write(tmp_path / "log.csv", rows)], out=tmp_path / "data")
    assert times(data) == [int(moment.timestamp() * 1000) for moment in moments]
    frame = pa.Table.from_pylist([{**row, "timestamp": moment} for row, moment in zip(rows, moments, strict=True)])
    berlin = frame.set_column(3, "timestamp", frame["timestamp"].cast(pa.timestamp("us", "Europe/Berlin")))
    assert times(prepare(berlin, out=tmp_path / "frame")) == times(data)


def changed(rows: list[dict[str, Any]], row: int, time: Any) -> list[dict[str, Any]]:
    return [{**each, "timestamp": time} if number == row else each for number, each in enumerate(rows)]


def numbers(scale: int) -> list[dict[str, Any]]:
    return [{**row, "timestamp": int(START.timestamp()) * scale + number} for number, row in enumerate(log(1))]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (changed(log(1), 7, "2024-05-01 00:07:00+02:00"), "row 8: timestamp is not written as the first are"),
        (changed(log(1), 7, "1714521600"), "row 8: timestamp is not written as the first are"),
        (changed(numbers(1), 7, int(START.timestamp()) * 1000), "row 8: timestamp is not in s, as the first are"),
        (changed(numbers(1000), 7, int(START.timestamp())), "row 8: timestamp is not in ms, as the first are"),
        (changed(numbers(1), 7, "1_714_521_600"), "row 8: timestamp is not a time that can be read"),
    ],
    ids=["an offset", "a number", "ms among s", "s among ms", "underscores"],
)
def test_a_time_that_is_written_otherwise_is_named(tmp_path, rows, says):
    with pytest.raises(DataError, match=says):
        prepare("events", [write(tmp_path / "log.csv", rows)], out=tmp_path / "data")


@pytest.mark.parametrize("digits", ["%Y%m%d", "%Y%m%d%H%M", "%Y%m%d%H%M%S"])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_dates_written_as_one_number_are_not_taken_for_seconds(tmp_path, digits, suffix):
    rows = [{**row, "timestamp": int((START + timedelta(hours=number)).strftime(digits))}
            for number, row in enumerate(log(1))]  # fmt: skip
    with pytest.raises(DataError, match="dates written as one number"):
        prepare("events", [write(tmp_path / f"log.{suffix}", rows)], out=tmp_path / "data")


def test_units_follow_from_the_years_they_give():
    now = 1_714_521_600
    assert [unit_of([now * scale]) for scale in (1, 10**3, 10**6, 10**9)] == [
        (u, True) for u in ("s", "ms", "us", "ns")
    ]
    assert unit_of(range(1000)) == ("s", False), "counted from a beginning of its own"
    with pytest.raises(DataError, match="in no unit"):
        unit_of([10**10])


def test_a_reward_with_an_underscore_is_no_number(tmp_path):
    rows = [{**row, "reward": "1_0" if number == 4 else 1.0} for number, row in enumerate(log(1))]
    with pytest.raises(DataError, match="row 5: reward is not a number"):
        prepare("events", [write(tmp_path / "log.csv", rows)], out=tmp_path / "data")
