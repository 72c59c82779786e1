"""`lpi recommend`: lists with ids, for files, data sets and single requests, from runs and baselines."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from commands import invoked as lpi

from localpolicy.errors import ConfigError, DataError
from localpolicy.serving.recommend import recommend


def test_a_dash_means_stdout(two_runs, tmp_path):
    done = lpi("evaluate", two_runs / "mle0", "--json", "-", "--out", tmp_path / "values", "--device", "cpu")
    assert json.loads(done.stdout)["settings"]["policy"] == "mle0" and not Path("-").exists()
    (tmp_path / "h.jsonl").write_text('{"id": "anna", "history": [101, 102]}\n{"history": []}\n')
    done = lpi("recommend", two_runs / "mle0", "--histories", tmp_path / "h.jsonl", "-k", "2", "--out", "-")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[0]["id"] == "anna" and "id" not in lines[1] and len(lines[1]["items"]) == 2


def test_lists_keep_ids_in_tables(two_runs, tmp_path):
    table = pa.table({"sequence_id": ["b", "a", "b"], "item_id": [101, 102, 103], "event": ["click"] * 3})
    pa.csv.write_csv(table, tmp_path / "h.csv")
    pq.write_table(table, tmp_path / "h.parquet")
    for source, target in (("h.csv", "lists.csv"), ("h.parquet", "lists.parquet"), ("h.csv", "lists.jsonl")):
        assert recommend(two_runs / "mle0", histories=tmp_path / source, out=tmp_path / target, k=3) == 2
    found_csv, found_parquet = pa.csv.read_csv(tmp_path / "lists.csv"), pq.read_table(tmp_path / "lists.parquet")
    for found in (found_csv, found_parquet):
        assert found["sequence_id"].to_pylist() == ["b"] * 3 + ["a"] * 3
        assert found["rank"].to_pylist() == [1, 2, 3] * 2
    lines = [json.loads(line) for line in (tmp_path / "lists.jsonl").read_text().splitlines()]
    assert [item for line in lines for item in line["items"]] == found_csv["item_id"].to_pylist()
    assert [line["id"] for line in lines] == ["b", "a"]
    pq.write_table(table.drop_columns("sequence_id"), tmp_path / "none.parquet")
    with pytest.raises(DataError, match="no column sequence_id"):
        recommend(two_runs / "mle0", histories=tmp_path / "none.parquet", out=tmp_path / "x.csv")


def test_lists_for_all_sequences_of_a_data_set(two_runs, tmp_path):
    count = recommend(two_runs / "mle0", every=two_runs / "data", out=tmp_path / "all.parquet", k=2)
    found = pq.read_table(tmp_path / "all.parquet")
    assert count == 120 and found.num_rows == 240
    assert set(found["sequence_id"].to_pylist()) >= {"train-0", "test-0", "validation-3"}
    with pytest.raises(ConfigError, match="histories=, or a data set with every="):
        recommend(two_runs / "mle0", out=tmp_path / "x.csv")


def test_each_request_has_its_own_candidates_and_exclusions(two_runs, tmp_path):
    rows = [
        {"history": [101], "candidates": [105, 106, 999]},
        {"history": [101], "exclude": [105, 106]},
        {"history": [101]},
    ]
    (tmp_path / "h.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recommend(two_runs / "mle0", histories=tmp_path / "h.jsonl", out=tmp_path / "l.jsonl", k=2)
    some, rest, free = ([*json.loads(line)["items"]] for line in (tmp_path / "l.jsonl").read_text().splitlines())
    assert sorted(some) == [105, 106] and not {105, 106} & set(rest)
    recommend(two_runs / "mle0", histories=tmp_path / "h.jsonl", out=tmp_path / "l2.jsonl", k=2, seed=1)
    assert free == json.loads((tmp_path / "l2.jsonl").read_text().splitlines()[2])["items"]


def test_a_baseline_is_trained_and_recommends_by_the_same_verbs(two_runs, tmp_path):
    lpi("train", two_runs / "data", "--objective", "item-knn", "--out", tmp_path / "knn")
    (tmp_path / "h.jsonl").write_text('{"history": [101]}\n')
    lpi("recommend", tmp_path / "knn", "--histories", tmp_path / "h.jsonl", "-k", "3", "--out", tmp_path / "l.jsonl")
    assert json.loads((tmp_path / "l.jsonl").read_text())["items"][0] == 101, "an item is its own neighbour"
    with pytest.raises(ConfigError, match="has no dial"):
        recommend(tmp_path / "knn", histories=tmp_path / "h.jsonl", out=tmp_path / "x.jsonl", beta=1.0)
