"""Tables in memory go in and come out; pandas and Polars are never required."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas
import polars
import pyarrow as pa
import pytest
from raw_logs import random_log, stored, write_csv, write_parquet

from localpolicy.data.prepare import prepare
from localpolicy.errors import ConfigError, DataError
from localpolicy.runtime import frames

ROWS = random_log()


class OnlyProtocol:
    """A frame that knows the older dataframe protocol alone."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __dataframe__(self, **options: Any) -> Any:
        return self.table.__dataframe__(**options)


def categorical(rows: list[dict[str, Any]]) -> polars.DataFrame:
    return polars.DataFrame(rows).with_columns(polars.col("event").cast(polars.Categorical))


KINDS: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "pandas": pandas.DataFrame,
    "pandas, times": lambda rows: pandas.DataFrame(rows).assign(
        timestamp=lambda f: pandas.to_datetime(f.timestamp, unit="ms")
    ),
    "pandas, times with a zone, categories": lambda rows: pandas.DataFrame(rows).assign(
        timestamp=lambda f: pandas.to_datetime(f.timestamp, unit="ms", utc=True).dt.tz_convert("Asia/Tokyo"),
        event=lambda f: f.event.astype("category"),
    ),
    "pandas, ids as index": lambda rows: pandas.DataFrame(rows).set_index("sequence_id"),
    "Polars": polars.DataFrame,
    "Polars, lazy": polars.LazyFrame,
    "Polars, categories": categorical,
    "Arrow": pa.Table.from_pylist,
    "Arrow, a stream": lambda rows: pa.Table.from_pylist(rows).to_reader(max_chunksize=7),
    "DuckDB": lambda rows: duckdb.from_arrow(pa.Table.from_pylist(rows)),
    "the dataframe protocol": lambda rows: OnlyProtocol(pa.Table.from_pylist(rows)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_is_read_as_its_file_is(tmp_path: Path, kind: str) -> None:
    file = prepare(write_parquet(tmp_path / "log.parquet", ROWS), out=tmp_path / "file")
    assert prepare(KINDS[kind](ROWS), out=tmp_path / "table").digest == file.digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "log.parquet", "table"]


def test_tables_and_paths_are_one_log_in_the_order_given(tmp_path: Path) -> None:
    rows = [{key: value for key, value in row.items() if key != "timestamp"} for row in ROWS]
    whole = prepare(pandas.DataFrame(rows), out=tmp_path / "whole")
    part = write_csv(tmp_path / "part.csv", rows[200:400])
    mixed = prepare([pandas.DataFrame(rows[:200]), str(part)], polars.DataFrame(rows[400:]), out=tmp_path / "mixed")
    assert stored(mixed) == stored(whole)


def test_a_path_may_be_a_text_and_a_source_may_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_csv(tmp_path / "a.csv", ROWS)
    monkeypatch.chdir(tmp_path)
    expected = prepare(Path("a.csv"), out="1").digest
    assert prepare("./a.csv", out="2").digest == expected
    assert prepare("events", "./a.csv", out="3").digest == expected
    assert prepare("./a.csv", source="events", out="4").digest == expected


