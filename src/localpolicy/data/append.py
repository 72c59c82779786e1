"""Appending of today's log to yesterday's data set: all rows of both are prepared together, as if they had come at
once.

A data set keeps every usable row of its log, those that the filters dropped too (`log.parquet`). So a filter, a cut or
an item's index is decided on all rows, and a month appended day by day is the month prepared at once, to the byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from localpolicy.data.config import PrepareConfig
from localpolicy.data.engines import Engine
from localpolicy.data.event_codes import EventCodes
from localpolicy.data.growing_files import ROWS_PER_SMALL_GROUP, ParquetFile
from localpolicy.data.log_schema import ROW, LogSchema
from localpolicy.data.sources import SourceTable, parquet_schema
from localpolicy.data.store import LOG, Prepared
from localpolicy.errors import ConfigError, DataError
from localpolicy.runtime.files import sha256

# How today's file is read may differ from yesterday's; what is done with its rows may not.
READING = {
    "columns", "names", "delimiter", "event", "rename", "drop_events", "time_unit", "ids", "since", "days",
    "item_columns",
}  # fmt: skip


def continued(data: Prepared, changes: Mapping[str, Any]) -> PrepareConfig:
    """Settings of an earlier data set with these changes; ConfigError for a change that appending does not allow."""
    if "simulate" in data.manifest["settings"]:
        raise ConfigError(
            f"{data.path} was simulated as a prepared data set, which no log can continue. Simulate it without "
            "--prepared, then prepare it."
        )
    before = data.manifest.get("asked", data.manifest["settings"])
    earlier, asked = PrepareConfig.parse(before), PrepareConfig.parse({**before, **changes})
    for name in changes:
        if name not in READING and getattr(asked, name) != getattr(earlier, name):
            raise ConfigError(
                f"append keeps the earlier settings: {name} is {getattr(earlier, name)!r} in {data.path}, "
                f"not {getattr(asked, name)!r}. Leave it out, or prepare both logs again."
            )
    if twice := set(asked.rename) & set(data.events):
        raise ConfigError(f"append cannot rename '{min(twice)}': the earlier data set has such events already.")
    return asked


def write_log(engine: Engine, path: Path, fields: Sequence[str], schema: LogSchema, codes: EventCodes) -> None:
    """Write every usable row, in the log's ids and our event names, in the order of the log."""
    kinds = {"sequence_id": schema.sequence_id, "item_id": schema.item_id}
    wide = {name: f"CAST({name} AS {'BIGINT' if kind == 'integer' else 'STRING'})" for name, kind in kinds.items()}
    columns = ", ".join(f"{wide.get(name, name)} AS {name}" for name in fields if name != "position")
    order = " ORDER BY position" if "position" in fields else ""
    file = ParquetFile(path, compression="zstd", group=ROWS_PER_SMALL_GROUP)
    try:
        for batch in engine.batches(f"SELECT {columns} FROM usable{order}"):
            file.append(_readable(batch, codes))
    finally:
        file.close()


def _readable(batch: pa.RecordBatch, codes: EventCodes) -> pa.Table:
    names = {"event": codes.events, "past_event": codes.events, "policy": codes.policies}
    columns: dict[str, pa.Array] = {}
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        if name in names:
            numbers = values.to_numpy(zero_copy_only=False)
            coded = pa.array(numbers.astype(np.int32), mask=numbers < 0)  # -1: none was logged
            columns[name] = pa.DictionaryArray.from_arrays(coded, pa.array(names[name], pa.string()))
        elif name == "time":
            columns["timestamp"] = values.cast(pa.timestamp("ms"))
        else:
            columns[name] = values
    return pa.table(columns)


def earlier_log(data: Prepared) -> SourceTable:
    """Rows of an earlier data set's log, as a source table."""
    path = data.path / LOG
    if LOG not in data.manifest["files"]:
        raise DataError(
            f"{data.path} keeps no log ({LOG}), so nothing can be appended to it: it was prepared with --no-keep-log. "
            "Prepare its log and the new one together."
        )
    names = tuple(parquet_schema(path).names)
    return SourceTable((path,), "parquet", {name: name for name in names}, names, label=str(data.path))


def refuse_taken(data: Prepared, inputs: Sequence[Mapping[str, Any]]) -> None:
    """Raise DataError if a file's bytes are part of the earlier data set already."""
    taken = {file["sha256"]: file["name"] for file in data.manifest["inputs"].get("taken", ())}
    for file in inputs:
        if file["sha256"] in taken:
            before = taken[file["sha256"]]
            known = "" if before == file["name"] else f", then called {before}"
            raise DataError(
                f"{file['name']} is part of {data.path} already (the same bytes{known}). Leave it out: its rows would "
                "count twice."
            )


def not_taken(data: Prepared, tables: Sequence[SourceTable]) -> list[SourceTable]:
    """The tables without files whose bytes are part of the earlier data set; DataError if none is left."""
    taken = {file["sha256"] for file in data.manifest["inputs"].get("taken", ())}
    left = []
    for table in tables:
        new = tuple(file for file in table.inputs if sha256(file) not in taken)
        if new and table.originals and len(new) < len(table.inputs):
            raise ConfigError(f"new_only takes files as they are, and {table.shown()} is made from others.")
        left += [replace(table, files=new) if len(new) < len(table.files) else table] if new else []
    if not left:
        raise DataError(f"nothing is new: {data.path} holds every one of these files already.")
    return left


def change(before: Prepared, after: Prepared) -> Iterator[str]:
    """Lines on what appending changed."""
    was, now = before.manifest["counts"], after.manifest["counts"]
    pairs = {
        "sequences": (was["sequences"], now["sequences"]),
        "items": (was["items"], now["items"]),
        **{name: (was["events"].get(name, 0), count) for name, count in now["events"].items()},
    }
    for name, (old, new) in pairs.items():
        yield f"  {name}: {old:,} -> {new:,} ({new - old:+,})"
    gone = len(set(before.catalogue["item_id"].to_pylist()) - set(after.catalogue["item_id"].to_pylist()))
    if gone:
        yield f"  {gone:,} items are no longer there: they do not pass the filters on all rows"


def check_fits(data: Prepared, tables: Sequence[SourceTable], schema: LogSchema, *, ids: str) -> None:
    """Raise an error unless today's log has the ids and propensities of yesterday's. `ids` is the user's setting."""
    ours = "whole numbers" if pa.types.is_integer(data.catalogue.schema.field("item_id").type) else "texts"
    theirs = "whole numbers" if schema.item_id == "integer" else "texts"
    if ours != theirs and ids != "text":
        raise DataError(
            f"item ids are {ours} in {data.path} and {theirs} in the new log: they cannot be matched. If that is "
            "right, read all of them as texts (--ids text): 7 is then '7' in both."
        )
    logged = "propensity" in data["train"].arrays
    for table in tables:
        if ROW in table.columns.values():
            raise ConfigError("a log whose rows are its sequences cannot be appended: prepare all its files at once.")
        if data.kind == "impressions" and logged != ("propensity" in table.columns):
            has, lacks = (data.path, table.shown()) if logged else (table.shown(), data.path)
            raise DataError(f"{has} has propensities and {lacks} has none: one data set cannot hold both.")
