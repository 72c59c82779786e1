"""Where the log lies: one SQLite file for one machine, or a PostgreSQL server for several.

SQLite runs in WAL mode with synchronous=FULL: a transaction that was committed is on the disk. Both take the same SQL;
only the mark for parameters differs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from localpolicy.errors import LocalPolicyError

VERSION = 2  # of the tables; a log of an older version is brought up to date when it is opened
PATIENCE = 30.0  # seconds to wait for another process's transaction
SCHEMA = """
CREATE TABLE IF NOT EXISTS requests (
    id TEXT PRIMARY KEY, time BIGINT NOT NULL, person TEXT, history TEXT NOT NULL, items TEXT NOT NULL,
    propensities TEXT NOT NULL, policy TEXT NOT NULL, beta DOUBLE PRECISION, mode TEXT NOT NULL,
    floor DOUBLE PRECISION NOT NULL, filter TEXT NOT NULL, deferred INTEGER NOT NULL, share DOUBLE PRECISION NOT NULL,
    arm TEXT NOT NULL, stage TEXT NOT NULL, rollout TEXT NOT NULL DEFAULT '');
CREATE INDEX IF NOT EXISTS requests_by_rollout ON requests (rollout) WHERE rollout <> '';
CREATE INDEX IF NOT EXISTS requests_by_time ON requests (time);
CREATE INDEX IF NOT EXISTS requests_by_person ON requests (person);
CREATE TABLE IF NOT EXISTS filters (digest TEXT PRIMARY KEY, content TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS shown (request TEXT PRIMARY KEY, places INTEGER NOT NULL, time BIGINT NOT NULL,
    arrived BIGINT);
CREATE TABLE IF NOT EXISTS feedback (
    id TEXT PRIMARY KEY, request TEXT NOT NULL, item TEXT NOT NULL, event TEXT NOT NULL, reward DOUBLE PRECISION,
    time BIGINT NOT NULL, late INTEGER NOT NULL, arrived BIGINT);
CREATE INDEX IF NOT EXISTS feedback_by_request ON feedback (request);
CREATE TABLE IF NOT EXISTS shadow (
    request TEXT PRIMARY KEY, policy TEXT NOT NULL, failed INTEGER NOT NULL, rollout TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS evidence (
    request TEXT PRIMARY KEY, rollout TEXT NOT NULL, time BIGINT NOT NULL, person TEXT, arm TEXT NOT NULL,
    stage TEXT NOT NULL, policy TEXT NOT NULL, mode TEXT NOT NULL, items TEXT NOT NULL, seen BIGINT);
CREATE INDEX IF NOT EXISTS evidence_by_rollout ON evidence (rollout);
CREATE TABLE IF NOT EXISTS evidence_answers (
    id TEXT PRIMARY KEY, request TEXT NOT NULL, item TEXT NOT NULL, event TEXT NOT NULL, reward DOUBLE PRECISION,
    time BIGINT NOT NULL, arrived BIGINT);
CREATE INDEX IF NOT EXISTS evidence_answers_by_request ON evidence_answers (request);
CREATE TABLE IF NOT EXISTS persons (person TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS rotations (
    upto BIGINT PRIMARY KEY, since BIGINT NOT NULL, file TEXT NOT NULL, rows BIGINT, sha256 TEXT);
CREATE TABLE IF NOT EXISTS erasures (id TEXT PRIMARY KEY, time BIGINT NOT NULL, content TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS log_version (version INTEGER NOT NULL);
"""
MIGRATIONS = {  # by the version they start from
    1: (
        "ALTER TABLE requests ADD COLUMN rollout TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE shadow ADD COLUMN rollout TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE shown ADD COLUMN arrived BIGINT",
        "ALTER TABLE feedback ADD COLUMN arrived BIGINT",
    ),
}


class Database:
    """A connection, for one thread."""

    def __init__(self, address: Path | str) -> None:
        self.address = str(address)
        self.postgres = self.address.startswith(("postgresql://", "postgres://"))
        self._connection: Any = self._connect()
        self._create()

    def _connect(self) -> Any:
        if self.postgres:
            try:
                import psycopg
            except ImportError:
                raise LocalPolicyError("a PostgreSQL log needs psycopg: pip install 'localpolicy[serve]'.") from None
            try:
                return psycopg.connect(self.address, autocommit=True, client_encoding="UTF8")
            except psycopg.OperationalError as error:
                raise LocalPolicyError(f"the log's database does not answer: {str(error).strip()}") from None
        path = Path(self.address)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
        except sqlite3.Error as error:
            raise LocalPolicyError(f"{path} cannot be opened as a log ({error}).") from None
        return connection

    def _create(self) -> None:
        with self.transaction():
            if self.postgres:  # several servers that start at once would create the same table twice
                self.execute("SELECT pg_advisory_xact_lock(8471)")
            found = self._version()
            if found is not None and found > VERSION:
                raise LocalPolicyError(f"the log {self.address} has version {found} of its tables; this program knows "
                                       f"{VERSION}. Use a newer localpolicy.")  # fmt: skip
            for version in range(VERSION if found is None else found, VERSION):
                for statement in MIGRATIONS[version]:
                    self.execute(statement)
            for statement in filter(None, map(str.strip, SCHEMA.split(";"))):
                self.execute(statement)
            if found != VERSION:
                self.execute("DELETE FROM log_version")
                self.execute("INSERT INTO log_version VALUES (?)", (VERSION,))

    def _version(self) -> int | None:
        """Of the tables that are there; None where there are none yet."""
        names = "SELECT tablename FROM pg_tables" if self.postgres else "SELECT name FROM sqlite_master"
        tables = {name for (name,) in self.rows(names)}
        if "log_version" in tables:
            return int(self.rows("SELECT version FROM log_version")[0][0])
        return 1 if "requests" in tables else None  # the first version did not state itself

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """One statement; parameters are `?`."""
        if self.postgres:
            return self._connection.execute(sql.replace("?", "%s"), values)
        return self._connection.execute(sql, values)

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        return [tuple(row) for row in self.execute(sql, values).fetchall()]

    def stream(self, sql: str, values: Sequence[Any] = (), *, size: int = 4096) -> Iterator[tuple[Any, ...]]:
        """Rows of a query, a block at a time."""
        cursor = self.execute(sql, values)
        while block := cursor.fetchmany(size):
            yield from map(tuple, block)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block's statements, or none; on the disk when the block has ended."""
        self.execute("BEGIN" if self.postgres else "BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if not self.broken:
                self.execute("ROLLBACK")
            raise
        self.execute("COMMIT")

    @property
    def broken(self) -> bool:
        """Whether the server went away."""
        return bool(self.postgres and (self._connection.closed or self._connection.broken))

    def reconnect(self) -> None:
        """Connect anew."""
        self.close()
        self._connection = self._connect()

    def drop_unused_filters(self) -> None:
        """Delete filters that no list refers to, within a transaction."""
        if self.postgres:  # else a list that comes now could refer to one that goes
            self.execute("LOCK TABLE filters IN SHARE ROW EXCLUSIVE MODE")
        self.execute("DELETE FROM filters WHERE digest NOT IN (SELECT filter FROM requests)")

    def close(self) -> None:
        """Let go."""
        self._connection.close()
