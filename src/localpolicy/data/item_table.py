"""Item table: data about items in addition to the log (`prepare(…, items=…)`), read, checked and understood.

Every column gets a kind (`item_columns`), guessed unless it is given, and shown. The columns are kept in the data set's
items.parquet, each with its kind in its field's metadata: so they travel with every run that is trained on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq

from localpolicy.data.item_columns import KINDS, SEPARATOR, understood
from localpolicy.data.item_features import KIND, kinds_of
from localpolicy.data.sources import delimiter_of, file_format, first_line
from localpolicy.errors import ConfigError, DataError, nearest
from localpolicy.runtime.frames import arrow_stream, is_table, plain_table, table_name

OURS = ("index", "item_id", "count")
ROWS = 1024  # of a Parquet file, read at once
FREE, MOST_UNFOLDED = 1 << 26, 200  # bytes that any file may unfold to, and more for each byte of its own
CODE = r"^\s*[+-]?0[0-9]"  # text of digits that is no number, as of zip codes: its zeros mean something
log = logging.getLogger("localpolicy.data.prepare")


class ItemTable(NamedTuple):
    """Item table: `item_id`, and one column per attribute."""

    table: pa.Table  # item_id first; every other field has its kind
    label: str

    @property
    def kinds(self) -> dict[str, str]:
        """Kinds of the columns, by name."""
        return kinds_of(self.table)


def read_item_table(
    given: Any,
    *,
    kinds: Mapping[str, str],
    id_column: str | None,
    integer_ids: bool,
    partly: bool = False,
    earlier: Mapping[str, str] | None = None,
) -> ItemTable:
    """Read a file or a frame. `kinds` are the kinds stated by the user, `id_column` the log's name for item ids.

    `earlier` are the kinds of the table before this one: they hold, however few values there are today. `partly`:
    `kinds` need not name all columns, and the table may lack some.
    """
    meant = {"item_id", id_column, *(name for name, kind in kinds.items() if kind == "id")}
    table, label = _read(given, lambda name: name in meant or (partly and name not in kinds))
    if partly:
        table = _ids_named(table, kinds, label)
        strange = [name for name in table.column_names if name not in ("item_id", *kinds)]
        if strange:
            log.info(f"  left out of {label}: {', '.join(strange)} (the run does not know such a column)")
        table = table.select([name for name in table.column_names if name in ("item_id", *kinds)])
        kinds = {name: kind for name, kind in kinds.items() if name in table.column_names}
    for column, kind in kinds.items():
        if column not in table.column_names:
            raise ConfigError(f"item_columns: {label} has no column '{column}'{nearest(column, table.column_names)}")
        if kind not in KINDS:
            raise ConfigError(f"item_columns: '{column}' cannot be '{kind}'{nearest(kind, KINDS)}")
    named = [column for column, kind in kinds.items() if kind == "id"]
    found = named or [name for name in ("item_id", id_column or "") if name in table.column_names]
    if not found:
        raise DataError(
            f"{label} has no column of item ids: expected 'item_id', found {', '.join(table.column_names)}. Say which "
            "it is: --item-columns COLUMN=id."
        )
    ids = _ids(table[found[0]], label, integer=integer_ids)
    columns: dict[str, tuple[pa.Array, str]] = {}
    skipped: list[str] = []
    for name in table.column_names:
        if name == found[0] or kinds.get(name) == "skip":
            continue
        kept = f"{name}_of_table" if name in OURS else name
        if kept != name and kept in table.column_names:
            raise DataError(f"{label} has both '{name}', which is kept as '{kept}', and '{kept}'. Rename one of them.")
        before = (earlier or {}).get(kept)
        asked = kinds.get(name, before)
        kind, values, why = understood(name, table[name], asked, label, few=partly or before is not None)
        if kind == "skip":
            skipped.append(f"{name} ({why})")
            continue
        columns[kept] = values, kind
    if skipped:
        log.info(f"  left out of {label}: {', '.join(skipped)}")
    fields = [pa.field("item_id", ids.type), *(
        pa.field(name, values.type, metadata={KIND: kind.encode()}) for name, (values, kind) in columns.items()
    )]  # fmt: skip
    return ItemTable(pa.table([ids, *(values for values, _ in columns.values())], schema=pa.schema(fields)), label)


def _ids_named(table: pa.Table, kinds: Mapping[str, str], label: str) -> pa.Table:
    """Rename the table's column of ids to `item_id`; a single unknown column is taken for it."""
    unknown = [name for name in table.column_names if name not in kinds]
    if "item_id" in unknown:
        return table
    if len(unknown) != 1:
        raise DataError(
            f"{label} has no column 'item_id', found {', '.join(table.column_names)}. Rename its column of item ids to "
            "item_id."
        )
    return table.rename_columns(["item_id" if name == unknown[0] else name for name in table.column_names])


