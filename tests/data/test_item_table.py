"""The item table of `prepare`: guessed kinds, clear errors, items without events, newer tables."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from localpolicy.data.item_features import ItemFeatures, kinds_of, learnt_columns
from localpolicy.data.item_table import read_item_table
from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, DataError
from localpolicy.training.train import train


def log_of(sequences: int = 100, items: int = 8) -> pa.Table:
    draw = np.random.default_rng(0)
    return pa.table(
        {
            "sequence_id": np.repeat(np.arange(sequences), 4),
            "item_id": 10 + draw.integers(0, items, 4 * sequences),
            "timestamp": np.tile(np.arange(4), sequences) * 1000,
        }
    )


TABLE: dict[str, list[Any]] = {
    "item_id": [*range(10, 18), 90],
    "brand": ["a", "b", "a", None, "b", "a", "b", "c", "a"],
    "genres": ["x|y", "x", "y|z", None, "x|z", "y", "z", "x", "y"],
    "price": [1.0, 2.5, None, 4.0, 100.0, 3.0, 2.0, 1.5, 2.0],
    "title": [f"thing {n}" for n in range(9)],
    "text": [[0.1 * n, 1.0 - n] for n in range(9)],
    "stock": [5] * 9,
    "shop_id": [1, 2, 1, 2, 1, 2, 1, 2, 1],
}


def prepared(tmp_path: Path, items: Any, **settings: Any) -> Prepared:
    return prepare(log_of(), out=tmp_path / "data", items=items, event="click", force=True, **settings)


def test_kinds_are_guessed_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="localpolicy.data.prepare"):
        data = prepared(tmp_path, pa.table({**TABLE, "text": pa.array(TABLE["text"], pa.list_(pa.float32()))}))
    assert kinds_of(data.catalogue) == {
        "brand": "category",
        "genres": "categories",
        "price": "number",
        "title": "name",
        "text": "vector",
        "shop_id": "category",
    }
    assert "stock (the same for every item)" in caplog.text
    assert "title" not in learnt_columns(data.catalogue)


@pytest.mark.parametrize("form", ["csv", "parquet", "pandas"])
def test_files_and_frames_say_the_same(tmp_path: Path, form: str) -> None:
    table = pa.table({name: TABLE[name] for name in ("item_id", "brand", "genres", "price")})
    given: Any = tmp_path / f"items.{form}"
    if form == "csv":
        given.write_text(
            "item_id,brand,genres,price\n"
            + "\n".join(",".join("" if v is None else str(v) for v in row.values()) for row in table.to_pylist())
        )
    elif form == "parquet":
        pq.write_table(table, given)
    else:
        given = table.to_pandas()
    data = prepared(tmp_path, given)
    assert data.catalogue.select(["brand", "genres", "price"]).to_pylist()[:3] == [
        {
            "brand": TABLE["brand"][item - 10],
            "genres": TABLE["genres"][item - 10].split("|") if TABLE["genres"][item - 10] else None,
            "price": TABLE["price"][item - 10],
        }
        for item in data.catalogue["item_id"].to_pylist()[:3]
    ]


def test_items_without_events_come_last_in_the_catalogue(tmp_path: Path) -> None:
    plain = prepare(log_of(), out=tmp_path / "plain", event="click")
    data = prepared(tmp_path, pa.table({"item_id": [95, *range(10, 18), 90], "brand": list("aabbaabbab")}))
    ids = data.catalogue["item_id"].to_pylist()
    assert ids[:-2] == plain.catalogue["item_id"].to_pylist()
    assert ids[-2:] == [90, 95]
    assert data.catalogue["count"].to_pylist()[-2:] == [0, 0]
    assert not data.known_items[-2:].any()
    assert np.array_equal(data["train"].arrays["item"], plain["train"].arrays["item"])


def test_a_log_without_a_table_is_prepared_as_before(tmp_path: Path) -> None:
    data = prepare(log_of(), out=tmp_path / "plain", event="click")
    assert data.catalogue.column_names == ["index", "item_id", "count"]


@pytest.mark.parametrize(
    ("change", "settings", "said"),
    [
        ({"item_id": [10, 10, *range(12, 19)]}, {}, "1 ids have several rows (first 10, 2 times)"),
        ({"item_id": [None, *range(11, 19)]}, {}, "1 rows have no item id (first at row 1)"),
        ({"item_id": [f"sku-{n}" for n in range(9)]}, {}, "item ids are whole numbers in the log and string here"),
        ({"item_id": [*range(1000, 1009)]}, {}, "knows none of the log's 8 items"),
        ({"text": [[1.0]] + [[1.0, 2.0]] * 8}, {}, "vectors of several lengths: 1 (1 items), 2 (8 items)"),
        ({"text": [[1.0, float("nan")]] + [[1.0, 2.0]] * 8}, {}, "1 numbers in its vectors are missing or not finite"),
        ({"price": [float("inf"), -1e301] + [1.0] * 7}, {}, "2 numbers are infinite or beyond 1e+300"),
        ({"text": [[1.0, 2.0]] * 8 + [None]}, {"item_columns": "text=vector"}, "has the same value for every item"),
        ({"count": [1, 2, 3] * 3, "count_of_table": [1] * 9}, {}, "has both 'count', which is kept as"),
        ({}, {"item_columns": "stock=category"}, "has the same value for every item"),
        ({}, {"item_columns": "brnad=category"}, "no column 'brnad' (did you mean 'brand'?)"),
        ({}, {"item_columns": "brand=colour"}, "'brand' cannot be 'colour'"),
        ({}, {"item_columns": "brand=number"}, "not numbers"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, change: dict, settings: dict, said: str) -> None:
    table = {**TABLE, "text": pa.array(TABLE["text"], pa.list_(pa.float64())), **change}
    if "text" in change:
        table["text"] = pa.array(change["text"], pa.list_(pa.float64()))
    with pytest.raises((DataError, ConfigError), match=".*") as error:
        prepared(tmp_path, pa.table(table), **settings)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("texts", "lists"),
    [
        (["a||b", " b |", "|", None], [["a", "b"], ["b"], [], None]),
        (['["a, c", "b"]', '["b"]', "[]", None], [["a, c", "b"], ["b"], [], None]),
        (["['a', 'b']", "['b']", "[]", None], [["a", "b"], ["b"], [], None]),
        (["[1, 2.5]", "[3, 4]", "[5, 6]", None], [[1.0, 2.5], [3.0, 4.0], [5.0, 6.0], None]),
    ],
)
def test_texts_that_hold_lists_are_parsed(tmp_path: Path, texts: list, lists: list) -> None:
    data = prepared(tmp_path, pa.table({"item_id": [10, 11, 12, 13], "tags": texts}))
    found = dict(zip(data.catalogue["item_id"].to_pylist(), data.catalogue["tags"].to_pylist(), strict=True))
    assert [found[item] for item in (10, 11, 12, 13)] == lists


def test_item_frames_may_have_any_index_and_odd_types(tmp_path: Path) -> None:
    frame = pd.DataFrame({"item_id": [*range(10, 18)], "brand": list("aabbaabb"), "same": [[1.0, 2.0]] * 8})
    odd = frame.assign(lasts=pd.to_timedelta(range(8), unit="h"), empty=[[]] * 8)
    cut = pd.concat([odd.iloc[4:], odd.iloc[:4]])
    assert kinds_of(prepared(tmp_path, cut).catalogue) == {"brand": "category", "lasts": "category"}
    by_id = frame[["item_id", "brand"]].set_index("item_id")
    assert kinds_of(prepared(tmp_path, by_id).catalogue) == {"brand": "category"}


@pytest.mark.parametrize(
    ("given", "said"),
    [(5, "got a value of type int"), ([{"item_id": 1}], "got a value of type list"), (".", "is a folder"),
     ("none.csv", "does not exist"), ("items.dat", "cannot be read as an item table")],
)  # fmt: skip
def test_what_is_no_table_is_refused(tmp_path: Path, given: Any, said: str) -> None:
    (tmp_path / "items.dat").write_text("10::a\n11::b\n")
    with pytest.raises(DataError, match=said):
        prepared(tmp_path, tmp_path / given if isinstance(given, str) else given)


def test_blanks_around_column_names_are_no_part_of_them(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("item_id , brand\n10,a\n11,b\n")
    assert kinds_of(prepared(tmp_path, tmp_path / "items.csv").catalogue) == {"brand": "category"}


def test_a_category_of_too_many_values_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localpolicy.data.item_columns.MOST_VALUES", 2)
    with pytest.raises(DataError, match="'brand' has 3 values for 9 items; a category has at most 2"):
        prepared(tmp_path, pa.table({name: TABLE[name] for name in ("item_id", "brand")}))


def test_append_takes_a_newer_table_and_says_what_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = prepared(tmp_path, pa.table({"item_id": [*range(10, 18)], "brand": list("aabbaabb")}))
    more = pa.table({"sequence_id": [1000, 1000, 1000], "item_id": [10, 11, 12], "timestamp": [5000, 6000, 7000]})
    newer = pa.table({"item_id": [10, 11, 50], "brand": ["a", "z", "b"]})
    with caplog.at_level(logging.INFO, logger="localpolicy.data.prepare"):
        data = prepare(more, out=tmp_path / "more", append=first, items=newer)
    assert "1 new items, 1 with other values, 6 that it no longer names" in caplog.text
    brands = dict(zip(data.catalogue["item_id"].to_pylist(), data.catalogue["brand"].to_pylist(), strict=True))
    assert brands == {10: "a", 11: "z", 12: "b", 13: "b", 14: "a", 15: "a", 16: "b", 17: "b", 50: "b"}
    kept = prepare(more, out=tmp_path / "kept", append=first)
    assert kinds_of(kept.catalogue) == {"brand": "category"}
    # A day's table may be one row, or have nothing to say: the kinds are those of the table before.
    for day, brand in enumerate((["a"], pa.nulls(1, pa.null()), [3.5])):
        row = pa.table({"item_id": [60], "brand": brand})
        today = prepare(more, out=tmp_path / f"day-{day}", append=first, items=row)
        assert kinds_of(today.catalogue) == {"brand": "category"}
        assert today.catalogue["brand"].to_pylist()[-1] == ("a", None, "3.5")[day]
    vectors = [pa.table({"item_id": [10, 11, 12], "text": pa.array([[1.0] * n, [2.0] * n, [0.5] * n])}) for n in (2, 3)]
    first = prepared(tmp_path, vectors[0])
    with pytest.raises(DataError, match="'text' holds vectors of 3 numbers; earlier ones have 2"):
        prepare(more, out=tmp_path / "longer", append=first, items=vectors[1])
    with pytest.raises(ConfigError, match="text carries no information: all items of the training split have the same"):
        alike = pa.table({"item_id": [*range(10, 18), 90], "text": pa.array([[1.0, 2.0]] * 8 + [[3.0, 4.0]])})
        train(prepared(tmp_path, alike), "mle", out=tmp_path / "run", features=["text"], epochs=1, width=4)


def test_features_are_what_their_kinds_say(tmp_path: Path) -> None:
    data = prepared(tmp_path, pa.table({name: TABLE[name] for name in ("item_id", "brand", "genres", "price")}))
    features = ItemFeatures.fit(data.catalogue, ["brand", "genres", "price"], data.known_items)
    encoded, keys = features.encode(data.catalogue), features.keys()
    assert encoded.n_features == len(keys)
    rows = {
        item: {keys[i]: round(float(w), 6) for i, w in zip(
            encoded.row[encoded.offsets[n] : encoded.offsets[n + 1]],
            encoded.weight[encoded.offsets[n] : encoded.offsets[n + 1]], strict=True,
        ) if w}
        for n, item in enumerate(data.catalogue["item_id"].to_pylist())
    }  # fmt: skip
    assert rows[10]["brand|a"] == 1 and rows[10]["genres|x"] == rows[10]["genres|y"] == 0.5
    assert rows[13]["brand|\0missing"] == 1 and rows[13]["genres|\0missing"] == 1
    assert rows[17]["brand|\0other"] == 1  # one item alone has it
    assert rows[12]["price|\0missing"] == 1
    assert rows[14][keys[-1]] == 1  # the largest number
    for row in rows.values():
        for name in ("brand", "genres", "price"):
            assert sum(w for key, w in row.items() if key.startswith(name)) == pytest.approx(1)


def test_vectors_are_whitened_by_the_known_items(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    vectors = draw.normal(size=(200, 3)) @ np.array([[5.0, 0, 0], [4.9, 0.2, 0], [0, 0, 0.01]])
    table = pa.table({"item_id": np.arange(10, 210), "text": pa.array(vectors.tolist(), pa.list_(pa.float32()))})
    data = prepare(log_of(400, 200), out=tmp_path / "data", items=table, event="click")
    assert data.known_items.all()
    dense = ItemFeatures.fit(data.catalogue, ["text"], data.known_items).encode(data.catalogue).dense
    spread = dense.T @ dense / len(dense) * dense.shape[1]
    assert np.allclose(spread, np.eye(len(spread)), atol=1e-3)


def test_ids_of_a_text_file_are_those_of_the_log(tmp_path: Path) -> None:
    """Before: 007 of a CSV was 7, which no log of texts has; 14.0 is 14, in a table as in a log."""
    log = log_of()
    codes = [f"{item:05d}" for item in log["item_id"].to_pylist()]
    padded = pa.table({**{name: log[name] for name in log.column_names}, "item_id": codes})
    for rows, written in ((padded, "{:05d}"), (log, "{}.0")):
        items = "".join(f"{written.format(item)},{'ab'[item % 2]}\n" for item in range(10, 18))
        (tmp_path / "items.csv").write_text(f"item_id,brand\n{items}")
        data = prepare(rows, out=tmp_path / "data", event="click", items=tmp_path / "items.csv", force=True)
        assert data.n_items == len(set(rows["item_id"].to_pylist())), "none is added"
        assert None not in data.catalogue["brand"].to_pylist()[:8]


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("column", "values", "kind"),
    [("code", ["01", "1"], "category"), ("zip", ["01234", "11234"], "category"), ("month", ["01", "12"], "category"),
     ("signed", ["+07", "7"], "category")],
)  # fmt: skip
def test_codes_keep_their_zeros_in_either_form(tmp_path: Path, form: str, column: str, values: list, kind: str) -> None:
    ids = [str(number) for number in range(10, 50)]
    table = pa.table({"item_id": ids, column: [values[number % 2] for number in range(40)]})
    pq.write_table(table, tmp_path / "items.parquet")
    lines = [f"{item},{value}" for item, value in zip(ids, table[column].to_pylist(), strict=True)]
    (tmp_path / "items.csv").write_text("\n".join([f"item_id,{column}", *lines]) + "\n")
    found = read_item_table(tmp_path / f"items.{form}", kinds={}, id_column=None, integer_ids=True)
    assert found.kinds == {column: kind} and found.table[column].to_pylist() == table[column].to_pylist()


def test_numbers_of_a_text_file_stay_numbers(tmp_path: Path) -> None:
    lines = [f"{item},{item / 4},{-item},0.{item}" for item in range(10, 50)]
    (tmp_path / "items.csv").write_text("\n".join(["item_id,price,size,share", *lines]) + "\n")
    found = read_item_table(tmp_path / "items.csv", kinds={}, id_column=None, integer_ids=True)
    assert set(found.kinds.values()) == {"number"} and found.table["price"][0].as_py() == 2.5


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("first", ["0100", "+100", "100.5"])
def test_an_id_that_is_a_text_is_none_of_a_log_of_numbers(tmp_path: Path, form: str, first: str) -> None:
    table = pa.table({"item_id": [first, "101"], "brand": ["a", "b"]})
    pq.write_table(table, tmp_path / "items.parquet")
    (tmp_path / "items.csv").write_text(f"item_id,brand\n{first},a\n101,b\n")
    with pytest.raises(DataError, match="cannot be matched"):
        read_item_table(tmp_path / f"items.{form}", kinds={}, id_column=None, integer_ids=True)


@pytest.mark.parametrize(("long", "refused"), [(100, False), (100_000, True)])
def test_a_small_file_that_unfolds_to_gigabytes_is_refused_on_the_way(tmp_path: Path, long: int, refused: bool) -> None:
    brands = pa.DictionaryArray.from_arrays(pa.array(np.arange(20_000) % 2, pa.int8()), ["a" * long, "b" * long])
    pq.write_table(pa.table({"item_id": np.arange(20_000), "brand": brands}), tmp_path / "items.parquet")
    assert (tmp_path / "items.parquet").stat().st_size < 500_000
    told = pytest.raises(DataError, match="unfolds to more than") if refused else nullcontext()
    with told:
        found = read_item_table(tmp_path / "items.parquet", kinds={}, id_column=None, integer_ids=True)
        assert found.kinds == {"brand": "category"} and not refused
