"""Requests for lists in bulk: histories from JSON lines, CSV, Parquet, or a prepared data set, with the user's ids."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from localpolicy.data.engines.duckdb import DuckDB
from localpolicy.data.store import SPLITS, Prepared
from localpolicy.errors import DataError

SEQUENCE, ITEM, EVENT = "sequence_id", "item_id", "event"  # the columns of a table of histories
ROWS = 1 << 16  # rows of a table converted to Python objects at once
MEMORY = "512MB"  # of DuckDB, which groups rows by sequence; more is spilled to the disk


class BatchRequest(NamedTuple):
    """Request for one list: a history, its id, and excluded or candidate items."""

    history: list[Hashable]
    events: list[str] | None = None  # event of each item of the history
    id: Any = None  # the user's name for the request, if any
    exclude: tuple[Hashable, ...] = ()
    candidates: tuple[Hashable, ...] | None = None  # None: the whole catalogue


def read_requests(path: Path, kind: type) -> Iterator[BatchRequest]:
    """Yield the histories of a file; `kind` is the type of the catalogue's ids."""
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise DataError(f"{path} {problem}: --histories expects JSON lines, CSV or Parquet of histories.")
    return _of_table(path, kind) if path.name.endswith((".csv", ".parquet")) else _of_lines(path, kind)


def all_requests(data: Prepared) -> Iterator[BatchRequest]:
    """Yield the whole history of every sequence of a data set, under its id in the log."""
    names, items = data.events, data.catalogue["item_id"].to_pylist()
    for name in SPLITS:
        ids = data.sequence_ids(name).to_pylist()
        for number, sequence in enumerate(data[name]):
            first = max(np.flatnonzero(sequence["anew"]), default=0) if "anew" in sequence else 0
            history = [items[item] for item in sequence["item"][first:].tolist()]
            events = sequence.get("past_event", sequence["event"])[first:]
            yield BatchRequest(history, [names[event] for event in events.tolist()], ids[number])


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
    """Whether `values` is a list of values of this type; `true` does not count as a whole number."""
    return isinstance(values, list) and all(type(value) is kind for value in values)


def _of_table(path: Path, kind: type) -> Iterator[BatchRequest]:
    """Read a table with one row per event, in order, and group its rows by sequence.

    Columns are sequence_id, item_id and, if wanted, event. The file is processed in pieces: memory does not grow with
    it.
    """
    with tempfile.TemporaryDirectory(prefix="lpi-") as scratch:
        table = path
        if path.name.endswith(".csv"):
            table = _as_parquet(path, Path(scratch) / "histories.parquet")
        with _readable(path):
            columns = pq.read_schema(table).names
        missing = [name for name in (SEQUENCE, ITEM) if name not in columns]
        if missing:
            raise DataError(
                f"{path}: no column {' and no column '.join(missing)}. Expected one row per event with {SEQUENCE}, "
                f"{ITEM} and, if wanted, {EVENT}; found {', '.join(columns)}."
            )
        wanted = [name for name in (SEQUENCE, ITEM, EVENT) if name in columns]
        engine = DuckDB(Path(scratch), memory=MEMORY, threads=1)
        try:
            yield from _sequences(engine.batches(_in_order(table, wanted)), kind, path)
        finally:
            engine.close()


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} cannot be read as a table ({error}).") from None


def _as_parquet(path: Path, out: Path) -> Path:
    """Convert a CSV file to Parquet, a block at a time."""
    with _readable(path), pa.csv.open_csv(path) as blocks, pq.ParquetWriter(out, blocks.schema) as writer:
        for block in blocks:
            writer.write_batch(block)
    return out


def _in_order(path: Path, columns: list[str]) -> str:
    """Return SQL for the rows grouped by sequence, in the order of the sequences' first rows."""
    file = str(path).replace("'", "''")
    chosen = ", ".join(columns)
    numbered = f"SELECT row_number() OVER () AS number, {chosen} FROM read_parquet('{file}')"
    first = f"SELECT *, MIN(number) OVER (PARTITION BY {SEQUENCE}) AS first FROM ({numbered})"
    return f"SELECT {chosen} FROM ({first}) ORDER BY first, number"


def _sequences(batches: Iterable[pa.RecordBatch], kind: type, path: Path) -> Iterator[BatchRequest]:
    """Yield one request per sequence from grouped rows; a sequence may continue in the next batch."""
    begun: BatchRequest | None = None
    pieces = (batch.slice(start, ROWS) for batch in batches for start in range(0, len(batch), ROWS))
    for piece in pieces:
        try:
            items = piece[ITEM].cast(pa.int64() if kind is int else pa.string()).to_pylist()
        except pa.ArrowInvalid as error:
            raise DataError(f"{path}: {ITEM} does not fit the log's ids ({error}).") from None
        events = piece[EVENT].cast(pa.string()).to_pylist() if EVENT in piece.schema.names else None
        runs = pc.run_end_encode(piece[SEQUENCE])
        ends = runs.run_ends.to_pylist()
        for who, start, stop in zip(runs.values.to_pylist(), [0, *ends], ends, strict=False):
            happened = None if events is None else events[start:stop]
            if begun is not None and begun.id == who:
                more = None if happened is None or begun.events is None else begun.events + happened
                begun = BatchRequest(begun.history + items[start:stop], more, begun.id)
                continue
            if begun is not None:
                yield begun
            begun = BatchRequest(items[start:stop], happened, who)
    if begun is not None:
        yield begun