def _read(given: Any, is_id: Callable[[str], bool]) -> tuple[pa.Table, str]:
    if is_table(given):
        table, label = plain_table(arrow_stream(given)), table_name(given)
    else:
        if not isinstance(given, str | PathLike):
            raise DataError(f"expected an item table, a frame or a CSV or Parquet file, got {table_name(given)}.")
        path = Path(given)
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "does not exist"
            raise DataError(f"{path} {what}: expected an item table, a CSV or Parquet file.")
        label = str(path)
        try:
            table = _read_parquet(path) if file_format(path) == "parquet" else _read_csv(path, is_id)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read as an item table: {str(error)[:300]}") from None
        table = plain_table(table.to_reader())
    if len(set(table.column_names)) < len(table.column_names):
        raise DataError(f"{label} has two columns of one name: {', '.join(table.column_names)}.")
    if not len(table):
        raise DataError(f"{label} has no rows: expected one per item.")
    return table, label


def _read_parquet(path: Path) -> pa.Table:
    """Read a whole Parquet file a few rows at a time, so that one that unfolds to gigabytes is refused in time."""
    size = path.stat().st_size
    most, batches, unfolded = FREE + MOST_UNFOLDED * size, [], 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(ROWS):
            columns = [
                each.dictionary_decode() if pa.types.is_dictionary(each.type) else each for each in batch.columns
            ]
            batch = pa.RecordBatch.from_arrays(columns, batch.schema.names)
            unfolded += batch.nbytes
            if unfolded > most:
                raise DataError(
                    f"{path} has {size:,} bytes and unfolds to more than {most:,}: it repeats long values beyond "
                    "reason. Leave out the column that does."
                )
            batches.append(batch)
        return pa.Table.from_batches(batches) if batches else file.schema_arrow.empty_table()


def _read_csv(path: Path, is_id: Callable[[str], bool]) -> pa.Table:
    """Read a CSV file; a column is numbers if all its texts are numbers, but 01 is a code, and no number."""
    parsing = pc_csv.ParseOptions(delimiter=delimiter_of(first_line(path)), newlines_in_values=True)
    names = pc_csv.open_csv(path, parse_options=parsing).schema.names
    texts = {name: pa.string() for name in names if is_id(name.strip())}
    table = pc_csv.read_csv(path, parse_options=parsing, convert_options=pc_csv.ConvertOptions(column_types=texts))
    numbers = [
        field.name for field in table.schema if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
    ]
    if numbers:
        kinds = dict.fromkeys(numbers, pa.string())
        as_written = pc_csv.ConvertOptions(include_columns=numbers, column_types=kinds, strings_can_be_null=True)
        written = pc_csv.read_csv(path, parse_options=parsing, convert_options=as_written)
        for name in numbers:
            if pc.any(pc.match_substring_regex(written[name], CODE)).as_py():
                table = table.set_column(table.column_names.index(name), name, written[name])
    return table.rename_columns([name.strip() for name in table.column_names])


def known_ids(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the ids with empty strings as nulls."""
    return pc.if_else(pc.equal(values, ""), None, values) if pa.types.is_string(values.type) else values


def ids_as(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Convert ids to the log's type. As in logs, 14.0 is 14, as a text or as a float; 007 is a text."""
    if pa.types.is_floating(values.type) and not pa.types.is_integer(kind):
        values = values.cast(pa.int64())
    if not (pa.types.is_string(values.type) and pa.types.is_integer(kind)):
        return values.cast(kind)
    texts = pc.replace_substring_regex(values, "[.]0+$", "")
    numbers = texts.cast(kind)
    other = values.filter(pc.not_equal(numbers.cast(pa.string()), texts))
    if len(other):
        raise pa.ArrowInvalid(f"{other[0].as_py()!r} is a text, no number")
    return numbers


def _ids(values: pa.ChunkedArray, label: str, *, integer: bool) -> pa.Array:
    """Ids of the table in the log's type; DataError if that is impossible."""
    column = known_ids(values).combine_chunks()
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise DataError(f"{label}: {column.null_count:,} rows have no item id (first at row {row + 1}). Remove them.")
    try:
        ids = ids_as(column, pa.int64() if integer else pa.string())
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{label}: item ids are {'whole numbers' if integer else 'texts'} in the log and {column.type} here "
            f"({str(error)[:200]}): they cannot be matched. Is it the right column? --item-columns COLUMN=id names "
            "another."
        ) from None
    if len(distinct := pc.value_counts(ids)) < len(ids):
        twice = distinct.filter(pc.greater(distinct.field("counts"), 1))
        raise DataError(
            f"{label}: {len(twice):,} ids have several rows (first {twice[0]['values'].as_py()!r}, "
            f"{twice[0]['counts'].as_py()} times). An item has one row: several values belong into a list "
            f"(a{SEPARATOR}b{SEPARATOR}c)."
        )
    return ids


