"""The service over HTTP: what it answers, what it writes down, and what it refuses."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import shutil
import sqlite3
import threading
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from localpolicy.errors import DataError
from localpolicy.model.histories import batch_from
from localpolicy.serving.app import make_app
from localpolicy.serving.config import ServeConfig
from localpolicy.serving.database import Database
from localpolicy.serving.deployment import Deployment, Slot
from localpolicy.serving.draw import conditional_propensities
from localpolicy.serving.filters import Filter
from localpolicy.serving.limits import Limits
from localpolicy.serving.metrics import ACCESS
from localpolicy.serving.recommender import Recommender
from localpolicy.serving.records import new_id, now

HISTORY = [{"item": 100, "event": "click"}, {"item": 103, "event": "none"}]


@pytest.fixture
def start(exported, tmp_path):
    """Starts a service and gives a client of it."""
    clients = []

    def make(*, token=None, **settings) -> TestClient:
        given = {"export": exported.folder, "log": str(tmp_path / "log.db"), **settings}
        client = TestClient(make_app(ServeConfig.parse(given), token=token))
        clients.append(client.__enter__())
        return client

    yield make
    for client in clients:
        client.__exit__(None, None, None)


@pytest.fixture
def client(start):
    return start()


def rows(tmp_path, sql: str) -> list[tuple]:
    database = Database(tmp_path / "log.db")
    try:
        return database.rows(sql)
    finally:
        database.close()


@pytest.mark.parametrize("direct", [True, False])
def test_names_are_given_where_they_are_asked_for(start, exported, tmp_path, direct):
    ids = json.loads((exported.folder / "items.json").read_text())
    named = tmp_path / "named"
    shutil.copytree(exported.folder, named)
    (named / "names.json").write_text(json.dumps([f"the item {item}" for item in ids]), encoding="utf-8")
    about = json.loads((named / "export.json").read_text())
    about["files"]["names.json"] = sha256((named / "names.json").read_bytes()).hexdigest()
    (named / "export.json").write_text(json.dumps(about))
    headers = {"content-type": "application/json" if direct else "application/json; charset=utf-8"}

    def ask(client, **more):
        body = json.dumps({"history": HISTORY, "k": 3, **more})
        return client.post("/v1/recommend", content=body, headers=headers).json()

    client = start(export=named)
    answer = ask(client, names=True)
    assert answer["names"] == [f"the item {item}" for item in answer["items"]] and answer["logged"]
    assert "names" not in ask(client)
    sides = client.post("/v1/preview", json={"history": HISTORY, "beta": 0.05, "k": 3}).json()
    for side in (sides["logging"], sides["policy"]):
        assert side["names"] == [f"the item {item}" for item in side["items"]]
    plain = ask(start(log=str(tmp_path / "other.db")), names=True)
    assert plain["names"] == [str(item) for item in plain["items"]]


def ask(client, *, expect: int = 200, **changes) -> dict:
    answer = client.post("/v1/recommend", json={"history": HISTORY, "k": 3, **changes})
    assert answer.status_code == expect, answer.text
    return answer.json()


# ---------------------------------------------------------------------- lists


def test_a_list_is_logged_as_it_is_answered(client, exported, tmp_path):
    found = ask(client, person="anna", exclude=[101], exclude_seen=True, beta=0.7)
    assert found["policy"] == exported.version and found["mode"] == "drawn" and found["beta"] == 0.7
    (row,) = rows(tmp_path, "SELECT id, person, history, items, propensities, policy, beta, mode, filter FROM requests")
    assert row[:2] == (found["request"], "anna")
    assert json.loads(row[2]) == [[100, "click"], [103, "none"]]
    assert (json.loads(row[3]), json.loads(row[4])) == (found["items"], found["propensities"])
    assert row[5:] == (exported.version, 0.7, "drawn", found["filter"])
    item_filter = Filter(exclude=(101,), seen=True)
    assert found["filter"] == item_filter.digest
    assert ask(client, exclude_last=1)["filter"] == Filter(last=1).digest
    logits = exported.logits([[100, 103]], [["click", "none"]], beta=0.7)
    expected = conditional_propensities(
        logits, np.array([[exported.index[one] for one in found["items"]]]),
        forbidden=[item_filter.forbidden([100, 103], exported.index)],
    )  # fmt: skip
    assert found["propensities"] == pytest.approx(expected[0].tolist())


def test_the_best_are_logged_as_certain(client, exported):
    found = ask(client, sample=False)
    assert found["mode"] == "top" and found["propensities"] == [1.0] * 3
    assert found["items"] == exported.recommend([[100, 103]], 3, events=[["click", "none"]], sample=False).items[0]


def test_plain_items_are_a_history_too(client, exported):
    found = ask(client, history=[100, 103, 999], sample=False)
    assert found["unknown"] == 1
    assert found["items"] == exported.recommend([[100, 103]], 3, sample=False).items[0]


def test_an_empty_history_gets_a_fallback_that_says_so(client, start, exported):
    found = ask(client, history=[])
    assert (found["policy"], found["mode"]) == ("fallback", "fallback")
    counts = np.array(json.loads((exported.folder / "counts.json").read_text())) + 0.5
    assert found["propensities"][0] == pytest.approx(counts[exported.index[found["items"][0]]] / counts.sum())
    assert ask(start(empty_history="model"), history=[])["mode"] == "drawn"


def test_a_model_that_fails_is_replaced_by_the_fallback(client, monkeypatch):
    service = client.app.state.service
    made_by = service.deployment.current.loaded
    monkeypatch.setattr(made_by, "logits", lambda *given, **settings: np.full((1, made_by.n_items), np.nan))
    assert ask(client)["mode"] == "fallback"

    def broken(*given, **settings):
        raise RuntimeError("no memory")

    monkeypatch.setattr(made_by, "logits", broken)
    assert ask(client)["mode"] == "fallback"
    assert "model_failures_total 2.0" in client.get("/metrics").text


def test_the_floor_is_part_of_the_propensity(start, exported):
    found = ask(start(floor=1.0), k=2)
    assert found["propensities"] == pytest.approx([1 / 12, 1 / 11]) and found["floor"] == 1.0


def test_requests_that_come_together_are_answered_together(client, monkeypatch):
    service = client.app.state.service
    made_by = service.deployment.current.loaded
    gate, began, logits = threading.Event(), threading.Event(), made_by.logits

    def slow(*given, **settings):
        began.set()
        assert gate.wait(30)
        return logits(*given, **settings)

    monkeypatch.setattr(made_by, "logits", slow)
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(ask, client)
        assert began.wait(30)
        others = [pool.submit(ask, client, k=k) for k in (2, 3, 3, 3, 3, 2, 12, 3)]
        while len(service.batcher._waiting) < 8:
            threading.Event().wait(0.01)
        gate.set()
        lists = [one.result(30) for one in (first, *others)]
    assert [len(one["items"]) for one in lists] == [3, 2, 3, 3, 3, 3, 2, 12, 3]
    assert (service.batcher.batches, service.batcher.questions) == (2, 9)


def test_one_question_that_cannot_be_answered_does_not_spoil_the_others(client):
    batcher = client.app.state.service.batcher
    service = client.app.state.service
    from localpolicy.serving.schema import Recommend

    made_by = service.deployment.current.loaded
    good = service._question(Recommend(history=[100], k=3), made_by)
    bad = service._question(Recommend(history=[100], k=3, candidates=[101]), made_by)
    found = batcher.answer([good, bad, good])
    assert [len(getattr(one, "items", [])) for one in found] == [3, 0, 3]
    assert "between 1 and 1" in str(found[1])


# ---------------------------------------------------------------------- what became of them


def test_shown_and_feedback_are_stored_once(client, tmp_path):
    found = ask(client, defer=True)
    assert client.post("/v1/shown", json={"request": found["request"], "places": 2}).json() == {
        "stored": True,
        "late": False,
    }
    answer = {"id": "f1", "request": found["request"], "item": found["items"][0], "event": "click"}
    assert client.post("/v1/feedback", json=answer).json() == {"stored": True, "late": False}
    assert client.post("/v1/feedback", json=answer).json() == {"stored": False, "late": False}
    late = {**answer, "id": "f2", "time": now() + 3_600_001}
    assert client.post("/v1/feedback", json=late).json() == {"stored": True, "late": True}
    assert rows(tmp_path, "SELECT id, late FROM feedback ORDER BY id") == [("f1", 0), ("f2", 1)]
    assert rows(tmp_path, "SELECT places FROM shown") == [(2,)]


def test_answers_to_requests_that_were_rotated_away_are_kept_as_late(client, tmp_path):
    old = new_id(now() - 4_000_000, client.app.state.service.log.key)
    answer = {"id": "f1", "request": old, "item": 100, "event": "click"}
    assert client.post("/v1/feedback", json=answer).json() == {"stored": True, "late": True}
    assert client.post("/v1/shown", json={"request": old}).json() == {"stored": False, "late": True}


@pytest.mark.parametrize(
    "request_id",
    ["nonsense", new_id(now()), new_id(now() - 4_000_000), "f" * 32],
    ids=["nonsense", "fresh", "old", "future"],
)
def test_answers_to_nothing(client, tmp_path, request_id):
    answer = client.post("/v1/feedback", json={"id": "f", "request": request_id, "item": 1, "event": "click"})
    assert answer.status_code == 404 and "no request" in answer.json()["error"]
    assert client.post("/v1/shown", json={"request": request_id}).status_code == 404
    assert rows(tmp_path, "SELECT * FROM feedback") == []


def test_answers_that_do_not_fit_their_list(client):
    found = ask(client)
    missing = next(item for item in range(100, 112) if item not in found["items"])
    answer = client.post(
        "/v1/feedback", json={"id": "f", "request": found["request"], "item": missing, "event": "click"}
    )
    assert answer.status_code == 422 and "holds no item" in answer.json()["error"]
    answer = client.post("/v1/shown", json={"request": found["request"], "places": 4})
    assert answer.status_code == 422 and "3 places" in answer.json()["error"]


def test_a_share_of_the_traffic_is_logged_with_all_its_answers(start, tmp_path):
    client = start(share=0.5)
    lists = [ask(client) for _ in range(60)]
    logged = {one["request"] for one in lists if one["logged"]}
    assert 10 < len(logged) < 50 and {id for (id,) in rows(tmp_path, "SELECT id FROM requests")} == logged
    for one in lists[:10]:
        answer = {"id": one["request"], "request": one["request"], "item": one["items"][0], "event": "click"}
        assert client.post("/v1/feedback", json=answer).json()["stored"] == one["logged"]
    assert rows(tmp_path, "SELECT DISTINCT share FROM requests") == [(0.5,)]


def test_a_log_that_cannot_be_written_answers_nothing(client, monkeypatch, caplog):
    def full(*given):
        raise OSError("disk is full")

    monkeypatch.setattr("localpolicy.serving.log.write_requests", full)
    answer = client.post("/v1/recommend", json={"history": [100]})
    assert answer.status_code == 503 and "items" not in answer.json() and answer.headers["retry-after"]
    assert "disk is full" in caplog.text


# ---------------------------------------------------------------------- previews


def test_the_two_lists_side_by_side(client, exported, tmp_path):
    found = client.post("/v1/preview", json={"history": HISTORY, "beta": 0.05, "k": 4}).json()
    both = [exported.logits([[100, 103]], [["click", "none"]], beta=beta)[0].astype(float) for beta in (np.inf, 0.05)]
    mu, pi = (np.exp(one - one.max()) / np.exp(one - one.max()).sum() for one in both)
    assert found["kl"] == pytest.approx((pi * np.log(pi / mu)).sum())
    middle = (pi + mu) / 2
    assert found["js"] == pytest.approx(((pi * np.log(pi / middle)).sum() + (mu * np.log(mu / middle)).sum()) / 2)
    best = [exported.ids[one] for one in np.argsort(-pi)[:4]]
    assert found["policy"]["items"] == best
    assert found["policy"]["other"] == pytest.approx([mu[exported.index[one]] for one in best])
    assert rows(tmp_path, "SELECT COUNT(*) FROM requests") == [(0,)]


def test_who_answers(client, exported):
    found = client.get("/v1/policies").json()
    assert [one["version"] for one in found["policies"]] == [exported.version] and found["refused"] is None
    assert client.get("/healthz").json() == client.get("/readyz").json() == {"status": "ok"}
    ask(client)
    text = client.get("/metrics").text
    assert f'localpolicy_lists_total{{arm="",mode="drawn",policy="{exported.version}"}} 1.0' in text
    assert "localpolicy_seconds_count 1.0" in text
    for line in ("# HELP localpolicy_lists_total lists made", "# TYPE localpolicy_lists_total counter",
                 "# TYPE localpolicy_log_records_total counter", "# TYPE localpolicy_seconds histogram",
                 "# TYPE localpolicy_export_refused gauge"):  # fmt: skip
        assert line in text
    ask(client, expect=422, k=0)
    client.get("/no/such/path")
    text = client.get("/metrics").text
    for method, path, status in (("POST", "/v1/recommend", 200), ("POST", "/v1/recommend", 422), ("GET", "other", 404)):
        assert f'localpolicy_responses_total{{method="{method}",path="{path}",status="{status}"}} 1.0' in text


def test_a_log_that_takes_nothing_is_not_ready(client, start, monkeypatch):
    """A full disk can still be read; a server that hangs answers nothing at all."""
    service = client.app.state.service
    execute = Database.execute

    def full(database, sql, values=()):
        if sql.startswith(("INSERT", "UPDATE")):
            raise sqlite3.OperationalError("database or disk is full")
        return execute(database, sql, values)

    monkeypatch.setattr(Database, "execute", full)
    assert client.get("/readyz").status_code == 503 and client.get("/healthz").status_code == 200
    monkeypatch.undo()
    assert client.get("/readyz").status_code == 200
    hung = start(log_seconds=0.1)
    monkeypatch.setattr(hung.app.state.service.log, "_ask", lambda work: asyncio.get_running_loop().create_future())
    assert hung.get("/readyz").status_code == 503
    assert ask(hung, expect=503)["error"] == "the log cannot be written, so nothing is answered."
    assert service.config.log_seconds == 10


def test_a_body_named_otherwise_is_answered_alike(client):
    """The short way of usual bodies, and FastAPI's own: one answer, one set of problems."""
    usual, long = "application/json", "application/json; charset=utf-8"
    bodies = [{"history": HISTORY, "k": 3.0, "sample": False}, {"history": HISTORY, "kk": 3}, {"history": [1.5]}, [], 7]
    for body in bodies:
        answers = [
            client.post("/v1/recommend", content=json.dumps(body), headers={"content-type": kind})
            for kind in (usual, long)
        ]
        first, second = ({**answer.json(), "request": None} for answer in answers)
        assert first == second and answers[0].status_code == answers[1].status_code
        assert answers[0].headers["content-type"] == answers[1].headers["content-type"] == "application/json"
    assert client.post("/v1/recommend", content="{", headers={"content-type": usual}).status_code == 400


