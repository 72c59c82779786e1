"""A real server: killed, swapped, asked slowly, and asked by many."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import tempfile
import threading
from contextlib import ExitStack, suppress
from types import SimpleNamespace

import numpy as np
import pytest
from live import serving
from scipy.special import softmax
from test_rerank_endpoint import question
from test_rotation import everything
from typer.testing import CliRunner

from localpolicy.cli.main import app
from localpolicy.errors import ConfigError
from localpolicy.ranker.reading import read_requests
from localpolicy.runtime.locks import lock_if_free
from localpolicy.serving import service
from localpolicy.serving.database import Database
from localpolicy.serving.export import export
from localpolicy.serving.recommender import Recommender
from localpolicy.serving.records import now
from localpolicy.serving.rotate import rotate
from localpolicy.serving.service import NUMBERS, PAUSES, Listening, shared_numbers

KILLS, RECORDS = int(os.environ.get("LPI_KILLS", "2")), int(os.environ.get("LPI_KILLED_RECORDS", "300"))
CLIENTS = 16  # whose records share one flush of the disk


LISTS = ("/v1/recommend", {"history": [100], "k": 3})
RERANKED = ("/v1/rerank", question())


def load(server, acknowledged: list[tuple[str, str]], enough: threading.Event, goal: int, asked=LISTS) -> None:
    """Ask and answer until the server is gone; note what it acknowledged."""
    connection = server.connect()
    number = 0
    try:
        while True:
            number += 1
            status, found = server.call("POST", *asked, over=connection)
            assert status == 200, found
            acknowledged.append(("requests", found["request"]))
            answer = {
                "id": f"f{found['request']}",
                "request": found["request"],
                "item": found["items"][0],
                "event": "click",
            }
            status, stored = server.call("POST", "/v1/feedback", answer, over=connection)
            assert status == 200 and stored["stored"]
            acknowledged.append(("feedback", answer["id"]))
            if len(acknowledged) >= goal:
                enough.set()
    except (ConnectionError, http.client.HTTPException, json.JSONDecodeError):
        pass  # it was killed
    finally:
        enough.set()
        connection.close()


@pytest.mark.parametrize("asked", [LISTS, RERANKED], ids=["an export", "a layer"])
def test_nothing_that_was_acknowledged_is_lost_when_the_server_is_killed(asked, exported, layer, tmp_path):
    """The full trial: LPI_KILLS=50 LPI_KILLED_RECORDS=100000."""
    served = layer if asked is RERANKED else exported.folder
    acknowledged: list[tuple[str, str]] = []
    for kill in range(KILLS):
        with serving(served, tmp_path / "log.db") as server:
            enough, goal = threading.Event(), RECORDS * (kill + 1) // KILLS
            clients = [threading.Thread(target=load, args=(server, acknowledged, enough, goal, asked))
                       for _ in range(CLIENTS)]  # fmt: skip
            for client in clients:
                client.start()
            assert enough.wait(300)
            server.kill()
            for client in clients:
                client.join(120)
    database = Database(tmp_path / "log.db")
    found = {(table, id) for table in ("requests", "feedback") for (id,) in database.rows(f"SELECT id FROM {table}")}
    lost = set(acknowledged) - found
    print(f"{KILLS} kills, {len(acknowledged):,} acknowledged, {len(lost)} lost")
    assert len(acknowledged) >= RECORDS and not lost
    assert database.rows("PRAGMA integrity_check") == [("ok",)]
    if asked is RERANKED:
        rotate(tmp_path / "log.db", out=tmp_path / "rotated", upto=now() + 1)
        kept = {id for table, id in acknowledged if table == "requests"}
        assert kept <= set(read_requests(tmp_path / "rotated").ids)


def test_rotating_the_log_of_a_live_server_loses_and_doubles_nothing(exported, tmp_path):
    """The full trial: LPI_KILLED_RECORDS=100000."""
    acknowledged: list[tuple[str, str]] = []
    log, out, rotations = tmp_path / "log.db", tmp_path / "events", 0
    with serving(exported.folder, log) as server:
        enough = threading.Event()
        clients = [threading.Thread(target=load, args=(server, acknowledged, enough, RECORDS)) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        while not enough.wait(0.2):
            rotations += bool(rotate(log, out=out, upto=now()))  # windows that are open too, as with --now
        server.kill()
        for client in clients:
            client.join(120)
    rotations += bool(rotate(log, out=out, upto=now()))
    found = everything(str(log), out)
    lost = [(table, id) for table, id in acknowledged if found[table][id] == 0]
    doubled = [id for counts in found.values() for id, times in counts.items() if times > 1]
    print(f"{rotations} rotations, {len(acknowledged):,} acknowledged, {len(lost)} lost, {len(doubled)} twice")
    assert len(acknowledged) >= RECORDS and rotations > 0 and not lost and not doubled


def test_a_worker_leaves_the_next_connection_to_the_others():
    with Listening(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen(4)
        clients = [socket.create_connection(bound.getsockname(), timeout=10) for _ in range(2)]
        first, _ = bound.accept()
        for _ in range(PAUSES):
            with pytest.raises(BlockingIOError):
                bound.accept()
        second, _ = bound.accept()
        assert {one.getpeername() for one in (first, second)} == {one.getsockname() for one in clients}
        for one in (first, second, *clients):
            one.close()


def test_two_workers_share_one_log_and_slow_clients_are_sent_away(exported, tmp_path):
    with serving(exported.folder, tmp_path / "log.db", "--workers", "2", "--set", "body_seconds=5") as server:
        found = [server.call("POST", "/v1/recommend", {"history": [100], "k": 2}) for _ in range(20)]
        assert {status for status, _ in found} == {200}
        slow = [
            b"POST /v1/recom",
            b"POST /v1/recommend HTTP/1.1\r\nhost: x\r\n",
            b"POST /v1/recommend HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{",
            b"",
        ]
        with ExitStack() as opened:
            clients = [opened.enter_context(socket.create_connection(("127.0.0.1", server.port), 60)) for _ in slow]
            for client, start in zip(clients, slow, strict=True):
                client.sendall(start)
            for client in clients:
                answer = client.recv(1000)  # returns once the server has had enough
                assert answer == b"" or answer.startswith(b"HTTP/1.1 408"), answer
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 200_000)
            with suppress(ConnectionError):
                assert client.recv(1000).startswith(b"HTTP/1.1 400")
        assert server.call("GET", "/healthz")[0] == 200
        assert server.stop() == 0
    ids = {id for (id,) in Database(tmp_path / "log.db").rows("SELECT id FROM requests")}
    assert ids == {one["request"] for _, one in found}


def arrived(client: socket.socket) -> bytes:
    """Bytes that the server sends until it ends the connection."""
    said = b""
    with suppress(ConnectionError):
        while part := client.recv(4096):
            said += part
    return said


@pytest.mark.parametrize(("proxies", "most"), [("", 4), ("127.0.0.1", 8)])
def test_no_address_has_more_than_half_of_the_connections_but_a_proxys(exported, tmp_path, proxies, most):
    """Both sides of the limit of one address and of all; 127.0.0.2 is another client."""
    options = ("--set", "connections=8", *(("--set", f"proxies={proxies}") if proxies else ()))
    with serving(exported.folder, tmp_path / "log.db", *options) as server, ExitStack() as opened:

        def connect(source: str) -> socket.socket:
            made = socket.create_connection(("127.0.0.1", server.port), 60, source_address=(source, 0))
            return opened.enter_context(made)

        def answers(client: socket.socket) -> bool:
            client.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            return client.recv(4096).startswith(b"HTTP/1.1 200")

        mine = [connect("127.0.0.1") for _ in range(most)]
        assert all(map(answers, mine))
        refused = arrived(connect("127.0.0.1"))
        assert refused.startswith(b"HTTP/1.1 429") and b"retry-after: 1" in refused
        assert f"{most} connections" in json.loads(refused.partition(b"\r\n\r\n")[2])["error"]
        others = [connect("127.0.0.2") for _ in range(8 - most)]
        assert all(map(answers, others)), "others are answered"
        assert arrived(connect("127.0.0.2")).startswith(b"HTTP/1.1 429")
        mine[0].close()
        for _ in range(100):  # until the server has seen it
            if answers(again := connect("127.0.0.2" if proxies else "127.0.0.1")):
                break
            again.close()
        else:
            raise AssertionError("a connection that has ended is counted still")


def test_what_is_no_http_is_refused_as_json_and_ends_no_other_way(exported, tmp_path):
    chunks = b" HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    with serving(exported.folder, tmp_path / "log.db") as server:
        for sent in (
            b"\x16\x03\x01 hello\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"POST /v1/recommend" + chunks + b"zz\r\n",
        ):
            with socket.create_connection(("127.0.0.1", server.port), 60) as client:
                client.sendall(sent)
                head, _, body = arrived(client).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400") and "not HTTP" in json.loads(body)["error"], sent
        with socket.create_connection(("127.0.0.1", server.port), 60) as client:
            client.sendall(b"GET /healthz" + chunks)
            assert client.recv(4096).startswith(b"HTTP/1.1 200"), "it needs no body"
            client.sendall(b"zz\r\n")
            assert b"400" not in arrived(client)
        assert server.call("GET", "/healthz")[0] == 200
        server.stop()
    assert "Traceback" not in "".join(server.said)


def test_a_swap_drops_no_request_and_each_list_has_the_chances_of_who_made_it(run, exported, tmp_path):
    """A float export, then the same run with rounded rows: nearly the same law under another version."""
    served = shutil.copytree(exported.folder, tmp_path / "served")
    rounded = export(run.folder, out=tmp_path / "new", int8=True)
    assert rounded.version == f"{exported.version}-int8"
    histories = [[100], [101, 103], [102, 104, 105], [106]]
    seen: list[str] = []
    wrong: list[tuple[int, dict]] = []
    swapped = threading.Event()

    def ask(history: list[int]) -> None:
        connection = server.connect()
        while not swapped.is_set():
            status, found = server.call("POST", "/v1/recommend", {"history": history}, over=connection)
            (seen.append(found["policy"]) if status == 200 else wrong.append((status, found)))
            if rounded.version in seen:
                swapped.set()
        connection.close()

    with serving(served, tmp_path / "log.db", "--set", "poll_seconds=0.05") as server:
        clients = [threading.Thread(target=ask, args=(history,)) for history in histories]
        for client in clients:
            client.start()
        served.rename(tmp_path / "old")
        (tmp_path / "new").rename(served)
        for client in clients:
            client.join(120)
    assert not wrong and set(seen) == {exported.version, rounded.version}
    # Each request's own softmax, computed alone: whoever is answered together with others gets the same.
    laws = {(policy.version, *history): softmax(policy.logits([history])[0].astype(float))
            for policy in (exported, Recommender(served)) for history in histories}  # fmt: skip
    for history in histories:
        one, other = laws[exported.version, *history], laws[rounded.version, *history]
        assert np.abs(one / other - 1).max() > 1e-4, "they can be told apart"
    rows = Database(tmp_path / "log.db").rows("SELECT policy, history, items, propensities FROM requests")
    assert len(rows) == len(seen)
    for version, history, items, propensities in rows:
        law = laws[version, *(item for item, _ in json.loads(history))]
        assert json.loads(propensities)[0] == pytest.approx(law[exported.index[json.loads(items)[0]]], rel=1e-5)


def test_serve_reports_a_port_in_use(exported, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        twice = serving(exported.folder, tmp_path / "log.db", "--port", port)
        with pytest.raises(AssertionError, match="cannot be listened on"), twice:
            pass


@pytest.mark.parametrize(("host", "token", "more", "starts"), [
    ("0.0.0.0", "", (), False), ("::", "", (), False), ("0.0.0.0", "s3cret", (), True), ("127.0.0.1", "", (), True),
    ("0.0.0.0", "", ("--set", "without_token=true"), True),
])  # fmt: skip
def test_other_machines_need_a_token_unless_the_operator_says_otherwise(
    exported, tmp_path, monkeypatch, host, token, more, starts
):
    monkeypatch.setenv("LPI_TOKEN", token)
    started = []
    socket_of = SimpleNamespace(getsockname=lambda: (host, 1))
    monkeypatch.setattr(service, "_bind", lambda config: started.append(config) or socket_of)
    monkeypatch.setattr("uvicorn.Server.run", lambda *given, **settings: None)
    words = ["serve", str(exported.folder), "--log", str(tmp_path / "log.db"), "--host", host, *more]
    answer = CliRunner().invoke(app, words)
    assert bool(started) == starts, answer.exception
    assert starts or (isinstance(answer.exception, ConfigError) and "set LPI_TOKEN" in str(answer.exception))


@pytest.mark.parametrize(
    ("trusted", "named"), [("", "127.0.0.1"), ("127.0.0.1", "10.9.8.7"), ("10.0.0.0/8", "127.0.0.1")]
)
def test_only_a_trusted_proxy_says_who_a_client_is(exported, tmp_path, trusted, named):
    """Else every request could come from another address, and no client would ever have too many."""
    options = ["--set", "access_log=true", *(("--set", f"proxies={trusted}") if trusted else ())]
    with serving(exported.folder, tmp_path / "log.db", *options) as server:
        connection = server.connect()
        connection.request("GET", "/v1/policies", headers={"x-forwarded-for": "10.9.8.7"})
        assert connection.getresponse().read()
        connection.close()
        server.stop()
    lines = [json.loads(line) for line in server.said if "/v1/policies" in line]
    assert [line["client"] for line in lines] == [named]


def test_folders_of_killed_services_are_cleared_at_the_next_start(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folders = {name: tmp_path / f"{NUMBERS}{name}" for name in ("killed", "lives")}
    for folder in folders.values():
        folder.mkdir()
        (folder / "counter_1.db").touch()
    lives = lock_if_free(folders["lives"])
    with shared_numbers() as mine:
        assert {folder.name for folder in tmp_path.iterdir()} == {f"{NUMBERS}lives", mine.name}
        (mine / "counter_2.db").touch()
        with shared_numbers() as other:
            assert mine.exists(), "it is held"
        assert not other.exists()
    assert not mine.exists()
    os.close(lives)
