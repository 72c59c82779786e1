"""What nobody was given is no list, the server's clock decides what is late, and every answer is accounted for."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import sqlite3
from collections import Counter
from contextlib import contextmanager

import pyarrow.parquet as pq
import pytest
from http_client import ask, rows
from test_log import HOUR, START, answer, listed, write
from test_rotation import fates
from typer.testing import CliRunner

from localpolicy.cli.main import app
from localpolicy.errors import LocalPolicyError
from localpolicy.serving import handlers
from localpolicy.serving.audit import audit
from localpolicy.serving.database import Database
from localpolicy.serving.join import FATES, JoinConfig
from localpolicy.serving.log import Log, LogError
from localpolicy.serving.records import Shown, new_id, now
from localpolicy.serving.rotate import move, rotate

WAIT = 0.2  # seconds that these services wait for their log
SLACK = 60_000  # ms that a client's clock may be off


def told(client, found: dict, **changes) -> dict:
    body = {"id": new_id(now()), "request": found["request"], "item": found["items"][0], "event": "click", **changes}
    return client.post("/v1/feedback", json=body)


@contextmanager
def held(path):
    """Another process writes: a backup, or a script with an open transaction."""
    holder = sqlite3.connect(path, isolation_level=None, timeout=30)
    holder.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        holder.execute("ROLLBACK")
        holder.close()


def caught_up(client) -> None:
    """Wait until the log has done all earlier jobs: its jobs are done in order."""
    service = client.app.state.service

    async def look():
        await service.log.look()

    client.portal.call(look)


# ---------------------------------------------------------------------- a log that is blocked


def test_what_was_refused_while_the_log_was_blocked_is_not_in_it(start, tmp_path):
    client = start(log_seconds=WAIT)
    before = ask(client, person="before")
    with held(tmp_path / "log.db"):
        assert [ask(client, expect=503, person=f"nobody-{number}")["error"] for number in range(3)]
        assert told(client, before).status_code == 503
        assert client.post("/v1/shown", json={"request": before["request"]}).status_code == 503
        assert client.get("/readyz").status_code == 503 and client.get("/healthz").status_code == 200
        assert client.post("/v1/preview", json={"history": [100], "beta": 0.5, "k": 3}).status_code == 200
    caught_up(client)
    assert rows(tmp_path, "SELECT person FROM requests") == [("before",)]
    assert rows(tmp_path, "SELECT * FROM feedback") == rows(tmp_path, "SELECT * FROM shown") == []
    assert told(client, before).json() == {"stored": True, "late": False}, "and it goes on"
    assert "localpolicy_withdrawn_total 3.0" in client.get("/metrics").text
    moved = move(tmp_path / "log.db", out=tmp_path / "events", upto=now() + HOUR)
    assert set(pq.read_table(moved.files[0])["sequence_id"].to_pylist()) == {"before"}


def test_a_list_that_was_written_too_late_is_withdrawn(client, tmp_path, monkeypatch):
    service = client.app.state.service

    async def too_late(stored):
        await stored
        raise LogError("the log did not answer")

    monkeypatch.setattr(service, "written", too_late)
    ask(client, expect=503)
    monkeypatch.undo()
    caught_up(client)
    ((gone, made),) = rows(tmp_path, "SELECT request, time FROM withdrawn")
    assert rows(tmp_path, "SELECT * FROM requests") == [] and abs(made - now()) < HOUR
    lost = {"request": gone, "items": [100]}
    assert told(client, lost).json() == {"stored": True, "late": True}
    moved = move(tmp_path / "log.db", out=tmp_path / "events")
    assert (moved.files, moved.answers) == ([], {"withdrawn": 1})


@pytest.mark.parametrize("error", [asyncio.CancelledError, RuntimeError])
def test_whatever_ends_a_request_before_its_answer_withdraws_its_list(client, tmp_path, monkeypatch, error):
    service = client.app.state.service

    async def ended(stored):
        await stored
        raise error

    asked = handlers.Recommend(history=[100], k=3)
    monkeypatch.setattr(service, "written", ended)
    with pytest.raises((error, concurrent.futures.CancelledError)):
        client.portal.call(service.recommend, asked)
    caught_up(client)
    assert rows(tmp_path, "SELECT * FROM requests") == [] and len(rows(tmp_path, "SELECT * FROM withdrawn")) == 1


def test_a_commit_that_failed_and_did_not_is_withdrawn_by_the_next(client, tmp_path, monkeypatch):
    """A server may have committed what it could not confirm."""
    transaction = Database.transaction

    @contextmanager
    def unconfirmed(database, **settings):
        with transaction(database, **settings):
            yield
        raise sqlite3.OperationalError("the connection was lost")

    monkeypatch.setattr(Database, "transaction", unconfirmed)
    ask(client, expect=503)
    monkeypatch.undo()
    kept = ask(client)
    caught_up(client)
    assert rows(tmp_path, "SELECT id FROM requests") == [(kept["request"],)]
    assert len(rows(tmp_path, "SELECT * FROM withdrawn")) == 1


# ---------------------------------------------------------------------- is it ready?


def test_who_asks_whether_it_is_ready_writes_nothing(client, tmp_path):
    service = client.app.state.service
    changes = service.log._database._connection.total_changes
    for _ in range(3):
        assert client.get("/readyz").json() == {"status": "ok", "log": "own disk"}
    assert service.log._database._connection.total_changes == changes


def test_a_disk_that_takes_nothing_is_not_ready(client, monkeypatch):
    monkeypatch.setattr("localpolicy.serving.log.has_no_room", lambda path: True)
    assert client.get("/readyz").status_code == 503 and client.get("/healthz").status_code == 200
    monkeypatch.undo()
    assert client.get("/readyz").status_code == 200
    monkeypatch.setattr("localpolicy.serving.log.os.access", lambda path, mode: False)
    assert client.get("/readyz").status_code == 503


def test_a_log_that_hangs_is_not_ready_unless_it_is_shared(start, monkeypatch):
    client = start(log_seconds=WAIT)
    log = client.app.state.service.log
    monkeypatch.setattr(log, "_ask", lambda work: asyncio.get_running_loop().create_future())
    assert client.get("/readyz").status_code == 503
    monkeypatch.setattr(type(log), "shared", True)
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["log"]) == (200, "the shared database does not answer")
    assert ask(client, expect=503)["error"] == "the log cannot be written, so nothing is answered."
    monkeypatch.undo()
    assert client.get("/metrics").status_code == 200


# ---------------------------------------------------------------------- times


def moments(made: int, here: int) -> dict[str, tuple[int, int]]:
    """Times that a client may state of a list made then, and its answer now."""
    return {
        "1970": (0, 422), "ten days ago": (here - 240 * HOUR, 422), "ten days to come": (here + 240 * HOUR, 422),
        "the year 9999": (253_402_300_799_999, 422), "just too early": (made - SLACK - 1, 422),
        "just too late": (here + SLACK + 1, 422), "early by a good clock's error": (made - SLACK, 200),
        "late by a good clock's error": (here + SLACK, 200), "its own": (made, 200),
    }  # fmt: skip


@pytest.mark.parametrize("name", moments(0, 0))
@pytest.mark.parametrize("path", ["/v1/shown", "/v1/feedback"])
def test_times_outside_of_a_lists_life_are_refused(client, tmp_path, monkeypatch, path, name):
    found = ask(client, defer=True)
    made = int(found["request"][:12], 16)
    here = made + 1_800_000
    monkeypatch.setattr(handlers, "now", lambda: here)
    time, status = moments(made, here)[name]
    body = {"request": found["request"], "time": time}
    if path == "/v1/feedback":
        body |= {"id": "f", "item": found["items"][0], "event": "purchase"}
    answer = client.post(path, json=body)
    table = path.rpartition("/")[2]
    assert answer.status_code == status, answer.text
    kept = rows(tmp_path, f"SELECT time, arrived FROM {table}")
    assert kept == ([(time, here)] if status == 200 else []), "as told, beside the server's own"


def test_a_client_may_have_a_worse_clock_where_the_service_says_so(start, monkeypatch):
    client = start(clock_seconds=0)
    found = ask(client)
    made = int(found["request"][:12], 16)
    monkeypatch.setattr(handlers, "now", lambda: made + 1000)
    statuses = [told(client, found, time=time).status_code for time in (made - 1, made, made + 1000, made + 1001)]
    assert statuses == [422, 200, 200, 422]


def test_lateness_is_a_matter_of_the_servers_clock(client, monkeypatch):
    found, deferred = ask(client), ask(client, defer=True)
    made = int(found["request"][:12], 16)
    monkeypatch.setattr(handlers, "now", lambda: made + HOUR)
    assert not told(client, found).json()["late"]
    assert client.post("/v1/shown", json={"request": deferred["request"]}).json()["stored"]
    monkeypatch.setattr(handlers, "now", lambda: made + HOUR + 1)
    assert told(client, found).json()["late"] and told(client, found, time=made).json()["late"]
    opened = made + HOUR
    for late, moment in ((False, opened + HOUR), (True, opened + HOUR + 1)):
        monkeypatch.setattr(handlers, "now", lambda moment=moment: moment)
        assert told(client, deferred).json()["late"] == late, "the window of what is shown later begins later"


REWARDS = [(1, 200), (1.5, 200), (-2, 200), ("1", 422), (True, 422), ("nan", 422), ([1], 422), (1e10, 422)]


@pytest.mark.parametrize(("reward", "status"), REWARDS)
def test_a_reward_is_a_number(client, tmp_path, reward, status):
    assert told(client, ask(client), reward=reward).status_code == status
    assert rows(tmp_path, "SELECT reward FROM feedback") == ([(reward,)] if status == 200 else [])


@pytest.mark.parametrize("beta", ["0.5", True])
def test_a_dial_is_a_number(client, beta):
    ask(client, expect=422, beta=beta)
    assert client.post("/v1/preview", json={"history": [100], "beta": beta, "k": 3}).status_code == 422


# ---------------------------------------------------------------------- what became of every answer


@pytest.fixture
def log(address):
    made = Log(address)
    yield made
    made.close()


def ledger(log: Log) -> Counter:
    """Answers of every fate, and how many of each there should be."""
    lists = [listed(number, id=new_id(START, log.key)) for number in range(6)]
    seen, half, unseen, _, rotated, withdrawn = lists
    lists[2] = unseen = listed(2, deferred=True)
    write(log, rotated)
    rotate(log.address, out=log.out, upto=START + 1)
    write(log, seen, half, unseen, withdrawn, Shown(half.id, 1, START + 5))
    log.withdraw(withdrawn.id)
    nobodys = listed(9, id=new_id(START + 50 * HOUR, log.key))
    answers = [
        *(answer(seen, item, after=after) for item, after in ((1, 1), (2, 2), (2, HOUR))),  # used
        answer(half, 1),  # used
        *(answer(seen, 3, after=HOUR + more) for more in (1, 2)), answer(rotated, 1),  # late
        answer(half, 2), answer(unseen, 1),  # unseen
        answer(seen, 1, "purchse"),  # set aside
        answer(withdrawn, 1), answer(withdrawn, 2),  # withdrawn
        answer(nobodys, 1),  # unknown
    ]  # fmt: skip
    assert all(write(log, *answers))
    return Counter({"used": 4, "late": 3, "unseen": 2, "set aside": 1, "withdrawn": 2, "unknown": 1})


def test_every_answer_is_accounted_for(log, tmp_path, caplog):
    log.out = tmp_path / "events"
    expected = ledger(log)
    moved = move(log.address, out=log.out, upto=START + 10 * HOUR)
    assert moved.answers == expected == fates(log.out) and set(expected) == set(FATES)
    assert log.rotated().result(60) == expected
    (file,) = moved.files
    events = [row["event"] for row in pq.read_table(file).to_pylist() if row["sequence_id"] == "p0"]
    assert events == ["click", "click", "none"]
    database = Database(log.address)
    assert database.rows("SELECT * FROM feedback") == []
    database.close()
    assert move(log.address, out=log.out, upto=START + 10 * HOUR).answers == {}, "each once"
    assert "13 answers: 4 used, 3 late" in moved.text() and "1 to lists that the log does not know" in moved.text()


def test_late_answers_count_where_that_is_asked_for(log, tmp_path):
    log.out = tmp_path / "events"
    expected = ledger(log) + Counter(used=2) - Counter(late=2)
    moved = move(log.address, out=log.out, upto=START + 10 * HOUR, late=True)
    assert moved.answers == expected, "but not those of lists that left the log before"
    rows = pq.read_table(moved.files[0]).to_pylist()
    assert [row["event"] for row in rows if row["sequence_id"] == "p0"] == ["click", "click", "click"]


@pytest.mark.parametrize(("grace", "fate"), [(59, "late"), (60, "used")])
def test_grace_is_for_what_happened_in_time_and_arrived_after(log, tmp_path, grace, fate):
    request = listed(1)
    write(log, request, answer(request, 1, after=HOUR, arrived=START + HOUR + 60_000, late=True),
          answer(request, 2, after=HOUR + 1, arrived=START + HOUR + 60_000, late=True))  # fmt: skip
    assert move(log.address, out=tmp_path, upto=START + 1, grace=grace).answers == Counter([fate, "late"])


def test_a_list_seen_late_is_moved_once_its_own_window_is_over(log, tmp_path):
    """Made at 0, seen at 50 minutes, answered at 100: an hour's window from when it was seen."""
    request, minute = listed(1, deferred=True), 60_000
    write(log, request, Shown(request.id, 3, START + 50 * minute), answer(request, 1, after=100 * minute))
    config = JoinConfig(window=3600)
    assert move(log.address, out=tmp_path, config=config, upto=START + 50 * minute).files == []
    moved = move(log.address, out=tmp_path, config=config, upto=START + 50 * minute + 1)
    assert moved.answers == {"used": 1} and pq.read_table(moved.files[0])["event"].to_pylist()[0] == "click"


