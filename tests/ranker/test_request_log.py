"""Logs of requests in every form people have them: the same log, and errors that name the request and the remedy."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from localpolicy.errors import DataError
from localpolicy.ranker.reading import read_requests

REQUESTS = [
    {"request": "r1", "time": 10.0, "person": "ann", "day": "mon", "candidates": ["a", "b", "c"],
     "scores": [0.5, 2.0, 1.0], "price": [3.0, 4.0, 5.0], "shown": ["b", "a"], "temperature": 0.1},
    {"request": "r2", "time": 20.0, "person": "bob", "day": "sun", "candidates": ["c", "a"],
     "scores": [1.5, 1.0], "price": [5.0, 3.0], "shown": ["c"], "temperature": 0.1},
]  # fmt: skip
OUTCOMES = [
    {"request": "r1", "item": "a", "event": "click", "reward": 0.2},
    {"request": "r1", "item": "a", "event": "buy", "reward": 1.0},
]
FLAT = [
    {"request": one["request"], "time": one["time"], "person": one["person"], "day": one["day"], "item": item,
     "score": score, "price": price, "place": one["shown"].index(item) + 1 if item in one["shown"] else None,
     "reward": 1.2 if (one["request"], item) == ("r1", "a") else None, "temperature": 0.1}
    for one in REQUESTS for item, score, price in zip(one["candidates"], one["scores"], one["price"], strict=True)
]  # fmt: skip


def is_the_log(log):
    assert log.ids.tolist() == ["r1", "r2"]
    assert log.start.tolist() == [0, 3, 5]
    assert log.items[log.item].tolist() == ["a", "b", "c", "c", "a"]
    assert log.score.tolist() == [0.5, 2.0, 1.0, 1.5, 1.0]
    assert log.place.tolist() == [2, 1, 0, 1, 0]
    assert log.reward().tolist() == pytest.approx([1.2, 0, 0, 0, 0])
    assert log.temperature.tolist() == [0.1, 0.1]
    assert log.time.tolist() == [10, 20]
    assert log.columns["price"].values.tolist() == [3, 4, 5, 5, 3]
    day = log.context["day"]
    assert [day.names[code] for code in day.values] == ["mon", "sun"]
    assert len(set(log.person)) == 2
    assert log.shown.tolist() == [1, 0, 3]
    assert log.length.tolist() == [2, 1]


def lines(path, rows, opener=open):
    with opener(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def as_csv(path, rows, opener=open):
    frame = pd.DataFrame([{name: json.dumps(value) if isinstance(value, list) else value for name, value in row.items()}
                          for row in rows])  # fmt: skip
    with opener(path, "wt") as file:
        frame.to_csv(file, index=False)
    return path


FORMS = {
    "pandas": lambda folder, name, rows: pd.DataFrame(rows),
    "polars": lambda folder, name, rows: pl.DataFrame(rows),
    "jsonl": lambda folder, name, rows: lines(folder / f"{name}.jsonl", rows),
    "jsonl.gz": lambda folder, name, rows: lines(folder / f"{name}.jsonl.gz", rows, gzip.open),
    "csv": lambda folder, name, rows: as_csv(folder / f"{name}.csv", rows),
    "csv.gz": lambda folder, name, rows: as_csv(folder / f"{name}.csv.gz", rows, gzip.open),
    "parquet": lambda folder, name, rows: (
        pl.DataFrame(rows).write_parquet(folder / f"{name}.parquet") or folder / f"{name}.parquet"
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_two_tables_and_one_give_equal_logs(form, tmp_path):
    made = FORMS[form]
    is_the_log(read_requests(made(tmp_path, "requests", REQUESTS), made(tmp_path, "outcomes", OUTCOMES)))
    is_the_log(read_requests(made(tmp_path, "flat", FLAT)))


def test_an_answer_without_its_reward_counts_as_1_and_is_counted(caplog):
    """Before: 1, next to rewards in cents, without a word."""
    answers = [{"request": "r1", "item": "a", "event": "buy", "reward": 250.0},
               {"request": "r2", "item": "c", "event": "buy", "reward": None}]  # fmt: skip
    log = read_requests(pd.DataFrame(REQUESTS), pd.DataFrame(answers))
    assert log.reward().tolist() == [250, 0, 0, 1, 0] and "1 of 2 answers state no reward" in caplog.text
    caplog.clear()
    read_requests(pd.DataFrame(REQUESTS), pd.DataFrame(answers)[["request", "item", "event"]])
    assert caplog.text == "", "where none states one, all are worth the same"


def test_candidates_may_be_objects_and_items_a_table():
    rows = [{**{name: value for name, value in one.items() if name not in ("scores", "price", "candidates")},
             "candidates": [{"item": item, "score": score}
                            for item, score in zip(one["candidates"], one["scores"], strict=True)]}
            for one in REQUESTS]  # fmt: skip
    items = pd.DataFrame({"item": ["c", "b", "a"], "price": [5.0, 4.0, 3.0]})
    is_the_log(read_requests(pl.DataFrame(rows), pd.DataFrame(OUTCOMES), items=items))


def test_other_names_and_numeric_ids():
    rows = [{"qid": 7, "candidates": [1, 2], "scores": [1, 2], "shown": [2]}]
    log = read_requests(pl.DataFrame(rows), pd.DataFrame({"qid": [7.0], "item": [2.0]}), columns={"request": "qid"})
    assert log.ids.tolist() == ["7"]
    assert log.items[log.item].tolist() == ["1", "2"]
    assert log.reward().tolist() == [0, 1]
    assert log.answers.events == ("answer",)


def test_requests_of_nobody_known_are_each_of_a_person_of_their_own():
    rows = [{**REQUESTS[0], "request": f"r{number}", "person": person}
            for number, person in enumerate(["ann", None, "bob", None, "ann"])]  # fmt: skip
    whose = read_requests(pd.DataFrame(rows)).clusters
    assert len(set(whose)) == 4 and whose[0] == whose[4]
    numbered = read_requests(
        pd.DataFrame([{**row, "person": code} for row, code in zip(rows, [7, 8, 7, 9, 7], strict=True)])
    )
    assert len(set(numbered.clusters)) == 3


def test_a_missing_weight_stands_for_one_request():
    weights = read_requests(pd.DataFrame([{**REQUESTS[0], "weight": 4.0}, {**REQUESTS[1], "weight": None}])).weight
    assert weights.tolist() == [4, 1]


def test_a_reward_is_that_of_all_its_answers():
    log = read_requests(pl.DataFrame(REQUESTS), pl.DataFrame(OUTCOMES))
    assert set(log.answers.events) == {"click", "buy"}
    assert log.reward()[0] == sum(each["reward"] for each in OUTCOMES if each["item"] == log.items[log.item[0]])


def test_taken_keeps_the_requests_that_it_names():
    log = read_requests(pl.DataFrame(REQUESTS), pl.DataFrame(OUTCOMES))
    later = log.taken(np.array([1, 0]))
    assert later.ids.tolist() == ["r2", "r1"]
    assert later.items[later.item].tolist() == ["c", "a", "a", "b", "c"]
    assert later.reward().tolist() == pytest.approx([0, 0, 1.2, 0, 0])
    only = log.taken(np.array([1]))
    assert len(only.answers.row) == 0
    assert only.context["day"].values.tolist() == [log.context["day"].values[1]]


def test_padded_blocks_hold_every_candidate_once():
    log = read_requests(pl.DataFrame(REQUESTS), pl.DataFrame(OUTCOMES))
    found = np.concatenate([block.rows[block.real] for block in log.padded()])
    assert sorted(found) == list(range(5))
    (block,) = log.padded()
    assert block.requests.tolist() == [1, 0]
    assert block.of(log.score, -9).tolist() == [[1.5, 1.0, -9], [0.5, 2.0, 1.0]]


def changed(**changes):
    return [REQUESTS[0] | changes, REQUESTS[1]]


@pytest.mark.parametrize(("rows", "says"), [
    (changed(scores=[0.5, 2.0, float("nan")]), "request 'r1' has a score that is missing or not finite.*Leave"),
    (changed(scores=[0.5, 2.0, float("inf")]), "request 'r1' has a score that is missing or not finite"),
    (changed(scores=[0.5, 0.5, 0.5]), "request 'r1' has scores that are all equal"),
    (changed(scores=[0.5, 2.0]), "request 'r1' has 3 candidates and 2 scores"),
    (changed(candidates=["a", "b", "b"]), "request 'r1' names a candidate twice"),
    (changed(candidates=[], scores=[], price=[], shown=[]), "request 'r1' has no candidates"),
    (changed(shown=["z"]), "request 'r1' shows 'z', which is none of its candidates"),
    (changed(shown=["a", "a"]), "request 'r1' shows an item twice"),
    (changed(shown=[]), "request 'r1' shows nothing"),
    (changed(request="r2"), "request 'r2' is logged twice"),
    (changed(temperature=-1.0), "request 'r1' has a temperature that is missing or below 0"),
    ([one | {"pinned": 3} for one in REQUESTS], "request 'r1'.*more pinned places than places"),
    (changed(temperature=None), "request 'r1' has a temperature that is missing or below 0"),
    ([one | {"pinned": -1} for one in REQUESTS], "request 'r1'.*fewer than 0 pinned places"),
    ([one | {"weight": 0.0} for one in REQUESTS], "request 'r1'.*a weight that is not above 0"),
    (changed(request=None), "'request' is missing in row 1"),
    ([{**one, "probabilities": [0.2] * len(one["candidates"])} for one in REQUESTS], "'r1'.*do not sum to 1"),
    ([{"request": "r1", "candidates": ["a"], "scores": [1.0]}], "no column 'shown'"),
    ([{"request": "r1", "scores": [1.0]}], "neither 'candidates'"),
    ([{"candidates": ["a"]}], "no column 'request'.*--columns|no column 'request'"),
])  # fmt: skip
def test_what_cannot_be_right_names_the_request_and_the_remedy(rows, says):
    with pytest.raises(DataError, match=says):
        read_requests(pl.DataFrame(rows))


@pytest.mark.parametrize(("answer", "says"), [
    ({"request": "r9", "item": "a"}, "names request 'r9' and item 'a', but the request is not in the log"),
    ({"request": "r1", "item": "z"}, "names request 'r1' and item 'z', but the request has no such candidate"),
    ({"request": "r1", "item": "c"}, "request 'r1' has an answer to an item that was not shown"),
    ({"request": "r1", "item": "a", "reward": float("inf")}, "request 'r1' has a reward that is not a finite number"),
])  # fmt: skip
def test_answers_that_belong_nowhere_are_named(answer, says):
    with pytest.raises(DataError, match=says):
        read_requests(pl.DataFrame(REQUESTS), pl.DataFrame([answer]))


def test_a_column_without_any_value_is_left_out(tmp_path):
    rows = [
        {"request": f"r{one}", "candidates": ["a", "b"], "scores": [1.0, 2.0], "stock": [None, None], "shown": ["b"]}
        for one in range(50)
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "log.parquet")
    for given in (tmp_path / "log.jsonl", tmp_path / "log.parquet", pa.Table.from_pylist(rows)):
        found = read_requests(given)
        assert len(found) == 50 and "stock" not in found.columns


@pytest.mark.parametrize(("places", "says"), [([0, 1, None], None), ([1, 3, None], "places that are not 1, 2, 3"),
                                              ([1, 1, None], "places that are not 1, 2, 3")])  # fmt: skip
def test_places_of_the_flat_form_give_the_shown_list(places, says):
    rows = [{"request": "r", "item": item, "place": place} for item, place in zip("abc", places, strict=True)]
    if says is None:
        assert read_requests(pl.DataFrame(rows)).place.tolist() == [0, 1, 0]  # a 0 is no place
    else:
        with pytest.raises(DataError, match=says):
            read_requests(pl.DataFrame(rows))


@pytest.mark.parametrize("name", ["log.parquet", "log.jsonl", "log.csv.gz", "log.txt", "nothing.jsonl"])
def test_damaged_files_are_refused(name, tmp_path):
    if not name.startswith("nothing"):
        (tmp_path / name).write_bytes(b'{"request": [1,\x00 {"')
    with pytest.raises(DataError, match=name):
        read_requests(tmp_path / name)
