"""The log's database: one SQLite file for one machine, or a PostgreSQL server for several.

SQLite runs in WAL mode with synchronous=FULL: a transaction that was committed is on the disk. Both take the same SQL;
only the mark for parameters differs. Three locks keep writers apart: `transaction` (one writer at a time in SQLite; in
PostgreSQL many), `transaction(alone=True)` (no other process writes meanwhile), and `only_mover` (one rotation
or erasure at a time, while the service continues to write).
"""

from __future__ import annotations

import os
import secrets
import socket
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from localpolicy.errors import DataError, LocalPolicyError, WriteError
from localpolicy.runtime.full_disk import has_no_room, is_disk_full
from localpolicy.runtime.locks import NotLocked, try_to_lock

PATIENCE = 30.0  # seconds to wait for another process's transaction
CONNECT = 10  # seconds to wait for a PostgreSQL server, unless its address says otherwise
# A server that vanished without a word is given up after about this many seconds, not after the system's two hours.
ALIVE: dict[str, Any] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
CREATING, WRITING, MOVING = 8471, 8472, 8473  # PostgreSQL's advisory locks, by number
MOVER = ".moving"  # ends the name of the file that a rotation or erasure of a SQLite log has locked

VERSION = 7  # of the tables
# SQL that makes the tables of one version those of the next, by the version that it starts from. A step only adds
# tables, columns and indices, so that a server of the older version can write while others start.
UPGRADES: dict[int, str] = {}
# `rotation` is the number of the rotation that moves a row, and `rotations.answers` what became of the answers that it
# moved, as JSON; `evidence` is what a rollout needs of lists that were rotated; `arrived` says when a report came;
# `withdrawn` are lists that nobody was given; `erased` has the digests of lists of persons who were erased: what still
# comes back for them is not stored.
TABLES = """
CREATE TABLE requests (
    id TEXT PRIMARY KEY, time BIGINT NOT NULL, person TEXT, history TEXT NOT NULL, items TEXT NOT NULL,
    propensities TEXT NOT NULL, policy TEXT NOT NULL, beta DOUBLE PRECISION, mode TEXT NOT NULL,
    floor DOUBLE PRECISION NOT NULL, filter TEXT NOT NULL, deferred INTEGER NOT NULL, share DOUBLE PRECISION NOT NULL,
    arm TEXT NOT NULL, stage TEXT NOT NULL, rotation BIGINT, rollout TEXT NOT NULL DEFAULT '');
CREATE INDEX requests_by_time ON requests (time);
CREATE INDEX requests_by_person ON requests (person);
CREATE INDEX requests_by_rotation ON requests (rotation) WHERE rotation IS NOT NULL;
CREATE INDEX requests_by_rollout ON requests (rollout) WHERE rollout <> '';
CREATE TABLE filters (digest TEXT PRIMARY KEY, content TEXT NOT NULL);
CREATE TABLE shown (request TEXT PRIMARY KEY, places INTEGER NOT NULL, time BIGINT NOT NULL, arrived BIGINT);
CREATE TABLE feedback (
    id TEXT PRIMARY KEY, request TEXT NOT NULL, item TEXT NOT NULL, event TEXT NOT NULL, reward DOUBLE PRECISION,
    time BIGINT NOT NULL, late INTEGER NOT NULL, rotation BIGINT, arrived BIGINT);
CREATE INDEX feedback_by_request ON feedback (request);
CREATE INDEX feedback_by_rotation ON feedback (rotation) WHERE rotation IS NOT NULL;
CREATE TABLE shadow (
    request TEXT PRIMARY KEY, policy TEXT NOT NULL, failed INTEGER NOT NULL, rollout TEXT NOT NULL DEFAULT '');
CREATE TABLE rotations (
    number BIGINT PRIMARY KEY, upto BIGINT NOT NULL, file TEXT NOT NULL, rows BIGINT, sha256 TEXT, answers TEXT);
CREATE TABLE erasures (id TEXT PRIMARY KEY, time BIGINT NOT NULL, content TEXT NOT NULL);
CREATE TABLE erased (digest TEXT PRIMARY KEY);
CREATE TABLE evidence (
    request TEXT PRIMARY KEY, rollout TEXT NOT NULL, time BIGINT NOT NULL, person TEXT, arm TEXT NOT NULL,
    stage TEXT NOT NULL, policy TEXT NOT NULL, mode TEXT NOT NULL, items TEXT NOT NULL, seen BIGINT);
CREATE INDEX evidence_by_rollout ON evidence (rollout);
CREATE TABLE evidence_answers (
    id TEXT PRIMARY KEY, request TEXT NOT NULL, item TEXT NOT NULL, event TEXT NOT NULL, reward DOUBLE PRECISION,
    time BIGINT NOT NULL, arrived BIGINT);
CREATE INDEX evidence_answers_by_request ON evidence_answers (request);
CREATE TABLE withdrawn (request TEXT PRIMARY KEY, time BIGINT NOT NULL);
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL)
"""