def test_what_nobody_foresaw_is_told_to_the_operator(client, monkeypatch, caplog):
    def broken(*given):
        raise RuntimeError("a secret")

    monkeypatch.setattr(client.app.state.service, "_question", broken)
    assert ask(client, expect=503)["error"] == "the service could not answer; its operator can see why."
    assert "RuntimeError: a secret" in caplog.text


def test_an_access_log_is_lines_of_json(start, monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(ACCESS, "handlers", [logging.StreamHandler(written)])
    monkeypatch.setattr(ACCESS, "propagate", False)
    monkeypatch.setattr(ACCESS, "level", logging.INFO)
    client = start(access_log=True)
    ask(client)
    client.get("/readyz?secret=1")
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [(one["method"], one["path"], one["status"]) for one in lines] == [
        ("POST", "/v1/recommend", 200), ("GET", "/readyz", 200)
    ]  # fmt: skip
    assert all(one["ms"] > 0 for one in lines)


# ---------------------------------------------------------------------- bad input and abuse

BAD = {
    "no json": (b"{", 400),
    "nothing": (b"", 422),
    "a number": (b"7", 422),
    "not utf-8": (b'{"history": ["\xff"]}', 400),
    "deeply nested": (b"[" * 100_000, 400),
    "a huge number": (b'{"history": [1], "k": ' + b"9" * 5000 + b"}", 400),
    "history missing": (b'{"k": 3}', 422),
    "history no list": (b'{"history": 5}', 422),
    "wrong id type": (b'{"history": ["a"]}', 422),
    "true as id": (b'{"history": [true]}', 422),
    "float as id": (b'{"history": [1.5]}', 422),
    "id past 64 bits": (b'{"history": [9223372036854775808]}', 422),
    "half a surrogate": (rb'{"history": [1], "person": "\ud800"}', 422),
    "zero byte": (rb'{"history": [1], "person": "a\u0000"}', 422),
    "k of 0": (b'{"history": [1], "k": 0}', 422),
    "k negative": (b'{"history": [1], "k": -3}', 422),
    "k above the catalogue": (b'{"history": [1], "k": 13}', 422),
    "k enormous": (b'{"history": [1], "k": 1000000000000}', 422),
    "k as text": (b'{"history": [1], "k": "3"}', 422),
    "beta 0": (b'{"history": [1], "beta": 0}', 422),
    "beta negative": (b'{"history": [1], "beta": -1}', 422),
    "beta tiny": (b'{"history": [1], "beta": 1e-300}', 422),
    "beta nan": (b'{"history": [1], "beta": NaN}', 422),
    "beta infinite": (b'{"history": [1], "beta": Infinity}', 422),
    "unknown field": (b'{"history": [1], "kk": 3}', 422),
    "unknown event": (b'{"history": [{"item": 1, "event": "clik"}]}', 422),
    "event missing": (b'{"history": [{"item": 1}]}', 422),
    "too few candidates": (b'{"history": [1], "k": 3, "candidates": [100, 101]}', 422),
    "no candidates": (b'{"history": [1], "k": 1, "candidates": []}', 422),
    "a million ids": (b'{"history": [' + b"1," * 10**6 + b"1]}", 413),
    "many ids": (b'{"history": [' + b"1," * 10**5 + b"1]}", 422),
    "many candidates": (b'{"history": [1], "candidates": [' + b"1," * 10**5 + b"1]}", 422),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_a_reason(client, tmp_path, name):
    body, status = BAD[name]
    answer = client.post("/v1/recommend", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    assert answer.json()["error"] and "Traceback" not in answer.text and len(answer.text) < 1000
    assert rows(tmp_path, "SELECT COUNT(*) FROM requests") == [(0,)]


def test_reasons_name_the_field(client):
    answer = client.post("/v1/recommend", json={"history": [1], "k": 0}).json()
    assert answer["field"] == "k" and "greater than or equal to 1" in answer["error"]
    answer = client.post("/v1/recommend", json={"history": [1, None, 2.5], "candidates": [{}]}).json()
    assert answer["field"] == "history.1"
    assert [part.split(":")[0] for part in answer["error"].split("; ") if "expected" in part] == [
        "history.1", "history.2", "candidates.0"
    ]  # fmt: skip


def test_paths_and_methods_that_do_not_exist(client):
    for method, path, status in [("GET", "/v1/recommend", 405), ("POST", "/nope", 404), ("GET", "/../etc/passwd", 404)]:
        answer = client.request(method, path)
        assert answer.status_code == status and answer.json()["error"]


def test_an_error_nobody_foresaw_is_told_to_the_operator_alone(client, monkeypatch, caplog):
    def broken():
        raise RuntimeError("secret detail")

    monkeypatch.setattr(client.app.state.service, "policies", broken)
    answer = client.get("/v1/policies")
    assert answer.status_code == 503 and "secret" not in answer.text
    assert "secret detail" in caplog.text


def test_a_token_is_wanted_where_there_is_one(start):
    client = start(token="s3cret")
    for headers in (
        {},
        {"authorization": "Bearer no"},
        {"authorization": "s3cret"},
        {"authorization": "Bearer \u00e9"},
    ):
        answer = client.post(
            "/v1/recommend", json={"history": [100]}, headers={k: v.encode() for k, v in headers.items()}
        )
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
    assert client.get("/metrics").status_code == 401 and client.get("/healthz").status_code == 200
    seen = start(token="s3cret", open_metrics=True)
    assert seen.get("/metrics").status_code == 200 and seen.get("/v1/policies").status_code == 401
    answer = client.post("/v1/recommend", json={"history": [100]}, headers={"authorization": "Bearer s3cret"})
    assert answer.status_code == 200


def test_a_flood_is_refused_and_what_waits_is_answered(start, monkeypatch):
    client = start(queue=4)
    made_by = client.app.state.service.deployment.current.loaded
    gate, logits = threading.Event(), made_by.logits

    def slow(*given, **settings):
        assert gate.wait(30)
        return logits(*given, **settings)

    monkeypatch.setattr(made_by, "logits", slow)
    with ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(client.post, "/v1/recommend", json={"history": [100]}) for _ in range(12)]
        while sum(one.done() for one in asked) < 8:
            threading.Event().wait(0.01)
        assert client.get("/healthz").status_code == 200, "who watches it is always answered"
        gate.set()
        answers = [one.result(30) for one in asked]
    codes = sorted(one.status_code for one in answers)
    assert codes == [200] * 4 + [429] * 8
    assert all(one.headers["retry-after"] == "1" for one in answers if one.status_code == 429)


# ---------------------------------------------------------------------- a new policy


def test_a_new_export_is_swapped_in_and_a_broken_one_refused(exported, start, tmp_path):
    folder = shutil.copytree(exported.folder, tmp_path / "served")
    client = start(export=folder)
    service = client.app.state.service
    about = json.loads((folder / "export.json").read_text())
    (folder / "export.json").write_text(json.dumps({**about, "version": "b" * 16}))
    service.deployment.refresh()
    assert ask(client)["policy"] == "b" * 16
    content = (folder / "policy.onnx").read_bytes()
    (folder / "policy.onnx").write_bytes(content[:-10])
    (folder / "export.json").write_text(json.dumps({**about, "version": "c" * 16}))
    service.deployment.refresh()
    assert ask(client)["policy"] == "b" * 16
    assert "was altered" in client.get("/v1/policies").json()["refused"]
    assert "localpolicy_export_refused 1.0" in client.get("/metrics").text
    (folder / "policy.onnx").write_bytes(content)
    (folder / "export.json").write_text(json.dumps({**about, "version": "d" * 16, "x": 1}))
    service.deployment.refresh()
    assert ask(client)["policy"] == "d" * 16 and client.get("/v1/policies").json()["refused"] is None


@pytest.mark.parametrize(("more", "swapped"), [(["context", "none"], True), (["context", "wish"], False)])
def test_an_export_that_knows_fewer_events_is_swapped_in_only_if_clients_cannot_send_them(
    exported, tmp_path, more, swapped
):
    """As on the way back to a policy that learnt from what people did."""
    folder = shutil.copytree(exported.folder, tmp_path / "served")
    slot = Slot(folder, 1)
    assert slot.refresh()
    slot.loaded.events = [*{*slot.loaded.events, *more}]
    about = json.loads((folder / "export.json").read_text())
    (folder / "export.json").write_text(json.dumps({**about, "version": "b" * 16, "x": 1}))
    assert slot.refresh() == swapped and (slot.loaded.version == "b" * 16) == swapped
    if not swapped:
        assert "the event 'wish'" in slot.refused and "restart the server" in slot.refused
    assert Slot(folder, 1).refresh(), "a restart takes it"


def test_what_was_left_alone_is_no_history_to_a_policy_that_never_saw_such_events(exported, run):
    policy = Recommender(exported.folder)
    past, events = [100, 101, 102], ["click", "none", "purchase"]
    knows = policy.logits([past], [events])
    policy._codes.pop("none")
    without = policy.logits([past], [events])
    assert np.array_equal(without, policy.logits([[100, 102]], [["click", "purchase"]]))
    assert not np.array_equal(without, knows)
    index = {item: number for number, item in enumerate(policy.ids)}
    batch = batch_from([past], [events], index=index, names=["click", "purchase"])
    other = batch_from([[100, 102]], [["click", "purchase"]], index=index, names=["click", "purchase"])
    assert batch.item.tolist() == other.item.tolist() and batch.event.tolist() == other.event.tolist()
    with pytest.raises(DataError, match="no event 'wish'"):
        policy.logits([past], [["click", "wish", "purchase"]])


def test_a_rollout_gives_persons_their_arm(exported, start, tmp_path):
    folder = shutil.copytree(exported.folder, tmp_path / "candidate")
    about = json.loads((folder / "export.json").read_text())
    (folder / "export.json").write_text(json.dumps({**about, "version": "b" * 16}))
    plan = tmp_path / "rollout.json"
    client = start(rollout=plan)
    assert ask(client, person="p")["arm"] == "", "the rollout's file may come later"
    content = {"id": "r1", "candidate": {"export": str(folder), "version": "b" * 16}, "salt": "s"}
    plan.write_text(json.dumps({**content, "stage": "shadow", "share": 0.0}))
    client.app.state.service.deployment.refresh()
    assert ask(client, person="p")["policy"] == exported.version
    plan.write_text(json.dumps({**content, "stage": "50", "share": 0.5}))
    client.app.state.service.deployment.refresh()
    arms = {f"p{n}": ask(client, person=f"p{n}") for n in range(40)}
    assert {one["arm"] for one in arms.values()} == {"candidate", "current"}
    for person, one in arms.items():
        assert one["policy"] == ("b" * 16 if one["arm"] == "candidate" else exported.version)
        assert ask(client, person=person)["arm"] == one["arm"]
    assert set(rows(tmp_path, "SELECT DISTINCT arm, stage, rollout FROM requests WHERE stage = '50'")) == {
        ("candidate", "50", "r1"), ("current", "50", "r1")
    }  # fmt: skip
    assert rows(tmp_path, "SELECT DISTINCT rollout FROM shadow") == [("r1",)]
    other = {"export": str(folder), "version": "c" * 16}
    for odd in ("{", "[]", '"x"', json.dumps({**content, "candidate": other, "stage": "50", "share": 0.5}),
                json.dumps({**content, "stage": "rolled back", "share": 0.0})):  # fmt: skip
        plan.write_text(odd)
        client.app.state.service.deployment.refresh()
        assert {ask(client, person=person)["arm"] for person in arms} == {""}, odd
    text = client.get("/metrics").text
    assert 'localpolicy_shadow_total{outcome="answered"} 1.0' in text


@pytest.fixture
def changed(exported, tmp_path):
    """Makes a candidate out of the export, and a plan that gives it to half of all persons."""

    def make(change) -> Path:
        folder = shutil.copytree(exported.folder, tmp_path / "candidate")
        about = {**json.loads((folder / "export.json").read_text()), "version": "b" * 16}
        change(folder, about)
        (folder / "export.json").write_text(json.dumps(about))
        content = {"id": "r1", "candidate": {"export": str(folder), "version": "b" * 16}, "salt": "s"}
        (tmp_path / "rollout.json").write_text(json.dumps({**content, "stage": "50", "share": 0.5}))
        return tmp_path / "rollout.json"

    return make


def test_nobody_is_refused_for_the_arm_they_are_in(changed, start, tmp_path):
    """Clients turn the dial, and the candidate has none: its persons get a fallback, which the guardrail counts."""

    def without_dial(folder, about):
        about["graphs"] = ["policy"]
        about["files"].pop("dial.onnx")

    client = start(rollout=changed(without_dial))
    found = [ask(client, person=f"p{number}", beta=0.5, names=True) for number in range(40)]
    assert {(one["arm"], one["mode"]) for one in found} == {("current", "drawn"), ("candidate", "fallback")}
    assert set(rows(tmp_path, "SELECT DISTINCT arm, mode, beta FROM requests")) == {
        ("current", "drawn", 0.5), ("candidate", "fallback", None)
    }  # fmt: skip
    for number in range(10):
        ask(client, person=f"p{number}", k=10_000, expect=422)
    assert ask(client, person=next(f"p{n}" for n, one in enumerate(found) if one["arm"] == "candidate"))["policy"] == (
        "b" * 16
    ), "what it can answer, it answers"


def test_a_candidate_of_another_shop_gets_nobody(changed, start):
    def other_items(folder, about):
        ids = json.loads((folder / "items.json").read_text())
        content = json.dumps([item + 1000 for item in ids])
        (folder / "items.json").write_text(content)
        about["files"]["items.json"] = sha256(content.encode()).hexdigest()
        about["samples"] = []

    client = start(rollout=changed(other_items))
    assert {ask(client, person=f"p{number}")["arm"] for number in range(20)} == {""}
    assert "another catalogue: it knows 0 of" in client.get("/v1/policies").json()["refused"]


@pytest.mark.parametrize("replaces", [["a" * 16], []])
def test_what_is_put_in_place_after_a_rollout_is_done_serves(exported, start, tmp_path, replaces):
    """The candidate itself, or an extended export, or the next one: a plan that is done does not hold it back."""
    served, candidate = (shutil.copytree(exported.folder, tmp_path / name) for name in ("served", "candidate"))
    about = json.loads((served / "export.json").read_text())
    for folder, version in ((served, "a" * 16), (candidate, "b" * 16)):
        (folder / "export.json").write_text(json.dumps({**about, "version": version}))
    plan = tmp_path / "rollout.json"
    content = {"id": "r1", "candidate": {"export": str(candidate), "version": "b" * 16}, "salt": "s", "stage": "100",
               "share": 1.0, "done": True, "replaces": replaces}  # fmt: skip
    plan.write_text(json.dumps(content))
    deployment = Deployment(served, rollout=plan)
    assert deployment.route("p").arm == "candidate", "until the swap everyone keeps it"
    (served / "export.json").write_text(json.dumps({**about, "version": "c" * 16, "x": 1}))
    deployment.refresh()
    known = bool(replaces)  # a plan of stage 100 alone has seen no other policy, and does not know what it replaces
    assert deployment.route("p").recommender.version == ("c" if known else "b") * 16
    assert deployment.route("p").arm == ("" if known else "candidate")
    assert Deployment(served, rollout=plan).route("p").arm == ("" if known else "candidate"), "after a restart too"
    (told, *_) = start(export=served, rollout=plan).get("/v1/policies").json()["policies"]
    assert (told["version"], told["share"]) == ("c" * 16, 1.0 if known else 0.0)


# ---------------------------------------------------------------------- who may ask, and what may come back


def slow_body():
    """A client that never sends its body."""

    async def receive():
        await asyncio.Event().wait()

    return receive


def asked(app, path, *, receive=None, **headers):
    """One request as a server hands it on; the status of the answer once it is there."""
    statuses = []

    async def send(message):
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def no_body():
        return {"type": "http.request", "body": b"{}", "more_body": False}

    raw = [
        (name.replace("_", "-").encode(), value.encode()) for name, value in {"host": "localhost", **headers}.items()
    ]
    scope = {"type": "http", "method": "POST", "path": path, "headers": raw}
    return app(scope, receive or no_body, send), statuses


@pytest.mark.parametrize("path", ["/", "/healthz", "/v1/recommend"])
def test_bodies_without_a_token_are_neither_read_nor_counted(path):
    served = []

    async def inner(scope, receive, send):
        served.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def trial():
        limits = Limits(inner, token="t", queue=4, largest_body=1000, body_seconds=60)
        slow = [asyncio.create_task(asked(limits, path, receive=slow_body())[0]) for _ in range(40)]
        slow += [asyncio.create_task(asked(limits, "/v1/x", receive=slow_body(), authorization="Bearer t")[0])
                 for _ in range(40)]  # fmt: skip
        await asyncio.sleep(0.01)
        mine, statuses = asked(limits, "/v1/x", authorization="Bearer t")
        await mine
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        return statuses

    assert asyncio.run(trial()) == [200]
    assert served.count("/v1/x") == 1, "a body that does not come keeps nobody out"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [({}, 200), ({"origin": "http://testserver"}, 200), ({"origin": "https://evil.example"}, 403),
     ({"origin": "null"}, 403), ({"host": "evil.example"}, 421), ({"host": "127.0.0.1:8471"}, 200),
     ({"host": "[::1]:8471"}, 200), ({"host": "localhost"}, 200), ({"host": "evil.example:80"}, 421)],
)  # fmt: skip
def test_pages_of_others_cannot_ask(client, headers, expected):
    found = client.post("/v1/recommend", json={"history": HISTORY, "k": 3}, headers=headers)
    assert found.status_code == expected, found.text
    plain = client.post(
        "/v1/recommend", content='{"history": [100]}', headers={**headers, "content-type": "text/plain"}
    )
    assert plain.status_code == (expected if expected != 200 else plain.status_code)


def test_names_and_origins_can_be_allowed(start):
    client = start(hosts=["shop.example"], origins=["https://www.shop.example"])
    asked = {"json": {"history": HISTORY, "k": 3}}
    shop = {"host": "shop.example"}
    assert client.post("/v1/recommend", headers=shop, **asked).status_code == 200
    assert client.post("/v1/recommend", **asked).status_code == 421
    page = {**shop, "origin": "https://www.shop.example"}
    assert client.post("/v1/recommend", headers=page, **asked).status_code == 200
    assert start(host="0.0.0.0").get("/healthz", headers=shop).status_code == 200


def test_the_page_may_run_its_own_script_alone(client):
    found = client.get("/")
    policy = found.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    for tag in ("script", "style"):
        inside = found.text.split(f"<{tag}>")[1].split(f"</{tag}>")[0]
        assert f"{tag}-src 'sha256-{b64encode(sha256(inside.encode()).digest()).decode()}'" in policy


def test_the_watcher_survives_whatever_it_finds(start, monkeypatch):
    client = start(poll_seconds=0.01)
    service, calls, again = client.app.state.service, [], threading.Event()

    def odd():
        calls.append(1)
        if len(calls) > 2:
            again.set()
        raise TypeError("odd")

    monkeypatch.setattr(service.deployment, "refresh", odd)
    assert again.wait(30)


def test_events_and_rewards_that_cannot_be_are_refused_where_that_was_asked_for(start, tmp_path):
    client = start(rewards="click=0.2", largest_reward=5, smallest_reward=0)
    found = ask(client)
    answer = {"id": "a", "request": found["request"], "item": found["items"][0], "event": "click"}
    for changes in ({"event": "purchse"}, {"reward": 1e8}, {"reward": -1}):
        refused = client.post("/v1/feedback", json={**answer, **changes})
        assert refused.status_code == 422 and "feedback was refused" in refused.json()["error"]
    assert client.post("/v1/feedback", json={**answer, "event": "rare", "reward": 3}).json()["stored"]
    assert rows(tmp_path, "SELECT COUNT(*) FROM feedback") == [(1,)]
