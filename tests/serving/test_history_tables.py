"""Tables of histories are read in pieces: their rows may lie anywhere, and a sequence may cross from piece to piece."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from localpolicy.errors import DataError
from localpolicy.serving import requests
from localpolicy.serving.requests import BatchRequest, read_requests

#               b is scattered, and comes first
SEQUENCES = ["b", "a", "a", "b", "c", "a", "b", "b", "b"]
ITEMS = [1, 2, 3, 4, 5, 6, 7, 8, 9]
EVENTS = ["click", "none"] * 4 + ["click"]
WANTED = [
    BatchRequest([1, 4, 7, 8, 9], ["click", "none", "click", "none", "click"], "b"),
    BatchRequest([2, 3, 6], ["none", "click", "none"], "a"),
    BatchRequest([5], ["click"], "c"),
]


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_rows_of_a_sequence_are_put_together(rows, ending, tmp_path, monkeypatch):
    monkeypatch.setattr(requests, "ROWS", rows)
    table = pa.table({"item_id": ITEMS, "sequence_id": SEQUENCES, "event": EVENTS})
    path = tmp_path / f"it's.{ending}"
    (pq.write_table if ending == "parquet" else pa.csv.write_csv)(table, path)
    assert list(read_requests(path, int)) == WANTED


def test_events_may_be_left_out_and_ids_may_be_numbers(tmp_path):
    pq.write_table(pa.table({"sequence_id": [7, 3, 7], "item_id": ["x", "y", "z"]}), tmp_path / "h.parquet")
    assert list(read_requests(tmp_path / "h.parquet", str)) == [
        BatchRequest(["x", "z"], None, 7),
        BatchRequest(["y"], None, 3),
    ]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_errors_name_the_users_file(ending, tmp_path):
    path = tmp_path / f"h.{ending}"
    table = pa.table({"sequence_id": [1], "item_id": ["x"]})
    (pq.write_table if ending == "parquet" else pa.csv.write_csv)(table, path)
    with pytest.raises(DataError, match=f"{path}: item_id does not fit"):
        list(read_requests(path, int))
    (pq.write_table if ending == "parquet" else pa.csv.write_csv)(table.drop(["item_id"]), path)
    with pytest.raises(DataError, match=f"{path}: no column item_id"):
        list(read_requests(path, int))
    path.write_bytes(b"\x00" * 10 if ending == "parquet" else b"")
    with pytest.raises(DataError, match=f"{path} cannot be read as a table"):
        list(read_requests(path, int))
