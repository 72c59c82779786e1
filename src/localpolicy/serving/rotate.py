"""The log's older part, moved to Parquet files that `lpi prepare events` reads.

A rotation first claims its rows: in one transaction that no other writer joins, lists whose window is over get the
rotation's number, and so do the answers to them and those to lists that have left the log before. What comes later
carries no number: it waits in the log for the next rotation, marked as late. The claimed rows are then joined and
written to whole files, and leave the database in the transaction that writes down the file's digest and what became of
every answer. After a kill at any moment the next rotation finishes the one that was begun, with the same rows: nothing
is lost, and nothing is written twice. Two rotations at once do not happen: the second is refused.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from localpolicy.runtime.files import sha256, whole_file
from localpolicy.serving.database import Database
from localpolicy.serving.experiment_units import keep_evidence
from localpolicy.serving.filters import dumps
from localpolicy.serving.join import FATES, USED, JoinConfig, Joined, ResponseReward
from localpolicy.serving.records import now

LOG = logging.getLogger(__name__)
ROWS = 1 << 16  # of one row group
TYPES = {
    "sequence_id": pa.string(), "event": pa.string(), "timestamp": pa.timestamp("ms"), "reward": pa.float64(),
    "propensity": pa.float64(), "policy": pa.string(), "request": pa.string(), "place": pa.int16(),
    "filter": pa.string(), "filter_content": pa.string(),
    "beta": pa.float64(), "mode": pa.string(), "floor": pa.float64(), "share": pa.float64(),
    "arm": pa.string(), "stage": pa.string(), "context_id": pa.string(), "past_event": pa.string(),
}  # fmt: skip
REQUESTS, FEEDBACK = "_requests", "_feedback"  # folders next to the events, which `prepare` ignores
RAW = {
    "id": pa.string(), "time": pa.int64(), "person": pa.string(), "history": pa.string(), "items": pa.string(),
    "propensities": pa.string(), "policy": pa.string(), "beta": pa.float64(), "mode": pa.string(),
    "floor": pa.float64(), "f.content": pa.string(), "arm": pa.string(), "stage": pa.string(),
}  # fmt: skip
RAW_FEEDBACK = {
    "a.id": pa.string(), "a.request": pa.string(), "r.person": pa.string(), "a.item": pa.string(),
    "a.event": pa.string(), "a.reward": pa.float64(), "a.time": pa.int64(), "a.arrived": pa.int64(),
}  # fmt: skip
FATE = "fate"  # column with the outcome of an answer (see `Joined`)


@dataclass(frozen=True)
class Rotation:
    """Result of a rotation: files of events, and the number of answers by fate."""

    files: list[Path]
    answers: Counter[str]

    def text(self) -> str:
        """Return the result as lines of text."""
        lines = [f"wrote {file}" for file in self.files]
        if total := self.answers.total():
            parts = ", ".join(f"{count:,} {FATE_WORDS[fate]}" for fate in FATES if (count := self.answers[fate]))
            lines.append(f"{total:,} answers: {parts}")
        return "\n".join(lines) or "nothing to rotate: no list's window is over"


FATE_WORDS = {
    "used": "used",
    "late": "late (after their list's window)",
    "unseen": "to lists or places that nobody saw",
    "set aside": "set aside (no known reward)",
    "withdrawn": "to withdrawn lists",
    "unknown": "to lists that the log does not know",
}


def rotate(
    log: Path | str,
    *,
    out: Path | str,
    config: JoinConfig | None = None,
    upto: int | None = None,
    grace: float = 0.0,
    late: bool = False,
) -> list[Path]:
    """Move requests whose window is over (or those seen before `upto`, in ms) to Parquet; return the files.

    `grace` seconds longer they wait for answers that happened within the window and arrive after it. With `late`
    answers count whenever they came, as long as their list has not left the log.
    """
    return move(log, out=out, config=config, upto=upto, grace=grace, late=late).files


def move(
    log: Path | str,
    *,
    out: Path | str,
    config: JoinConfig | None = None,
    upto: int | None = None,
    grace: float = 0.0,
    late: bool = False,
) -> Rotation:
    """Rotate the log; return the files with the number of moved answers by fate."""
    config, out = config or JoinConfig(), Path(out)
    wait = round(grace * 1000)
    end = now() - config.window_ms - wait if upto is None else upto
    database = Database(log)
    moved = Rotation([], Counter())
    try:
        with database.explain_errors(), database.only_mover():
            for claim in (lambda: database.rows(UNFINISHED), lambda: _claim(database, end)):
                for number, name in claim():
                    joined = Joined(database, ResponseReward(config), config, number, grace=wait, late=late)
                    moved.files.extend(_finish(joined, out, name, moved.answers))
        return moved
    finally:
        database.close()


SETTLED = """rotation IS NULL AND time < ? AND NOT EXISTS (SELECT 1 FROM shown s
    WHERE s.request = requests.id AND requests.deferred = 1 AND COALESCE(s.arrived, s.time) >= ?)"""
CLAIM_ANSWERS = """UPDATE feedback SET rotation = ? WHERE rotation IS NULL
AND request IN (SELECT id FROM requests WHERE rotation = ?)"""
STRANGERS = "rotation IS NULL AND NOT EXISTS (SELECT 1 FROM requests r WHERE r.id = feedback.request)"
# Items are JSON: among whole numbers there is no quotation mark, and in a history none after a bracket.
TEXT_ITEMS = "SELECT 1 FROM requests WHERE rotation = ? AND (items LIKE ? OR history LIKE ?) LIMIT 1"
AS_TEXT = ('%"%', '%["%')
UNFINISHED = "SELECT number, file FROM rotations WHERE sha256 IS NULL ORDER BY number"


def _claim(database: Database, upto: int) -> list[tuple[int, str]]:
    """Claim the rows to be moved; return (number, file) of the rotation. No lower bound on times: clocks step back."""
    with database.transaction(alone=True):
        first = database.rows(f"SELECT MIN(time) FROM requests WHERE {SETTLED}", (upto, upto))[0][0]
        strangers = database.rows(f"SELECT 1 FROM feedback WHERE {STRANGERS} LIMIT 1")
        if first is None and not strangers:
            return []
        number = database.rows("SELECT COALESCE(MAX(number), 0) + 1 FROM rotations")[0][0]
        since = max(upto if first is None else first, 0)
        name = f"events-{since:013d}-{upto:013d}-{secrets.token_hex(4)}.parquet"  # unique in that folder
        database.execute("INSERT INTO rotations (number, upto, file) VALUES (?, ?, ?)", (number, upto, name))
        database.execute(f"UPDATE requests SET rotation = ? WHERE {SETTLED}", (number, upto, upto))
        database.execute(CLAIM_ANSWERS, (number, number))
        database.execute(f"UPDATE feedback SET rotation = ? WHERE {STRANGERS}", (number,))
    return [(number, name)]


def _finish(joined: Joined, out: Path, name: str, counts: Counter[str]) -> list[Path]:
    """Write the claimed rows and delete them from the log; return the file if there are events to write."""
    path, number, database = out / name, joined.rotation, joined.database
    rows = _write(path, joined.events(), texts=bool(database.rows(TEXT_ITEMS, (number, *AS_TEXT))))
    if joined.response_reward.set_aside:
        LOG.warning("%s; as they came they are in %s", joined.response_reward.text(), out / FEEDBACK)
    lists = ("FROM requests r LEFT JOIN filters f ON f.digest = r.filter WHERE r.rotation = ? ORDER BY time, id",
             (number,))  # fmt: skip
    _write_raw(out / REQUESTS / name.replace("events", "requests"), RAW, _selected(database, RAW, *lists))
    answers = _selected(database, RAW_FEEDBACK, "FROM feedback a LEFT JOIN requests r ON r.id = a.request "
                        "WHERE a.rotation = ? ORDER BY a.time, a.id", (number,))  # fmt: skip
    fates: Counter[str] = Counter()
    _write_raw(out / FEEDBACK / name.replace("events", "feedback"), {**RAW_FEEDBACK, FATE: pa.string()},
               _with_fates(answers, joined.fates, fates))  # fmt: skip
    digest = sha256(path) if rows else ""
    with database.transaction(alone=True):
        keep_evidence(database, number)
        moved = "(SELECT id FROM requests WHERE rotation = ?)"
        database.execute(f"DELETE FROM shown WHERE request IN {moved}", (number,))
        database.execute("DELETE FROM feedback WHERE rotation = ?", (number,))
        database.execute(f"UPDATE feedback SET late = 1 WHERE late = 0 AND request IN {moved}", (number,))
        database.execute("DELETE FROM requests WHERE rotation = ?", (number,))
        database.drop_unused_filters()
        database.execute("UPDATE rotations SET rows = ?, sha256 = ?, answers = ? WHERE number = ?",
                         (rows, digest, dumps(fates), number))  # fmt: skip
    counts.update(fates)
    return [path] if rows else []


def _selected(database: Database, kinds: Mapping[str, Any], source: str, values: Sequence[Any]) -> Iterator[Any]:
    return database.stream(f"SELECT {', '.join(kinds)} {source}", values)


def _with_fates(answers: Iterator[Any], fates: Mapping[str, str], counts: Counter[str]) -> Iterator[Any]:
    """Yield the answers as they came, each with its fate, and count the fates."""
    for answer in answers:
        fate = fates.get(answer[0], USED)
        counts[fate] += 1
        yield (*answer, fate)


def _write(path: Path, events: Iterator[dict[str, Any]], *, texts: bool) -> int:
    """Write events to a file and return their number; no file if there are none.

    With `texts` items are texts, also those that some client sent as numbers: no client's request stops a rotation.
    """
    count, block = 0, list(_some(events))
    if not block:
        return 0
    kind = pa.string() if texts else pa.int64()
    schema = pa.schema({"sequence_id": TYPES["sequence_id"], "item_id": kind, **TYPES})
    with whole_file(path) as partial, pq.ParquetWriter(partial, schema) as writer:
        while block:
            rows = [{**row, "item_id": str(row["item_id"])} for row in block] if texts else block
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            count += len(block)
            block = list(_some(events))
    return count


def _write_raw(path: Path, kinds: Mapping[str, pa.DataType], rows: Iterator[Any]) -> None:
    """Write rows as logged: lists for audits, answers because only one of several counts in the events."""
    schema = pa.schema([(name.split(".")[-1], kind) for name, kind in kinds.items()])
    with whole_file(path) as partial, pq.ParquetWriter(partial, schema) as writer:
        while block := list(_some(rows)):
            columns = [pa.array(column, kind)
                       for column, kind in zip(zip(*block, strict=True), kinds.values(), strict=True)]  # fmt: skip
            writer.write_table(pa.table(columns, schema=schema))


def _some(rows: Iterator[Any]) -> Iterator[Any]:
    return islice(rows, ROWS)
