"""The service over HTTP: what it answers, and what it writes down."""

from __future__ import annotations

import gc
import io
import json
import logging
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import numpy as np
import pytest
from fastapi.testclient import TestClient
from http_client import HISTORY, ask, rows

from localpolicy.serving.app import make_app
from localpolicy.serving.audit import audit
from localpolicy.serving.config import ServeConfig
from localpolicy.serving.database import Database
from localpolicy.serving.exports import write_description
from localpolicy.serving.filters import Filter
from localpolicy.serving.log import MOST_SHOWN
from localpolicy.serving.metrics import ACCESS
from localpolicy.serving.records import new_id, now
from localpolicy.serving.sampling import conditional_propensities


@pytest.mark.parametrize("direct", [True, False])
def test_names_are_given_where_they_are_asked_for(start, exported, tmp_path, direct):
    ids = json.loads((exported.folder / "items.json").read_text())
    named = tmp_path / "named"
    shutil.copytree(exported.folder, named)
    (named / "names.json").write_text(json.dumps([f"the item {item}" for item in ids]), encoding="utf-8")
    about = json.loads((named / "export.json").read_text())
    about["files"]["names.json"] = sha256((named / "names.json").read_bytes()).hexdigest()
    write_description(named, about)
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


# ---------------------------------------------------------------------- lists


def test_what_a_person_was_shown_rests(client, exported, tmp_path):
    first = ask(client, person="anna")
    again = ask(client, person="anna", rest_hours=2, exclude=[101])
    item_filter = Filter(exclude=(101, *first["items"]))
    assert again["filter"] == item_filter.digest and not {*first["items"], 101} & {*again["items"]}
    forbidden = [item_filter.forbidden([100, 103], exported.index)]
    indices = np.array([[exported.index[one] for one in again["items"]]])
    expected = conditional_propensities(
        exported.logits([[100, 103]], [["click", "none"]]), indices, forbidden=forbidden
    )
    assert again["propensities"] == pytest.approx(expected[0].tolist())
    assert ask(client, person="bob", rest_hours=2)["filter"] == ask(client, rest_hours=2)["filter"] == ""
    assert audit(tmp_path / "log.db", runs=[exported.folder]).exit_code in (0, 4)
    assert "rest_hours" in ask(client, rest_hours=1e9, expect=422)["error"]


def test_a_person_of_too_many_lists_is_refused_and_keeps_nobody_waiting(client, tmp_path):
    """Such as a client that calls all visitors by one name: the log's one thread would read them for each request."""
    ask(client, person="everybody")
    columns = [name for _, name, *_ in rows(tmp_path, "PRAGMA table_info(requests)")]
    changed = ", ".join({"id": "id || n", "time": "time - n"}.get(name, name) for name in columns)
    database = Database(tmp_path / "log.db")
    for first, last, expect in ((1, MOST_SHOWN - 1, 200), (MOST_SHOWN, MOST_SHOWN, 422)):
        with database.transaction():
            numbers = f"WITH RECURSIVE some(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM some WHERE n < {last})"
            database.execute(
                f"{numbers} INSERT INTO requests SELECT {changed} FROM requests, some WHERE length(id) = 32"
            )
        found = ask(client, person="everybody", k=1, rest_hours=1, sample=False, expect=expect)
        if expect == 200:
            database.execute("DELETE FROM requests WHERE id = ?", (found["request"],))
    assert "rest_hours: more than 1,000 lists" in found["error"]
    database.close()


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


def test_shown_and_feedback_are_stored_once(client, tmp_path, monkeypatch):
    found = ask(client, defer=True)
    assert client.post("/v1/shown", json={"request": found["request"], "places": 2}).json() == {
        "stored": True,
        "late": False,
    }
    answer = {"id": "f1", "request": found["request"], "item": found["items"][0], "event": "click"}
    assert client.post("/v1/feedback", json=answer).json() == {"stored": True, "late": False}
    assert client.post("/v1/feedback", json=answer).json() == {"stored": False, "late": False}
    monkeypatch.setattr("localpolicy.serving.handlers.now", lambda: now() + 3_700_000)
    late = {**answer, "id": "f2"}
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


def test_policies_lists_who_answers(client, exported):
    found = client.get("/v1/policies").json()
    assert [one["version"] for one in found["policies"]] == [exported.version] and found["refused"] is None
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ok", "log": "own disk"}
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


def test_a_body_of_another_content_type_is_answered_the_same(client):
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


def test_an_unforeseen_error_is_reported_to_the_operator(client, monkeypatch, caplog):
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


def test_collecting_garbage_passes_over_what_was_loaded(exported, tmp_path):
    config = ServeConfig.parse({"export": exported.folder, "log": str(tmp_path / "log.db")})
    gc.unfreeze()
    with TestClient(make_app(config)):
        assert gc.get_freeze_count() > 10_000
    assert gc.get_freeze_count() == 0
