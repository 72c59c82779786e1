"""The service's log: every acknowledged record is on the disk.

One thread writes. It takes all records that wait, writes them in one transaction, and tells each waiting one once that
transaction is committed: many requests share one flush of the disk, and no answer leaves before its record is safe.
One statement writes many lists, and one call notifies all futures of an event loop: each statement and
each call would make this thread and the loop wait for each other.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from localpolicy.errors import LocalPolicyError
from localpolicy.runtime.full_disk import has_no_room
from localpolicy.serving.database import Database
from localpolicy.serving.filters import dumps
from localpolicy.serving.records import Feedback, Record, Request, Shadowed, Shown

STUCK = 30.0  # seconds after which a transaction is given up, so that no request waits for a server that hangs
GROUP = 512  # records of one transaction at most

REQUEST_COLUMNS = (
    "id", "time", "person", "history", "items", "propensities", "policy", "beta", "mode", "floor", "filter", "deferred",
    "share", "arm", "stage", "rollout",
)  # fmt: skip
INSERT_REQUEST = f"INSERT INTO requests ({', '.join(REQUEST_COLUMNS)}) VALUES "
ONE_REQUEST = f"({', '.join('?' * len(REQUEST_COLUMNS))})"
INSERT_FILTER = "INSERT INTO filters VALUES (?, ?) ON CONFLICT DO NOTHING"
# A list that a rotation has claimed, or moved, takes no more reports: they are refused, and answers to it are late.
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
ERASED = "SELECT 1 FROM erased WHERE digest = ?"
INSERT_ERASED = "INSERT INTO erased VALUES (?) ON CONFLICT DO NOTHING"
INSERT_WITHDRAWN = (
    "INSERT INTO withdrawn SELECT id, time FROM requests WHERE id = ? AND rotation IS NULL ON CONFLICT DO NOTHING"
)
DELETE_WITHDRAWN = "DELETE FROM requests WHERE id = ? AND rotation IS NULL"
# When a list was seen, by the server's clock: when it was made, or, if it was deferred, when the first report came.
SEEN = "CASE WHEN r.deferred = 0 THEN r.time ELSE COALESCE(s.arrived, s.time) END"
FIND = f"""SELECT r.items, r.time, COALESCE({SEEN}, r.time) FROM requests r LEFT JOIN shown s ON s.request = r.id
WHERE r.id = ? AND r.rotation IS NULL"""
FILTER_OF = "SELECT content FROM requests JOIN filters ON digest = filter WHERE id = ?"
MOST_SHOWN = 1000  # lists of one person that are read for a request: all others wait meanwhile
SHOWN_TO = f"SELECT items FROM requests WHERE person = ? AND time >= ? AND time < ? LIMIT {MOST_SHOWN + 1}"
INSERT_SHADOW = "INSERT INTO shadow (request, policy, failed, rollout) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"


class LogError(LocalPolicyError):
    """The log could not store the records; none of them was acknowledged."""


class UnknownRequest(LocalPolicyError):
    """The request id is unknown to this service (HTTP 404)."""


def write(database: Database, record: Record) -> bool:
    """Write one record within a transaction; return whether it was new."""
    if isinstance(record, Request):
        write_requests(database, [record])
        return True
    if isinstance(record, Shown):
        report = (record.request, record.places, record.time, _arrived(record), record.request)
        return bool(database.execute(INSERT_SHOWN, report).rowcount)
    if isinstance(record, Shadowed):
        asked = (record.request, record.policy, int(record.failed), record.rollout)
        return bool(database.execute(INSERT_SHADOW, asked).rowcount)
    is_open = bool(database.rows(OPEN, (record.request,)))
    if not is_open and database.rows(ERASED, (erased_name(record.request),)):
        return False
    answer = (
        record.id, record.request, dumps(record.item), record.event, record.reward, record.time,
        int(record.late or not is_open),
        _arrived(record),
    )  # fmt: skip
    return bool(database.execute(INSERT_FEEDBACK, answer).rowcount)


def erased_name(request: str) -> str:
    """Return the digest that is kept of a list whose person was erased."""
    return hashlib.sha256(request.encode()).hexdigest()


def write_requests(database: Database, records: Sequence[Request]) -> None:
    """Write lists within a transaction, in statements of 1, 2, 4, … rows: few texts, whose plans are reused."""
    values = []
    for record in records:
        if digest := record.item_filter.digest:
            database.execute(INSERT_FILTER, (digest, record.item_filter.text))
        values.append((
            record.id, record.time, record.person, dumps(record.history), dumps(record.items),
            dumps(record.propensities), record.policy, record.beta, record.mode, record.floor,
            digest, int(record.deferred), record.share, record.arm, record.stage, record.rollout,
        ))  # fmt: skip
    start = 0
    while start < len(values):
        size = 1 << ((len(values) - start).bit_length() - 1)
        rows = values[start : start + size]
        database.execute(INSERT_REQUEST + ", ".join([ONE_REQUEST] * size), [value for row in rows for value in row])
        start += size


def _arrived(record: Shown | Feedback) -> int:
    return record.time if record.arrived is None else record.arrived


class StoredList(NamedTuple):
    """A list in the log: its items, when it was made and when it was seen."""

    items: list[Any]
    made: int
    seen: int  # or `made` until a report arrives: its window begins here


Found = StoredList | None


class Withdrawal(NamedTuple):
    """Request to withdraw a list that no client received."""

    request: str


Work = Request | Withdrawal | Callable[[Database], Any]  # a list to write, one to withdraw, or any other job
Answer = Future[Any] | asyncio.Future[Any]


class Log:
    """The log as seen by the service: a thread that writes records in groups and looks requests up.

    Inside an event loop answers are the loop's futures, elsewhere those of threads.
    """

    def __init__(self, address: Path | str) -> None:
        self.address = address
        self._waiting: queue.SimpleQueue[tuple[Work, Answer] | None] = queue.SimpleQueue()
        self._database = Database(address, create=True)  # raises here, in the caller's thread
        self.key = bytes.fromhex(self._database.about("key"))  # of the ids of requests
        self._withdrawn: list[str] = []  # lists to be withdrawn, perhaps not yet recorded as such
        self._began: float | None = None  # when the transaction at work began
        self._thread = threading.Thread(target=self._work, name="log", daemon=True)
        self._thread.start()
        self.records = self.transactions = 0

    def append(self, record: Record) -> Any:
        """Write a record; return a future, done once it is on the disk: whether the record was new."""
        return self._ask(record if isinstance(record, Request) else lambda database: write(database, record))

    def find(self, request: str) -> Any:
        """Look a list up; return a future: the `StoredList`, or None if it is unknown or rotated."""

        def look(database: Database) -> Found:
            rows = database.rows(FIND, (request,))
            return StoredList(json.loads(rows[0][0]), *rows[0][1:]) if rows else None

        return self._ask(look)

    def filter_of(self, request: str) -> Any:
        """Return a future: the content, as JSON, of the filter that a list was made with."""
        return self._ask(lambda database: database.rows(FILTER_OF, (request,))[0][0])

    def shown_to(self, person: str, since: int, until: int) -> Any:
        """Return a future: items of this person's lists between two times, in ms; None if the lists are too many."""

        def look(database: Database) -> list[Any] | None:
            rows = database.rows(SHOWN_TO, (person, since, until))
            if len(rows) > MOST_SHOWN:
                return None
            return list(dict.fromkeys(item for (items,) in rows for item in json.loads(items)))

        return self._ask(look)

    @property
    def shared(self) -> bool:
        """Whether the log is a database that several servers may share, not a file of this machine."""
        return self._database.postgres

    def check_disk(self) -> None:
        """Raise LogError if this machine's disk would not take a record; nothing is written."""
        path = Path(self.address)
        if has_no_room(path):
            raise LogError(f"the disk of {path} is full.")
        if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
            raise LogError(f"{path} cannot be written.")

    def look(self) -> Any:
        """Read from the log; return a future that is done when it has answered."""
        return self._ask(lambda database: database.rows("SELECT 1") and None)

    def rotated(self) -> Any:
        """Return a future: the number of answers that rotations have moved, by outcome."""

        def add_up(database: Database) -> Counter[str]:
            total: Counter[str] = Counter()
            for (counts,) in database.rows("SELECT answers FROM rotations WHERE answers IS NOT NULL"):
                total.update(json.loads(counts))
            return total

        return self._ask(add_up)

    def withdraw(self, request: str) -> None:
        """Withdraw a list that no client received: remove it from the log, or keep it from being written.

        Jobs are done in order, so it comes after the list; where the log takes nothing now, with what it takes next.
        """
        self._waiting.put((Withdrawal(request), Future()))

    def _ask(self, work: Work) -> Answer:
        try:
            answer: Answer = asyncio.get_running_loop().create_future()
        except RuntimeError:
            answer = Future()
        began = self._began
        if began is not None and time.monotonic() - began > STUCK:
            self._database.give_up()  # the waiting thread gets an error, and reconnects
            answer.set_exception(LogError(f"the log has not answered for {STUCK:g} seconds."))
            return answer
        self._waiting.put((work, answer))
        return answer

    def close(self) -> None:
        """Write the records that wait, then stop the thread."""
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

    def _write(self, asked: list[tuple[Work, Answer]]) -> None:
        self._began = time.monotonic()
        self._withdrawn += [work.request for work, _ in asked if isinstance(work, Withdrawal)]
        answers = [answer for _, answer in asked]
        results: list[Any]
        try:
            if self._database.broken:
                self._database.reconnect()
            with self._database.transaction():
                # Another process may have locked the log for long: who gave up meanwhile got an error.
                asked = [job for job in asked if not job[1].cancelled()]
                write_requests(self._database, [work for work, _ in asked if isinstance(work, Request)])
                done = {answer: self._do(work) for work, answer in asked}
                for request in self._withdrawn:
                    self._database.execute(INSERT_WITHDRAWN, (request,))
                    self._database.execute(DELETE_WITHDRAWN, (request,))
            results = [done.get(answer) for answer in answers]
        except Exception as error:  # whatever failed, the record must not be acknowledged
            results = [LogError(f"the log could not be written ({error}).") for _ in answers]
        else:
            self._withdrawn.clear()
            self.records, self.transactions = self.records + len(asked), self.transactions + 1
        finally:
            self._began = None
        _tell(answers, results)

    def _do(self, work: Work) -> Any:
        """Execute one job other than writing a list, and return its result."""
        return True if isinstance(work, Request | Withdrawal) else work(self._database)


def _tell(answers: Sequence[Answer], results: Sequence[Any]) -> None:
    """Set the results of the futures: of threads at once, of an event loop by one call for all its futures."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[Answer, Any]]] = {}
    for answer, result in zip(answers, results, strict=True):
        if isinstance(answer, Future):
            _settle([(answer, result)])
        else:
            loops.setdefault(answer.get_loop(), []).append((answer, result))
    for loop, pairs in loops.items():
        with suppress(RuntimeError):  # the loop is closed, so no one waits
            loop.call_soon_threadsafe(_settle, pairs)


def _settle(pairs: Sequence[tuple[Answer, Any]]) -> None:
    for answer, result in pairs:
        if answer.done():  # who waited has given up
            continue
        if isinstance(result, LogError):
            answer.set_exception(result)
        else:
            answer.set_result(result)