def test_the_audit_of_a_folder_counts_as_that_of_the_log_did(log, tmp_path):
    for number in range(60):
        request = listed(number)
        after = 1000 if number < 20 else 2 * HOUR
        assert all(write(log, request, answer(request, 1, after=after, late=number >= 20)))
    said = {}
    for what in (log.address, tmp_path / "events"):
        if what != log.address:
            rotate(log.address, out=what, upto=START + 10 * HOUR)
        (found,) = [each for each in audit(what).findings if each.check == "feedback"]
        said[str(what)] = found.text
    assert len(set(said.values())) == 1 and "40 answers came late" in found.text


def test_the_service_and_the_command_tell_the_fates(start, tmp_path):
    client = start(window=3600)
    found = ask(client)
    told(client, found)
    assert 'localpolicy_rotated_answers{fate="used"} 0.0' in client.get("/metrics").text
    out, file = tmp_path / "events", tmp_path / "said.json"
    words = ["rotate", str(tmp_path / "log.db"), "--out", str(out), "--now", "--json", str(file)]
    assert CliRunner().invoke(app, words).exit_code == 0
    said = json.loads(file.read_text())
    assert said["answers"] == {"used": 1} and len(said["files"]) == 1
    text = client.get("/metrics").text
    assert 'localpolicy_rotated_answers{fate="used"} 1.0' in text and 'fate="unknown"} 0.0' in text


def test_a_log_that_cannot_be_read_ends_a_rotation_with_a_message(tmp_path):
    (tmp_path / "log.db").write_bytes(b"SQLite format 3\x00" + b"\x00" * 4000)
    with pytest.raises(LocalPolicyError):
        move(tmp_path / "log.db", out=tmp_path / "events")
