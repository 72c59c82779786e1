"""The log on a PostgreSQL server: the same records, the same rotation, several servers at once."""

from __future__ import annotations

import os
import signal
import threading

import pyarrow.parquet as pq
import pytest
from test_log import HOUR, START, answer, listed, write

from localpolicy.errors import LocalPolicyError
from localpolicy.serving import log as logging_
from localpolicy.serving.database import Database
from localpolicy.serving.erase import erase
from localpolicy.serving.log import Log
from localpolicy.serving.records import Shown
from localpolicy.serving.rotate import rotate


def test_records_of_several_servers_are_joined_rotated_and_erased(postgres_log, tmp_path):
    logs = [Log(postgres_log) for _ in range(3)]
    requests = [listed(number) for number in range(60)]

    def serve(number: int) -> None:
        for request in requests[number::3]:
            assert write(logs[number], request, answer(request, 2, id=request.id)) == [True, True]
            assert write(logs[number], answer(request, 2, id=request.id)) == [False]
            write(logs[number], Shown(request.id, 2, START + 1))

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert logs[0].find(requests[1].id).result(60) == ([1, 2, 3], START, START)
    erase("p7", log=postgres_log)
    for log in logs:
        log.close()
    (file,) = rotate(postgres_log, out=tmp_path, upto=START + HOUR)
    rows = pq.read_table(file).to_pylist()
    assert len(rows) == 59 * 2 and {row["sequence_id"] for row in rows} == {f"p{n}" for n in range(60)} - {"p7"}
    assert {(row["item_id"], row["event"]) for row in rows} == {(1, "none"), (2, "click")}
    assert rotate(postgres_log, out=tmp_path, upto=START + HOUR) == []


def test_a_server_that_went_away_is_found_again(postgres_log):
    log = Log(postgres_log)
    assert write(log, listed()) == [True]
    other = Database(postgres_log)
    other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    with pytest.raises(LocalPolicyError, match="could not be written"):
        log.append(listed()).result(60)
    assert write(log, listed()) == [True]
    other.close()
    log.close()


def test_a_server_that_does_not_answer():
    with pytest.raises(LocalPolicyError, match="does not answer"):
        Log("postgresql://postgres@127.0.0.1:1/none?connect_timeout=2")


def test_a_server_that_hangs_is_given_up(postgres_log, monkeypatch):
    monkeypatch.setattr(logging_, "STUCK", 0.2)
    log, other = Log(postgres_log), Database(postgres_log)
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    (pid,) = other.rows(query)[0]
    os.kill(pid, signal.SIGSTOP)
    try:
        waits = log.append(listed())
        assert not waits.done()
        threading.Event().wait(0.3)
        with pytest.raises(LocalPolicyError, match="has not answered"):
            log.append(listed()).result(60)
        with pytest.raises(LocalPolicyError, match="could not be written"):
            waits.result(60)
        assert write(log, listed()) == [True], "over a new connection"
    finally:
        os.kill(pid, signal.SIGCONT)
    other.close()
    log.close()


def test_rows_of_a_query_come_in_blocks(address):
    """On either database: of ten thousand rows no more than a block is fetched before the first is handed on."""
    database = Database(address, create=True)
    numbers = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000) SELECT i FROM n WHERE i > ?"
    )
    rows, others = (database.stream(numbers, (start,), size=100) for start in (0, 5000))
    assert [next(rows), next(others), next(rows)] == [(1,), (5001,), (2,)], "two at once, in turns"
    if database.postgres:
        held = "SELECT COUNT(*) FROM pg_cursors WHERE is_holdable AND name > 'rows_'"
        assert database.rows(held) == [(2,)], "the rows wait at the server"
    assert sum(1 for _ in rows) == 9998
    others.close()
    database.close()
