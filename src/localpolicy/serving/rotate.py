"""The log's older part, moved to Parquet files that `lpi prepare events` reads.

A rotation first claims its rows: in one transaction that no other writer joins, lists whose window is over and the
answers to them get the rotation's number. What comes later carries no number: it waits in the log, marked as late. The
claimed rows are then joined and written to whole files, and leave the database in the transaction that writes down the
file's digest. After a kill at any moment the next rotation finishes the one that was begun, with the same rows: nothing
is lost, and nothing is written twice. Two rotations at once do not happen: the second is refused.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from localpolicy.errors import DataError
from localpolicy.runtime.files import sha256, whole_file
from localpolicy.serving.database import Database
from localpolicy.serving.join import JoinConfig, Worth, joined
from localpolicy.serving.records import now
from localpolicy.serving.units import keep_evidence

LOG = logging.getLogger(__name__)
ROWS = 1 << 16  # of one row group
TYPES = {
    "sequence_id": pa.string(), "event": pa.string(), "timestamp": pa.timestamp("ms"), "reward": pa.float64(),
    "propensity": pa.float64(), "policy": pa.string(), "request": pa.string(), "place": pa.int16(),
    "filter": pa.string(), "filter_content": pa.string(),
    "beta": pa.float64(), "mode": pa.string(), "floor": pa.float64(), "share": pa.float64(),
    "arm": pa.string(), "stage": pa.string(), "context_id": pa.string(), "past_event": pa.string(),
}  # fmt: skip
REQUESTS, FEEDBACK = "_requests", "_feedback"  # folders beside the events, which `prepare` passes over
RAW = {
    "id": pa.string(), "time": pa.int64(), "person": pa.string(), "history": pa.string(), "items": pa.string(),
    "propensities": pa.string(), "policy": pa.string(), "beta": pa.float64(), "mode": pa.string(),
    "floor": pa.float64(), "f.content": pa.string(), "arm": pa.string(), "stage": pa.string(),
}  # fmt: skip
RAW_FEEDBACK = {
    "a.id": pa.string(), "a.request": pa.string(), "r.person": pa.string(), "a.item": pa.string(),
    "a.event": pa.string(), "a.reward": pa.float64(), "a.time": pa.int64(),
}  # fmt: skip


def rotate(
    log: Path | str,
    *,
    out: Path | str,
    config: JoinConfig | None = None,
    upto: int | None = None,
    grace: float = 0.0,
) -> list[Path]:
    """Move requests whose window is over (or those before `upto`, in milliseconds) to Parquet; the files written.

    `grace` seconds longer they wait for answers that happened within the window and arrive after it.
    """
    config, out = config or JoinConfig(), Path(out)
    end = now() - config.window_ms - round(grace * 1000) if upto is None else upto
    database = Database(log)
    try:
        with database.told(), database.only_mover():
            files = [_finish(database, out, config, *row) for row in database.rows(UNFINISHED)]
            if claimed := _claim(database, end, config):
                files.append(_finish(database, out, config, *claimed))
        return [file for file in files if file is not None]
    finally:
        database.close()


# Answers that came too late stay in the log, unless this rotation's window is longer than the service's.
CLAIM_ANSWERS = """UPDATE feedback SET rotation = ? WHERE request IN (SELECT id FROM requests WHERE rotation = ?)
AND (late = 0 OR time <= (SELECT COALESCE(s.time, r.time) + ? FROM requests r LEFT JOIN shown s ON s.request = r.id
                          WHERE r.id = feedback.request))"""
UNFINISHED = "SELECT number, file FROM rotations WHERE sha256 IS NULL ORDER BY number"


def _claim(database: Database, upto: int, config: JoinConfig) -> tuple[int, str] | None:
    """Give the rows to be moved a rotation's number; None where there are none. No border below: clocks step back."""
    with database.transaction(alone=True):
        first = database.rows("SELECT MIN(time) FROM requests WHERE time < ? AND rotation IS NULL", (upto,))[0][0]
        if first is None:
            return None
        number = database.rows("SELECT COALESCE(MAX(number), 0) + 1 FROM rotations")[0][0]
        name = f"events-{max(first, 0):013d}-{upto:013d}-{secrets.token_hex(4)}.parquet"  # nobody else's in that folder
        database.execute("INSERT INTO rotations VALUES (?, ?, ?, NULL, NULL)", (number, upto, name))
        database.execute("UPDATE requests SET rotation = ? WHERE time < ? AND rotation IS NULL", (number, upto))
        database.execute(CLAIM_ANSWERS, (number, number, config.window_ms))
    return number, name


def _finish(database: Database, out: Path, config: JoinConfig, number: int, name: str) -> Path | None:
    """Write what was claimed, then let it go; the file, where there are events to write."""
    path = out / name
    worth = Worth(config)
    rows = _write(path, joined(database, worth, config, rotation=number))
    if worth.set_aside:
        LOG.warning("%s; as they came they are in %s", worth.said(), out / FEEDBACK)
    lists = ("FROM requests r LEFT JOIN filters f ON f.digest = r.filter WHERE r.rotation = ? ORDER BY time, id",
             (number,))  # fmt: skip
    _write_raw(out / REQUESTS / name.replace("events", "requests"), database, RAW, *lists)
    answers = ("FROM feedback a JOIN requests r ON r.id = a.request WHERE a.rotation = ? ORDER BY a.time, a.id",
               (number,))  # fmt: skip
    _write_raw(out / FEEDBACK / name.replace("events", "feedback"), database, RAW_FEEDBACK, *answers)
    digest = sha256(path) if rows else ""
    with database.transaction(alone=True):
        keep_evidence(database, number)
        moved = "(SELECT id FROM requests WHERE rotation = ?)"
        database.execute(f"DELETE FROM shown WHERE request IN {moved}", (number,))
        database.execute("DELETE FROM feedback WHERE rotation = ?", (number,))
        database.execute(f"UPDATE feedback SET late = 1 WHERE late = 0 AND request IN {moved}", (number,))
        database.execute("DELETE FROM requests WHERE rotation = ?", (number,))
        database.drop_unused_filters()
        database.execute("UPDATE rotations SET rows = ?, sha256 = ? WHERE number = ?", (rows, digest, number))
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


def _write_raw(path: Path, database: Database, kinds: Mapping[str, pa.DataType], source: str, values: Any) -> None:
    """Rows as they were logged: lists for audits, answers because only one of several counts in the events."""
    rows = database.stream(f"SELECT {', '.join(kinds)} {source}", values)
    schema = pa.schema([(name.split(".")[-1], kind) for name, kind in kinds.items()])
    with whole_file(path) as partial, pq.ParquetWriter(partial, schema) as writer:
        while block := list(_some(rows)):
            columns = [pa.array(column, kind)
                       for column, kind in zip(zip(*block, strict=True), kinds.values(), strict=True)]  # fmt: skip
            writer.write_table(pa.table(columns, schema=schema))


def _some(rows: Iterator[Any]) -> Iterator[Any]:
    return islice(rows, ROWS)
