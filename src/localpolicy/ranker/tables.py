"""Reader of tables: frames, Parquet, JSON lines, CSV; plain or gzip; a file, or a folder of files."""

from __future__ import annotations

import json
import logging
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv
import pyarrow.json as pc_json
import pyarrow.parquet as pq

from localpolicy.errors import DataError, shown
from localpolicy.ranker.log import Column
from localpolicy.runtime.frames import arrow_stream, is_table, plain_table, table_name

log = logging.getLogger(__name__)
BLOCK = 1 << 26  # bytes of text read together: a line must be shorter
LINES, TEXTS = (".jsonl", ".ndjson", ".json"), (".csv", ".tsv")


def read_table(given: Any, what: str) -> tuple[pa.Table, str]:
    """Read a table; return it with its name for messages."""
    if is_table(given):
        return plain_table(arrow_stream(given)), table_name(given)
    if not isinstance(given, str | PathLike):
        raise DataError(f"expected {what}: a frame, or a file of Parquet, JSON lines or CSV; got {table_name(given)}.")
    path = Path(given)
    files = sorted(file for file in path.iterdir() if _suffix(file)) if path.is_dir() else [path]
    if not path.exists() or not files:
        raise DataError(f"{path} {'holds no such file' if path.exists() else 'does not exist'}: expected {what} as "
                        "Parquet, JSON lines (.jsonl) or CSV.")  # fmt: skip
    try:
        tables = [plain_table(_stated(_read(file), file).to_reader()) for file in files]
        whole = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read as {what}: {str(error)[:300]}") from None
    return whole.rename_columns([name.strip() for name in whole.column_names]), str(path)


def _stated(table: pa.Table, path: Path) -> pa.Table:
    """Return the table without columns of lists that hold nothing but nulls, which Arrow cannot read on."""
    empty = [one.name for one in table.schema if pa.types.is_list(one.type) and pa.types.is_null(one.type.value_type)]
    if empty:
        log.info("left out of %s: %s (no value in any list)", path, ", ".join(empty))
    return table.drop_columns(empty)


def _suffix(path: Path) -> str:
    ending = path.name.removesuffix(".gz")
    known = (".parquet", *LINES, *TEXTS)
    return next((one for one in known if ending.endswith(one)), "")


def _read(path: Path) -> pa.Table:
    suffix = _suffix(path)
    if suffix == ".parquet":
        return pq.read_table(path)
    if not suffix:
        raise DataError(f"{path}: expected a name that ends in .parquet, .jsonl, .csv or .tsv, or with .gz after it.")
    with pa.input_stream(path, compression="gzip" if path.name.endswith(".gz") else None) as stream:
        if suffix in LINES:
            return pc_json.read_json(stream, read_options=pc_json.ReadOptions(block_size=BLOCK))
        parsing = pc_csv.ParseOptions(delimiter="\t" if suffix == ".tsv" else ",", newlines_in_values=True)
        return pc_csv.read_csv(stream, read_options=pc_csv.ReadOptions(block_size=BLOCK), parse_options=parsing)


def texts(column: pa.ChunkedArray, what: str) -> pa.Array:
    """Convert ids to texts (14, never 14.0); raise DataError if one is missing."""
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if values.null_count:
        raise DataError(
            f"{what} is missing in row {pc.index(values.is_null(), True).as_py() + 1}: every row needs one."
        )
    if pa.types.is_floating(values.type):
        whole = pc.all(pc.equal(pc.floor(values), values)).as_py()
        values = values.cast(pa.int64()) if whole else values
    return values.cast(pa.string())


def lists(column: pa.ChunkedArray, name: str, ids: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Split a column of lists into their lengths [N] and all their values; in CSV they are JSON texts."""
    values = column.combine_chunks()
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        values = _parsed(values, name, ids)
    if not (pa.types.is_list(values.type) or pa.types.is_large_list(values.type)):
        raise DataError(f"'{name}' must hold a list for every request, found {values.type}. One row per request and "
                        "candidate is the other form: then 'item' and 'place' name them.")  # fmt: skip
    if values.null_count:
        row = pc.index(values.is_null(), True).as_py()
        raise DataError(f"request {shown(ids[row].as_py())} has no '{name}'.")
    return pc.list_value_length(values).to_numpy(zero_copy_only=False).astype(np.int64), values.flatten()


def holds_lists(column: pa.ChunkedArray) -> bool:
    """Whether a column holds lists, as such or as JSON texts."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        first = next(iter(column.slice(0, 1).to_pylist()), None)
        return first is not None and first.startswith("[")
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _parsed(values: pa.Array, name: str, ids: pa.Array) -> pa.Array:
    found = []
    for row, text in enumerate(values.to_pylist()):
        try:
            one = json.loads(text)
            if not isinstance(one, list):
                raise ValueError("no list")
        except (ValueError, TypeError, RecursionError) as error:
            raise DataError(
                f'request {shown(ids[row].as_py())}: \'{name}\' is no JSON list ({error}), such as ["a","b"].'
            ) from None
        found.append(one)
    try:
        return pa.array(found)
    except pa.ArrowException as error:
        raise DataError(f"'{name}' mixes kinds of values: {str(error)[:200]}") from None


def numbers(values: Any, name: str) -> np.ndarray:
    """Convert values to float64, with NaN for missing ones."""
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    try:
        return np.asarray(values.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)
    except pa.ArrowException:
        raise DataError(f"'{name}' must hold numbers, found {values.type}.") from None


def understood(values: Any) -> Column | None:
    """Convert a column to numbers or names; None for any other type (times, lists)."""
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    kind = values.type
    if (
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
    ):
        return Column(numbers(values, ""))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        packed = pc.dictionary_encode(values)
        codes = pc.fill_null(packed.indices, -1).to_numpy(zero_copy_only=False)
        return Column(codes.astype(np.int32), tuple(packed.dictionary.to_pylist()))
    return None


def seconds(values: Any) -> np.ndarray:
    """Convert times to seconds; texts and dates are parsed as timestamps."""
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    try:
        if pa.types.is_string(values.type) or pa.types.is_date(values.type):
            values = values.cast(pa.timestamp("us"))
        if pa.types.is_timestamp(values.type):
            return np.asarray(values.cast(pa.timestamp("us")).cast(pa.int64()).to_numpy(zero_copy_only=False)) / 1e6
    except pa.ArrowException as error:
        raise DataError(f"'time' cannot be read: {str(error)[:200]}") from None
    return numbers(values, "time")