def join_items(catalogue: pa.Table, items: ItemTable | None) -> pa.Table:
    """The catalogue with the table's columns; nulls for items that the table lacks."""
    if items is None:
        return catalogue
    ids = catalogue["item_id"].combine_chunks()
    at = pc.index_in(ids, value_set=items.table["item_id"].combine_chunks().cast(ids.type))
    for field in items.table.schema:
        if field.name != "item_id":
            catalogue = catalogue.append_column(field, items.table[field.name].combine_chunks().take(at))
    return catalogue


def check_overlap(catalogue: pa.Table, items: ItemTable) -> None:
    """Raise DataError if none of the log's items is in the table; log how many are."""
    ids, listed = catalogue["item_id"].combine_chunks(), items.table["item_id"].combine_chunks()
    taken = catalogue["count"].to_numpy() > 0
    found = np.asarray(pc.is_in(ids, value_set=listed.cast(ids.type)).to_numpy(zero_copy_only=False), bool)
    if not (found & taken).any():
        raise DataError(
            f"{items.label} knows none of the log's {int(taken.sum()):,} items (the log has {ids[0].as_py()!r}, the "
            f"table {listed[0].as_py()!r}). Is its id column another? --item-columns COLUMN=id."
        )
    kinds = ", ".join(f"{name} ({kind})" for name, kind in items.kinds.items())
    log.info(f"item table: {kinds or 'no columns'}")
    log.info(f"  {int((found & taken).sum()):,} of the log's {int(taken.sum()):,} items are in it; it adds "
             f"{int((~taken).sum()):,} that the log never shows")  # fmt: skip


def earlier_table(catalogue: pa.Table) -> ItemTable | None:
    """Item table that is part of a catalogue, or None."""
    kinds = kinds_of(catalogue)
    if not kinds:
        return None
    return ItemTable(catalogue.select(["item_id", *kinds]), "the earlier item table")


def refuse_other_lengths(before: pa.Table, newer: pa.Table, label: str) -> None:
    """Raise DataError if vectors of a newer table differ in length from those of the older one."""
    for name in [name for name, kind in kinds_of(before).items() if kind == "vector" and name in newer.column_names]:
        was, now = (pc.max(pc.list_value_length(table[name])).as_py() for table in (before, newer))
        if None not in (was, now) and was != now:
            raise DataError(f"{label}: column '{name}' holds vectors of {now:,} numbers; earlier ones have {was:,}.")


def renewed(before: ItemTable, newer: ItemTable) -> ItemTable:
    """Update the older item table by the newer one; items only in the older one keep their values."""
    if lost := [name for name in before.kinds if name not in newer.kinds]:
        raise DataError(
            f"{newer.label} lacks the column {lost[0]!r} of the earlier item table. Add it, or prepare again."
        )
    for name, kind in before.kinds.items():
        if newer.kinds[name] != kind:
            raise DataError(
                f"{newer.label}: column '{name}' is {newer.kinds[name]}, and was {kind} before. Say so: "
                f"--item-columns {name}={kind}."
            )
    refuse_other_lengths(before.table, newer.table, newer.label)
    old_ids, new_ids = (each.table["item_id"].combine_chunks() for each in (before, newer))
    at = pc.index_in(new_ids, value_set=old_ids.cast(new_ids.type))
    known = pc.is_valid(at)
    changed = np.zeros(len(new_ids), bool)
    for name in before.kinds:
        was, now = before.table[name].combine_chunks().take(at).to_pylist(), newer.table[name].to_pylist()
        changed |= np.array([one != other for one, other in zip(was, now, strict=True)], bool)
    changed &= np.asarray(known.to_numpy(zero_copy_only=False), bool)
    gone = pc.invert(pc.is_in(old_ids, value_set=new_ids.cast(old_ids.type)))
    log.info(
        f"item table: {int(pc.sum(pc.invert(known)).as_py() or 0):,} new items, {int(changed.sum()):,} with other "
        f"values, {int(pc.sum(gone).as_py() or 0):,} that it no longer names and that keep what they had"
    )
    kept = before.table.filter(gone)
    rows = {
        field.name: pa.concat_arrays([
            newer.table[field.name].combine_chunks(),
            kept[field.name].combine_chunks().cast(field.type) if field.name in kept.column_names
            else pa.nulls(len(kept), field.type),
        ])
        for field in newer.table.schema
    }  # fmt: skip
    return ItemTable(pa.table(rows, schema=newer.table.schema), newer.label)


def described(catalogue: pa.Table) -> list[dict[str, Any]]:
    """Kind, number of values and number of distinct values of every column of the item table."""
    found = []
    for name, kind in kinds_of(catalogue).items():
        values = catalogue[name].combine_chunks()
        inner = pc.list_flatten(values) if kind == "categories" else values
        distinct = None if kind == "vector" else len(pc.unique(inner.drop_null()))
        found.append({"column": name, "kind": kind, "items": len(values) - values.null_count, "values": distinct})
    return found
