"""Ids of any type, near-duplicates, duplicate rows, truth values as events, times as objects, splits by a column."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from raw_logs import random_log

from localpolicy.data.prepare import prepare
from localpolicy.errors import ConfigError, DataError

ROWS = random_log()


def frame(**changed) -> pandas.DataFrame:
    """The usual log with some columns replaced."""
    made = pandas.DataFrame(ROWS)
    return made.assign(**{name: [change(value) for value in made[name]] for name, change in changed.items()})


@pytest.mark.parametrize(
    ("change", "first"),
    [
        (lambda item: UUID(int=int(item)), lambda item: str(UUID(int=int(item)))),
        (lambda item: bool(item % 2), lambda item: "true" if item % 2 else "false"),
        (lambda item: pandas.Timestamp(int(item), unit="D"), lambda item: str(pandas.Timestamp(int(item), unit="D"))),
    ],
    ids=["UUID", "bool", "Timestamp"],
)
def test_ids_of_any_type_are_read_as_they_are_written(tmp_path, change, first):
    data = prepare(frame(item_id=change), out=tmp_path / "data")
    assert set(data.catalogue["item_id"].to_pylist()) == {first(row["item_id"]) for row in ROWS}


def test_ids_of_eight_bytes_without_a_sign_are_refused_for_a_reason_that_is_true(tmp_path):
    wide = frame(item_id=lambda item: 2**63 + int(item)).astype({"item_id": np.uint64})
    with pytest.raises(DataError, match='item_id does not fit 8 bytes with a sign: read ids as text .ids="text".'):
        prepare(wide, out=tmp_path / "data")
    data = prepare(wide, out=tmp_path / "data", ids="text")
    assert str(2**63 + ROWS[0]["item_id"]) in data.catalogue["item_id"].to_pylist()
    small = frame().astype({"item_id": np.uint64})
    assert prepare(small, out=tmp_path / "small").digest == prepare(frame(), out=tmp_path / "plain").digest


def stored_everywhere(rows: pandas.DataFrame, folder) -> dict[str, object]:
    """The same rows as a frame, and as files of each format."""
    rows.to_csv(folder / "log.csv", index=False)
    rows.to_parquet(folder / "log.parquet", index=False)
    return {"frame": rows, "csv": folder / "log.csv", "parquet": folder / "log.parquet"}


@pytest.mark.parametrize(
    "change",
    [
        lambda item: 10**18 + int(item),
        lambda item: 2**63 - 1 - int(item),
        lambda item: -(2**63) + int(item),
        float,  # what pandas makes of integers where some are missing
        lambda item: Decimal(10**17 + int(item)),
    ],
    ids=["19 digits", "largest", "smallest", "float", "decimal"],
)
def test_whole_numbers_are_one_kind_of_id_however_they_are_stored(tmp_path, change):
    rows = frame(item_id=change, sequence_id=change)
    for stored, log in stored_everywhere(rows, tmp_path).items():
        data = prepare(log, out=tmp_path / f"{stored}.data", force=True)
        assert set(data.catalogue["item_id"].to_pylist()) == {int(change(row["item_id"])) for row in ROWS}, stored
        people = {who for name in ("train", "validation", "test") for who in data.sequence_ids(name).to_pylist()}
        assert people == {int(change(row["sequence_id"])) for row in ROWS}, stored


def test_a_log_in_two_files_has_one_item_for_7_and_7_0(tmp_path):
    half, late = len(ROWS) // 2, frame(item_id=float)
    frame().iloc[:half].to_csv(tmp_path / "1.csv", index=False)
    late.iloc[half:].to_csv(tmp_path / "2.csv", index=False)
    late.iloc[half:].to_parquet(tmp_path / "2.parquet", index=False)
    for name in ("2.csv", "2.parquet"):
        data = prepare("events", [tmp_path / "1.csv", tmp_path / name], out=tmp_path / f"{name}.data")
        assert set(data.catalogue["item_id"].to_pylist()) == {row["item_id"] for row in ROWS}


@pytest.mark.parametrize("odd", ["007", "14.5", "A7"])
def test_one_text_among_the_ids_makes_all_of_them_texts(tmp_path, odd, caplog):
    rows = frame(item_id=str)
    rows.loc[3, "item_id"], rows.loc[4, "item_id"] = odd, f"{rows.loc[5, 'item_id']}.0"
    for stored, log in stored_everywhere(rows, tmp_path).items():
        with caplog.at_level(logging.WARNING, logger="localpolicy"):
            data = prepare(log, out=tmp_path / f"{stored}.data")
        assert set(data.catalogue["item_id"].to_pylist()) == set(rows["item_id"]), stored
        assert sum("'.0' alone" in message for message in caplog.messages) == 1  # 7 and 7.0 stay apart, with a warning
        caplog.clear()


def test_floats_that_stand_for_several_ids_or_none_are_refused(tmp_path):
    for wrong, reason in ((2.0**60, "beyond 2.53"), (7.5, "not a whole number"), (np.nan, "is empty")):
        rows = pa.table({name: [row[name] for row in ROWS] for name in ROWS[0]})
        values = pa.array([wrong, *(float(row["item_id"]) for row in ROWS[1:])])
        pq.write_table(rows.set_column(rows.column_names.index("item_id"), "item_id", values), tmp_path / "log.parquet")
        with pytest.raises(DataError, match=f"row 1: item_id .*{reason}"):
            prepare(tmp_path / "log.parquet", out=tmp_path / "data")


def test_a_float_is_the_text_of_its_integer_where_ids_are_joined_or_texts(tmp_path):
    for made in (frame(), frame(item_id=float, sequence_id=float)):
        data = prepare(made, out=tmp_path / "text", ids="text", force=True)
        assert set(data.catalogue["item_id"].to_pylist()) == {str(row["item_id"]) for row in ROWS}
        columns = {"item_id": "item_id+event"}
        data = prepare(made, out=tmp_path / "joined", columns=columns, force=True)
        assert set(data.catalogue["item_id"].to_pylist()) == {f"{row['item_id']}+{row['event']}" for row in ROWS}


def test_prepare_warns_of_ids_that_differ_in_spaces(tmp_path, caplog):
    rows = frame(item_id=lambda item: f"a{item}")
    rows.loc[3, "item_id"] = " " + rows.loc[3, "item_id"]
    with caplog.at_level(logging.WARNING, logger="localpolicy"):
        prepare(rows, out=tmp_path / "data")
    said = [message for message in caplog.messages if "spaces, capitals" in message]
    assert len(said) == 1 and said[0].startswith("1 item ids") and repr(rows.loc[3, "item_id"]) in said[0]
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="localpolicy"):
        prepare(frame(item_id=lambda item: f"a{item}"), out=tmp_path / "clean")
    assert not [message for message in caplog.messages if "spaces, capitals" in message]


def test_prepare_warns_of_duplicate_rows(tmp_path, caplog):
    rows = pandas.concat([frame(), frame().iloc[[5, 9]]])
    with caplog.at_level(logging.WARNING, logger="localpolicy"):
        prepare(rows, out=tmp_path / "data")
    before = sum(frame().duplicated(["sequence_id", "item_id", "event", "timestamp"]))
    said = next(message for message in caplog.messages if "equal the one before" in message)
    assert said.startswith(f"{before + 2} events") and 'duplicates="exact" drops them' in said
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="localpolicy"):
        prepare(rows, out=tmp_path / "none", duplicates="exact")
    assert not [message for message in caplog.messages if "equal the one before" in message]


def test_truth_values_are_events(tmp_path):
    data = prepare(frame(event=lambda event: event == "purchase"), out=tmp_path / "data", rewards={True: 1, False: 0.2})
    assert data.manifest["rewards"] == {"false": 0.2, "true": 1.0}
    named = prepare(
        frame(event=lambda event: event == "purchase"),
        out=tmp_path / "named",
        rename={True: "purchase", False: "click"},
    )
    assert named.manifest["rewards"] == {"click": 0.2, "purchase": 1.0}


def test_splits_begin_at_times_as_objects(tmp_path):
    times = sorted(frame().groupby("sequence_id").timestamp.max())
    cuts = [pandas.Timestamp(times[len(times) * share // 10], unit="ms") for share in (6, 8)]
    expected = prepare(frame(), out=tmp_path / "text", split="time", split_times=[str(cut) for cut in cuts])
    for number, kind in enumerate((pandas.Timestamp, lambda cut: cut.to_pydatetime(), lambda cut: cut.to_datetime64())):
        made = prepare(frame(), out=tmp_path / str(number), split="time", split_times=[kind(cut) for cut in cuts])
        assert made.digest == expected.digest


def test_zones_of_frames_are_respected(tmp_path):
    """The same instants, written in two zones in turn."""
    zones = (UTC, timezone(timedelta(hours=9)))
    instants = [datetime.fromtimestamp(row["timestamp"] / 1000, zones[number % 2]) for number, row in enumerate(ROWS)]
    rows = frame().assign(timestamp=pandas.Series(instants, dtype=object))
    assert prepare(rows, out=tmp_path / "zones").digest == prepare(frame(), out=tmp_path / "plain").digest


def test_a_column_says_the_split(tmp_path):
    """Splits follow the column; without a validation word a tenth of train; a sequence in two splits is refused."""
    ids = sorted({row["sequence_id"] for row in ROWS})
    fold = {who: ("Train", "valid", "test")[number % 3] for number, who in enumerate(ids)}
    rows = frame().assign(fold=[fold[row["sequence_id"]] for row in ROWS])
    data = prepare(rows, out=tmp_path / "data", split="fold")
    for name, word in (("train", "Train"), ("validation", "valid"), ("test", "test")):
        assert set(data.sequence_ids(name).to_pylist()) == {who for who in ids if fold[who] == word}
    two = rows.assign(fold=rows.fold.replace("valid", "train"))
    half = prepare(two, out=tmp_path / "two", split="fold")
    assert set(half.sequence_ids("test").to_pylist()) == set(data.sequence_ids("test").to_pylist())
    assert len(half["validation"]) >= 3
    torn = rows.assign(fold=["train", "test"] * (len(rows) // 2))
    with pytest.raises(DataError, match="is in two splits by the column 'fold'"):
        prepare(torn, out=tmp_path / "torn", split="fold")
    with pytest.raises(ConfigError, match="split: expected .* a column of the log, got 'flod'.*did you mean 'fold'"):
        prepare(rows, out=tmp_path / "no", split="flod")
    with pytest.raises(DataError, match="says neither train nor validation nor test"):
        prepare(rows.assign(fold="x"), out=tmp_path / "no", split="fold")


def test_a_split_by_time_of_a_log_of_one_day_says_what_to_do(tmp_path):
    with pytest.raises(DataError, match='train split has 0 sequences.*split="random"'):
        prepare(frame(timestamp=lambda _: 86_400_000), out=tmp_path / "data", split="time")
