"""Who wants a list: histories from JSON lines, CSV, Parquet, or a prepared data set, under the user's own ids."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from localpolicy.data.store import SPLITS, Prepared
from localpolicy.errors import DataError

SEQUENCE, ITEM, EVENT = "sequence_id", "item_id", "event"  # the columns of a table of histories


@dataclass(frozen=True)
class BatchRequest:
    """One list that is wanted."""

    history: list[Hashable]
    events: list[str] | None = None  # what came of each item of the history
    id: Any = None  # as the user calls it; None: nothing was said
    exclude: tuple[Hashable, ...] = ()
    candidates: tuple[Hashable, ...] | None = None  # None: the whole catalogue


def read_requests(path: Path, kind: type) -> Iterator[BatchRequest]:
    """The histories of a file; `kind` is the type of the catalogue's ids."""
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise DataError(f"{path} {problem}: --histories expects JSON lines, CSV or Parquet of histories.")
    return _of_table(path, kind) if path.name.endswith((".csv", ".parquet")) else _of_lines(path, kind)


def all_requests(data: Prepared) -> Iterator[BatchRequest]:
    """Every sequence of a data set, whole, under the id that the log gave it."""
    names, items = data.events, data.catalogue["item_id"].to_pylist()
    for name in SPLITS:
        ids = data.sequence_ids(name).to_pylist()
        for number, sequence in enumerate(data[name]):
            history = [items[item] for item in sequence["item"].tolist()]
            yield BatchRequest(history, [names[event] for event in sequence["event"].tolist()], ids[number])


def _of_lines(path: Path, kind: type) -> Iterator[BatchRequest]:
    with path.open("rb") as source:
        for number, content in enumerate(source, start=1):
            yield _parsed(content, f"{path}, line {number}", kind)


def _parsed(content: bytes, where: str, kind: type) -> BatchRequest:
    try:
        text = content.decode()
        line = json.loads(text)
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 ({error}); write the file as UTF-8 text.") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error}).") from None
    items = "whole numbers" if kind is int else "texts"
    if not isinstance(line, dict) or not _listed(line.get("history"), kind):
        raise DataError(
            f'{where}: expected {{"history": [...]}} with items as {items}, as in the log, got {text.strip()[:80]}'
        )
    if line.get("events") is not None and not _listed(line["events"], str):
        raise DataError(f'{where}: expected "events" as a list of events\' names, got {text.strip()[:80]}')
    for name in ("exclude", "candidates"):
        if line.get(name) is not None and not _listed(line[name], kind):
            raise DataError(f'{where}: expected "{name}" as a list of items as {items}, got {text.strip()[:80]}')
    allowed = line.get("candidates")
    return BatchRequest(
        line["history"], line.get("events"), line.get("id"), tuple(line.get("exclude") or ()),
        None if allowed is None else tuple(allowed),
    )  # fmt: skip


def _listed(values: Any, kind: type) -> bool:
    """Whether this is a list of such values; to Python `true` is a whole number, to nobody else."""
    return isinstance(values, list) and all(type(value) is kind for value in values)


def _of_table(path: Path, kind: type) -> Iterator[BatchRequest]:
    """One row per event, in order: sequence_id, item_id and, if wanted, event; rows of a sequence are put together."""
    try:
        table = pq.read_table(path) if path.name.endswith(".parquet") else pa.csv.read_csv(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} cannot be read as a table ({error}).") from None
    missing = [name for name in (SEQUENCE, ITEM) if name not in table.column_names]
    if missing:
        raise DataError(
            f"{path}: no column {' and no column '.join(missing)}. Expected one row per event with {SEQUENCE}, {ITEM} "
            f"and, if wanted, {EVENT}; found {', '.join(table.column_names)}."
        )
    try:
        items = table[ITEM].cast(pa.int64() if kind is int else pa.string()).to_pylist()
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: {ITEM} does not fit the log's ids ({error}).") from None
    events = table[EVENT].cast(pa.string()).to_pylist() if EVENT in table.column_names else None
    ids = table[SEQUENCE].combine_chunks()
    numbers = np.asarray(ids.dictionary_encode().indices.to_numpy(zero_copy_only=False))
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        happened = None if events is None else [events[row] for row in rows]
        yield BatchRequest([items[row] for row in rows], happened, ids[int(rows[0])].as_py())
