"""The log's older part, moved to Parquet files that `lpi prepare events` reads.

A rotation is first written down with its borders, then its file is written whole, then its rows leave the database in
one transaction. After a kill at any moment the next rotation finishes the one that was begun, with the same borders:
nothing is lost, and nothing is written twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from localpolicy.errors import DataError
from localpolicy.runtime.files import sha256, whole_file
from localpolicy.serving.database import Database
from localpolicy.serving.join import JoinConfig, joined
from localpolicy.serving.records import now
from localpolicy.serving.units import keep_evidence

ROWS = 1 << 16  # of one row group
TYPES = {
    "sequence_id": pa.string(), "event": pa.string(), "timestamp": pa.timestamp("ms"), "reward": pa.float64(),
    "propensity": pa.float64(), "policy": pa.string(), "request": pa.string(), "place": pa.int16(),
    "filter": pa.string(), "filter_content": pa.string(),
    "beta": pa.float64(), "mode": pa.string(), "floor": pa.float64(), "share": pa.float64(),
    "arm": pa.string(), "stage": pa.string(),
}  # fmt: skip
REQUESTS = "_requests"  # beside the events
RAW = {
    "id": pa.string(), "time": pa.int64(), "person": pa.string(), "history": pa.string(), "items": pa.string(),
    "propensities": pa.string(), "policy": pa.string(), "beta": pa.float64(), "mode": pa.string(),
    "floor": pa.float64(), "f.content": pa.string(), "arm": pa.string(), "stage": pa.string(),
}  # fmt: skip


def rotate(
    log: Path | str, *, out: Path | str, config: JoinConfig | None = None, upto: int | None = None
) -> list[Path]:
    """Move requests whose window is over (or those before `upto`, in milliseconds) to Parquet; the files written."""
    config, out = config or JoinConfig(), Path(out)
    database = Database(log)
    try:
        files = [_finish(database, out, config, *row) for row in database.rows(UNFINISHED)]
        end = now() - config.window_ms if upto is None else upto
        since = database.rows("SELECT COALESCE(MAX(upto), 0) FROM rotations")[0][0]
        if database.rows("SELECT 1 FROM requests WHERE time >= ? AND time < ? LIMIT 1", (since, end)):
            name = f"events-{since:013d}-{end:013d}.parquet"
            database.execute("INSERT INTO rotations VALUES (?, ?, ?, NULL, NULL)", (end, since, name))
            files.append(_finish(database, out, config, since, end, name))
        return [file for file in files if file is not None]
    finally:
        database.close()


UNFINISHED = "SELECT since, upto, file FROM rotations WHERE sha256 IS NULL ORDER BY upto"


def _finish(database: Database, out: Path, config: JoinConfig, since: int, upto: int, name: str) -> Path | None:
    path = out / name
    known = {person for (person,) in database.rows("SELECT person FROM persons")}
    before = set(known)
    rows = _write(path, joined(database, config, since=since, upto=upto, known=known))
    _write_requests(out / REQUESTS / name.replace("events", "requests"), database, since, upto)
    with database.transaction():
        for person in known - before:
            database.execute("INSERT INTO persons VALUES (?) ON CONFLICT DO NOTHING", (person,))
        moved = "(SELECT id FROM requests WHERE time >= ? AND time < ?)"
        keep_evidence(database, moved, (since, upto))
        database.execute(f"DELETE FROM feedback WHERE request IN {moved} AND late = 0", (since, upto))
        database.execute(f"DELETE FROM shown WHERE request IN {moved}", (since, upto))
        database.execute("DELETE FROM requests WHERE time >= ? AND time < ?", (since, upto))
        database.drop_unused_filters()
        digest = sha256(path) if rows else ""
        database.execute("UPDATE rotations SET rows = ?, sha256 = ? WHERE upto = ?", (rows, digest, upto))
    return path if rows else None


def _write(path: Path, events: Iterator[dict[str, Any]]) -> int:
    """Write events to a whole file; none where there are none."""
    count, block = 0, list(_some(events))
    if not block:
        return 0
    number = isinstance(block[0]["item_id"], int)
    schema = pa.schema({"sequence_id": TYPES["sequence_id"], "item_id": pa.int64() if number else pa.string(), **TYPES})
    with whole_file(path) as partial, pq.ParquetWriter(partial, schema) as writer:
        while block:
            try:
                writer.write_table(pa.Table.from_pylist(block, schema=schema))
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise DataError(f"the log's items are not all {'numbers' if number else 'texts'} ({error}).") from None
            count += len(block)
            block = list(_some(events))
    return count


def _write_requests(path: Path, database: Database, since: int, upto: int) -> None:
    """The lists as they were made, for audits; in a folder that `prepare` passes over."""
    rows = database.stream(f"SELECT {', '.join(RAW)} FROM requests r LEFT JOIN filters f ON f.digest = r.filter "
                           "WHERE time >= ? AND time < ? ORDER BY time, id", (since, upto))  # fmt: skip
    schema = pa.schema([(name.split(".")[-1], kind) for name, kind in RAW.items()])
    with whole_file(path) as partial, pq.ParquetWriter(partial, schema) as writer:
        while block := list(_some(rows)):
            columns = [
                pa.array(column, kind) for column, kind in zip(zip(*block, strict=True), RAW.values(), strict=True)
            ]
            writer.write_table(pa.table(columns, schema=schema))


def _some(rows: Iterator[Any]) -> Iterator[Any]:
    return islice(rows, ROWS)
