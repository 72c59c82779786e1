"""The log: what is acknowledged is on the disk.

One thread writes. It takes all records that wait, writes them in one transaction, and tells each waiting one once that
transaction is committed: many requests share one flush of the disk, and no answer leaves before its record is safe.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from localpolicy.errors import LocalPolicyError
from localpolicy.serving.database import Database
from localpolicy.serving.records import Feedback, Record, Request, Shadowed, Shown, now

STUCK = 30.0  # seconds after which a transaction is given up: nothing may wait behind a server that hangs
GROUP = 512  # records of one transaction at most

REQUEST_COLUMNS = (
    "id", "time", "person", "history", "items", "propensities", "policy", "beta", "mode", "floor", "filter", "deferred",
    "share", "arm", "stage", "rollout",
)  # fmt: skip
INSERT_REQUEST = f"INSERT INTO requests ({', '.join(REQUEST_COLUMNS)}) VALUES ({', '.join('?' * len(REQUEST_COLUMNS))})"
INSERT_FILTER = "INSERT INTO filters VALUES (?, ?) ON CONFLICT DO NOTHING"
# A list that a rotation has claimed, or moved, is told nothing more: reports of it are refused, answers to it are late.
OPEN = "SELECT 1 FROM requests WHERE id = ? AND rotation IS NULL"
INSERT_SHOWN = (
    f"INSERT INTO shown (request, places, time, arrived) SELECT ?, ?, ?, ? WHERE EXISTS ({OPEN}) "
    "ON CONFLICT (request) DO UPDATE SET places = excluded.places, time = excluded.time "
    "WHERE excluded.places > shown.places"
)  # scrolling on shows more; less is an older report that came late
INSERT_FEEDBACK = (
    "INSERT INTO feedback (id, request, item, event, reward, time, late, arrived) VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT DO NOTHING"
)
INSERT_TOUCH = "INSERT INTO about VALUES ('touched', ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
INSERT_SHADOW = "INSERT INTO shadow (request, policy, failed, rollout) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"


class LogError(LocalPolicyError):
    """The log does not take what it is given; nothing of it was acknowledged."""


def dumps(content: Any) -> str:
    """JSON without spaces."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def write(database: Database, record: Record) -> bool:
    """Write one record within a transaction; whether it was new."""
    if isinstance(record, Request):
        if record.item_filter.digest:
            database.execute(INSERT_FILTER, (record.item_filter.digest, dumps(record.item_filter.content())))
        values = (
            record.id, record.time, record.person, dumps(record.history), dumps(record.items),
            dumps(record.propensities), record.policy, record.beta, record.mode, record.floor,
            record.item_filter.digest, int(record.deferred), record.share, record.arm, record.stage,
            record.rollout,
        )  # fmt: skip
        return bool(database.execute(INSERT_REQUEST, values).rowcount)
    if isinstance(record, Shown):
        report = (record.request, record.places, record.time, _arrived(record), record.request)
        return bool(database.execute(INSERT_SHOWN, report).rowcount)
    if isinstance(record, Shadowed):
        asked = (record.request, record.policy, int(record.failed), record.rollout)
        return bool(database.execute(INSERT_SHADOW, asked).rowcount)
    late = record.late or not database.rows(OPEN, (record.request,))
    answer = (
        record.id, record.request, dumps(record.item), record.event, record.reward, record.time, int(late),
        _arrived(record),
    )  # fmt: skip
    return bool(database.execute(INSERT_FEEDBACK, answer).rowcount)


def _arrived(record: Shown | Feedback) -> int:
    return record.time if record.arrived is None else record.arrived


Found = tuple[Sequence[Any], int] | None  # a request's items, and when it was made


class Log:
    """A thread that writes records in groups, and looks requests up."""

    def __init__(self, address: Path | str) -> None:
        self.address = address
        self._waiting: queue.SimpleQueue[tuple[Callable[[Database], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._database = Database(address, create=True)  # raises here, where the caller can be told
        self.key = bytes.fromhex(self._database.about("key"))  # of the ids of requests
        self._began: float | None = None  # when the transaction at work began
        self._thread = threading.Thread(target=self._work, name="log", daemon=True)
        self._thread.start()
        self.records = self.transactions = 0

    def append(self, record: Record) -> Future[bool]:
        """Whether the record was new; done once it is on the disk."""
        return self._ask(lambda database: write(database, record))

    def find(self, request: str) -> Future[Found]:
        """A request that was made, unless a rotation has it already."""

        def look(database: Database) -> Found:
            rows = database.rows("SELECT items, time FROM requests WHERE id = ? AND rotation IS NULL", (request,))
            return (json.loads(rows[0][0]), rows[0][1]) if rows else None

        return self._ask(look)

    def touch(self) -> Future[None]:
        """Done once something was written: a log that can only be read is not ready."""
        when = str(now())
        return self._ask(lambda database: database.execute(INSERT_TOUCH, (when,)) and None)

    def _ask(self, work: Callable[[Database], Any]) -> Future[Any]:
        answer: Future[Any] = Future()
        began = self._began
        if began is not None and time.monotonic() - began > STUCK:
            self._database.give_up()  # the thread that waits gets an error, and connects anew
            answer.set_exception(LogError(f"the log has not answered for {STUCK:g} seconds."))
            return answer
        self._waiting.put((work, answer))
        return answer

    def close(self) -> None:
        """Write what waits, then stop."""
        self._waiting.put(None)
        self._thread.join()
        self._database.close()

    def _work(self) -> None:
        while True:
            group = [self._waiting.get()]
            while len(group) < GROUP and group[-1] is not None:
                try:
                    group.append(self._waiting.get_nowait())
                except queue.Empty:
                    break
            asked = [job for job in group if job is not None]
            if asked:
                self._write(asked)
            if group[-1] is None:
                return

    def _write(self, asked: list[tuple[Callable[[Database], Any], Future[Any]]]) -> None:
        self._began = time.monotonic()
        try:
            if self._database.broken:
                self._database.reconnect()
            with self._database.transaction():
                results = [work(self._database) for work, _ in asked]
        except Exception as error:  # whatever it is, nobody may be told that the record is safe
            for _, answer in asked:
                answer.set_exception(LogError(f"the log could not be written ({error})."))
            return
        finally:
            self._began = None
        self.records, self.transactions = self.records + len(asked), self.transactions + 1
        for (_, answer), result in zip(asked, results, strict=True):
            answer.set_result(result)