def without_password(address: str) -> str:
    """Return the database's address without its password, for messages."""
    head, at, tail = address.rpartition("@")
    return f"{head.split('://')[0]}://…@{tail}" if at and "://" in head else address


class Database:
    """Connection to the log's database, for one thread. Unless `create` is set, a missing log is an error."""

    def __init__(self, address: Path | str, *, create: bool = False) -> None:
        self.address = str(address)
        self.name = without_password(self.address)
        self.postgres = self.address.startswith(("postgresql://", "postgres://"))
        if not self.postgres and not create and not Path(self.address).is_file():
            raise DataError(f"{self.name} does not exist; expected the log of a service, as 'lpi serve' writes it.")
        self._create = create
        self._connection: Any = self._connect()
        try:
            self._create_tables()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> Any:
        if self.postgres:
            try:
                import psycopg
            except ImportError:
                raise LocalPolicyError("a PostgreSQL log needs psycopg: pip install 'localpolicy[serve]'.") from None
            patience: dict[str, Any] = {} if "connect_timeout" in self.address else {"connect_timeout": CONNECT}
            try:
                return psycopg.connect(self.address, autocommit=True, client_encoding="UTF8", **ALIVE, **patience)
            except psycopg.Error as error:
                raise LocalPolicyError(f"the log's database does not answer: {str(error).strip()}") from None
        path = Path(self.address)
        with self.explain_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
        try:
            if self._create:  # WAL mode is written into the file; a file that is no log stays unchanged
                connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
        except sqlite3.Error as error:
            connection.close()
            raise self._problem(error, f"{path} cannot be opened as a log, which a service writes") from None
        return connection

    def _create_tables(self) -> None:
        """Create the tables if there are none and `create` is set; raise DataError if the database is no log."""
        with self.explain_errors():
            if self._version() == VERSION:
                return
            with self.transaction():
                if self.postgres:  # several servers that start at once would create the same table twice
                    self.execute("SELECT pg_advisory_xact_lock(?)", (CREATING,))
                found = self._version()
                if found == VERSION:
                    return
                if found is None and not self._create:
                    raise DataError(f"{self.name} holds no log; expected one that 'lpi serve' wrote.")
                if found is not None:
                    return self._upgrade(found)
                self._execute_all(TABLES)
                self.execute("INSERT INTO about VALUES ('key', ?)", (secrets.token_hex(16),))
                self.execute("INSERT INTO about VALUES ('version', ?)", (str(VERSION),))

    def _upgrade(self, found: int) -> None:
        """Bring a log of an older version to this one, within a transaction; raise DataError if there is no way."""
        steps = range(found, VERSION)
        if not steps or not all(step in UPGRADES for step in steps):
            remedy = "upgrade localpolicy" if found > VERSION else "use the one that wrote it"
            raise DataError(f"{self.name} is a log of version {found}, and this localpolicy knows {VERSION}: {remedy}.")
        for step in steps:
            self._execute_all(UPGRADES[step])
        self.execute("UPDATE about SET value = ? WHERE name = 'version'", (str(VERSION),))

    def _execute_all(self, statements: str) -> None:
        for statement in filter(None, map(str.strip, statements.split(";"))):
            self.execute(statement)

    def _version(self) -> int | None:
        """Version of the log's tables; None if there are no tables."""
        return int(self.about("version")) if self._has("about") else None

    def _has(self, table: str) -> bool:
        if self.postgres:
            return self.rows("SELECT to_regclass(?)", (table,))[0][0] is not None
        return bool(self.rows("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)))

    def about(self, name: str) -> str:
        """Return a property of the log by name: its `version`, or the `key` of its request ids."""
        return str(self.rows("SELECT value FROM about WHERE name = ?", (name,))[0][0])

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Execute one SQL statement; parameters are `?`."""
        if self.postgres:
            return self._connection.execute(sql.replace("?", "%s"), values)
        return self._connection.execute(sql, values)

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        return [tuple(row) for row in self.execute(sql, values).fetchall()]

    def stream(self, sql: str, values: Sequence[Any] = (), *, size: int = 4096) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query; one block of them is in memory at a time."""
        if not self.postgres:
            cursor = self.execute(sql, values)
            while block := cursor.fetchmany(size):
                yield from block
            return
        # PostgreSQL's client fetches all rows of a query at once, unless the cursor is the server's.
        cursor = self._connection.cursor(name=f"rows_{secrets.token_hex(8)}", withhold=True)
        try:
            cursor.execute(sql.replace("?", "%s"), values)
            while block := cursor.fetchmany(size):
                yield from block
        finally:
            with suppress(Exception):  # a server that is gone has no cursors either
                cursor.close()

    @contextmanager
    def transaction(self, *, alone: bool = False) -> Iterator[None]:
        """Context manager: run the block in one transaction, which is on the disk when the block has ended.

        With `alone` no other process writes meanwhile: it waits for their transactions, and makes new ones wait.
        """
        self.execute("BEGIN" if self.postgres else "BEGIN IMMEDIATE")
        try:
            if self.postgres:
                self.execute(f"SELECT pg_advisory_xact_lock{'' if alone else '_shared'}(?)", (WRITING,))
            yield
            self.execute("COMMIT")
        except BaseException:
            if not self.broken:
                with suppress(Exception):  # the first error is reported
                    self.execute("ROLLBACK")
            raise

    @contextmanager
    def only_mover(self) -> Iterator[None]:
        """Context manager: raise LocalPolicyError if another process rotates this log or erases from it."""
        busy = f"another process rotates {self.name} or erases from it; wait for it, then run this again."
        if self.postgres:
            if not self.rows("SELECT pg_try_advisory_lock(?)", (MOVING,))[0][0]:
                raise LocalPolicyError(busy)
            try:
                yield
            finally:
                if not self.broken:
                    self.execute("SELECT pg_advisory_unlock(?)", (MOVING,))
            return
        path = Path(self.address + MOVER)
        with self.explain_errors():
            path.touch()
        if (lock := try_to_lock(path)) is NotLocked.TAKEN:
            raise LocalPolicyError(busy)
        try:
            yield
        finally:
            if not isinstance(lock, NotLocked):
                os.close(lock)

    @contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Context manager: turn errors of the database or the disk into a LocalPolicyError that explains them."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise self._problem(error, f"the log {self.name} could not be read or written") from None
        except Exception as error:
            if not self.postgres or type(error).__module__.partition(".")[0] != "psycopg":
                raise
            raise self._problem(error, "the log's database refused") from None

    def _problem(self, error: Exception, what: str) -> LocalPolicyError:
        if is_disk_full(error) or (not self.postgres and has_no_room(Path(self.address))):
            return WriteError(Path(self.name), f"the disk is full ({str(error).strip()})")
        return LocalPolicyError(f"{what} ({str(error).strip()}).")

    @property
    def broken(self) -> bool:
        """Whether the connection to the server is lost."""
        return bool(self.postgres and (self._connection.closed or self._connection.broken))

    def reconnect(self) -> None:
        """Close the connection and open a new one."""
        self.close()
        self._connection = self._connect()

    def give_up(self) -> None:
        """Close the socket of a server that does not answer, from another thread; the waiting thread gets an error."""
        if self.postgres:
            with suppress(Exception), socket.socket(fileno=os.dup(self._connection.pgconn.socket)) as line:
                line.shutdown(socket.SHUT_RDWR)

    def drop_unused_filters(self) -> None:
        """Delete filters that no list refers to. Call within `transaction(alone=True)`."""
        self.execute("DELETE FROM filters WHERE digest NOT IN (SELECT filter FROM requests)")

    def forget(self, tables: Sequence[str]) -> None:
        """Rewrite the database's files, so that rows deleted from these tables are in none of them.

        PostgreSQL's own write-ahead log and backups age by the server's rules.
        """
        if self.postgres:
            self.execute(f"SET lock_timeout = '{PATIENCE:g}s'")
            # The planner's statistics quote values of rows: they are collected again too.
            self.execute(f"VACUUM (FULL, ANALYZE) {', '.join((*tables, 'filters'))}")
            return
        self.execute("VACUUM")  # goes through the write-ahead log, so that one must be emptied after it
        if self.rows("PRAGMA wal_checkpoint(TRUNCATE)")[0][0]:
            raise LocalPolicyError(f"what was deleted is still in {self.name}-wal, since another process reads the "
                                   "log. Run this again once it has ended.")  # fmt: skip

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