def test_columns_and_rewards_are_dicts_and_only_what_is_read_is_taken(tmp_path: Path) -> None:
    frame = pandas.DataFrame(ROWS).rename(columns={"sequence_id": "session", "item_id": "product", "event": "what"})
    frame["notes"] = [object()] * len(frame)  # no file could hold them
    columns = {"sequence_id": "session", "item_id": "product", "event": "what"}
    with pytest.raises(DataError, match="the pandas DataFrame cannot be read"):
        prepare(frame, out=tmp_path / "no", columns=columns)
    frame["notes"] = [[1], []] * (len(frame) // 2)
    data = prepare(frame, out=tmp_path / "data", columns=columns, rewards={"purchase": 2, "click": 0.5})
    assert data.manifest["rewards"] == {"click": 0.5, "purchase": 2.0}


def test_without_out_a_new_folder_is_made_and_the_log_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.INFO, logger="localpolicy"):
        first, second = (prepare(pandas.DataFrame(ROWS)) for _ in range(2))
    assert first.path != second.path
    for data in (first, second):
        assert (tmp_path / data.path / "manifest.json").exists()
        assert any(str(data.path) in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("logs", "options", "message"),
    [
        ((pandas.DataFrame(ROWS),), {"colums": {}}, "colums: no such key .did you mean 'columns'"),
        ((pandas.DataFrame(ROWS),), {"memroy": "1GB"}, "memroy: no such key .did you mean 'memory'"),
        ((7,), {}, "expected a table or the path of a log, got a value of type int"),
        ((), {}, "no log given"),
        ((pandas.DataFrame(ROWS),), {"source": "retailrocket"}, "a named source reads files"),
        ((pandas.DataFrame({"a": [1]}),), {}, r"no column 'sequence_id' in the pandas DataFrame \(columns: a\)"),
        (
            (pandas.DataFrame([{**ROWS[0], "event": None}]),),
            {},
            r"the pandas DataFrame, row 1 \(position 0, counted from 0\): event is empty",
        ),
        ((polars.DataFrame(ROWS), pandas.DataFrame({"a": [1]})), {}, r"in the pandas DataFrame \(2 of 2\)"),
    ],
)
def test_mistakes_are_errors_that_name_them(tmp_path: Path, logs: tuple, options: dict, message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        prepare(*logs, out=tmp_path / "data", **options)
    assert not list(tmp_path.iterdir())


def test_what_comes_back_prints_itself_and_is_a_table(tmp_path: Path) -> None:
    rows = [{**row, "propensity": 0.25 if row["item_id"] % 2 else None, "policy": "v1"} for row in ROWS]
    data = prepare(pandas.DataFrame(rows), out=tmp_path / "data")
    clicks, purchases = (sum(row["event"] == event for row in ROWS) for event in ("click", "purchase"))
    assert f"{len(data)} sequences" in repr(data) and f"click {clicks}, purchase {purchases}" in repr(data)
    assert len(repr(data)) < 400
    assert f"<td>{clicks}</td><td>{purchases}</td>" in data._repr_html_()
    assert data.to_dict()["counts"]["events"] == {"click": clicks, "purchase": purchases}
    frame = data.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    key = ["sequence_id", "item_id", "event", "timestamp", "propensity"]
    given = pandas.DataFrame(rows).assign(timestamp=lambda f: pandas.to_datetime(f.timestamp, unit="ms"))
    left, right = (f[key].sort_values(key).reset_index(drop=True) for f in (frame, given))
    pandas.testing.assert_frame_equal(left, right, check_dtype=False)
    assert set(frame.split) == {"train", "validation", "test"}
    rewards = data.manifest["rewards"]
    assert prepare(data.to_arrow(), out=tmp_path / "again", rewards=rewards).digest == data.digest


def test_to_frame_without_pandas_is_polars_and_without_both_says_what_to_install(monkeypatch) -> None:
    table = pa.table({"a": [1, 2]})
    present = {"pandas", "polars"}
    monkeypatch.setattr(frames, "find_spec", lambda name: name in present or None)
    assert isinstance(frames.to_frame(table), pandas.DataFrame)
    present.remove("pandas")
    assert isinstance(frames.to_frame(table), polars.DataFrame)
    present.clear()
    with pytest.raises(ConfigError, match="pip install pandas"):
        frames.to_frame(table)


def test_preparing_needs_neither_pandas_nor_polars(tmp_path: Path) -> None:
    log = write_parquet(tmp_path / "log.parquet", ROWS)
    code = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in ("pandas", "polars"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
from localpolicy.data.prepare import prepare
data = prepare({str(log)!r}, out={str(tmp_path / "data")!r})
prepare(data.to_arrow(), out={str(tmp_path / "again")!r})
"""
    subprocess.run([sys.executable, "-c", code], check=True)
