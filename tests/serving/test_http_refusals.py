"""The service over HTTP: bad input, floods, and who may ask."""

from __future__ import annotations

import asyncio
import json
import threading
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import pytest
from http_client import HISTORY, ask, rows
from hypothesis import given, settings
from hypothesis import strategies as st

from localpolicy.serving.config import ServeConfig
from localpolicy.serving.endpoints import SMALL, Endpoint, more_than
from localpolicy.serving.limits import Limits, is_within

TURNS = 100  # of the event loop: more than a request takes to come to where it waits
BAD = {
    "no json": (b"{", 400),
    "nothing": (b"", 400),
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
    "half a surrogate": (rb'{"history": [1], "person": "\ud800"}', 400),
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


@pytest.mark.parametrize(("more", "in_the_loop"), [(0, True), (1, False)])
def test_large_bodies_are_read_outside_of_the_event_loop(client, monkeypatch, more, in_the_loop):
    """While they are, others are answered. Of one byte more than `SMALL`, and of no more."""
    read, threads = Endpoint.read, []

    def watched(endpoint, body):
        threads.append(threading.current_thread())
        return read(endpoint, body)

    monkeypatch.setattr(Endpoint, "read", watched)
    body = json.dumps({"history": [100], "k": 3}).encode()
    body = body + b" " * (SMALL + more - len(body))
    assert client.post("/v1/recommend", content=body, headers={"content-type": "application/json"}).status_code == 200
    loop = client.portal.call(threading.current_thread)
    assert [thread is loop for thread in threads] == [in_the_loop]


def test_reasons_name_the_field(client):
    answer = client.post("/v1/recommend", json={"history": [1], "k": 0}).json()
    assert answer["field"] == "k" and "greater than or equal to 1" in answer["error"]
    answer = client.post("/v1/recommend", json={"history": [1, None, 2.5], "candidates": [{}]}).json()
    assert answer["field"] == "history.1"
    wrong = [part.split(":")[0] for part in answer["error"].split("; ") if "expected" in part]
    assert wrong == ["history.1", "candidates.0"], "the first of each list is enough"


def test_paths_and_methods_that_do_not_exist(client):
    for method, path, status in [("GET", "/v1/recommend", 405), ("POST", "/nope", 404), ("GET", "/../etc/passwd", 404)]:
        answer = client.request(method, path)
        assert answer.status_code == status and answer.json()["error"]


def test_an_unforeseen_error_is_reported_to_the_operator_alone(client, monkeypatch, caplog):
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
    client = start(queue=4, client_queue=4)
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


def test_no_client_keeps_all_others_out():
    """Of four places one address has two: both sides of its limit, and another client's turn meanwhile."""

    async def trial():
        gate = asyncio.Event()

        async def inner(scope, receive, send):
            await gate.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        limits = Limits(inner, token=None, queue=4, client_queue=2, largest_body=1000, body_seconds=60)
        loud = [asked(limits, "/v1/x", client="10.0.0.1") for _ in range(3)]
        others = [asked(limits, "/v1/x", client=f"10.0.0.{number}") for number in (2, 3, 4)]
        tasks = [asyncio.create_task(call) for call, _ in (*loud, *others)]
        for _ in range(TURNS):
            await asyncio.sleep(0)
        refused = [statuses for _, statuses in (*loud, *others)]
        gate.set()
        await asyncio.gather(*tasks)
        again = asked(limits, "/v1/x", client="10.0.0.1")
        await again[0]
        return refused, again[1], limits

    answers, again, limits = asyncio.run(trial())
    assert answers == [[200], [200], [429], [200], [200], [429]] and again == [200]
    assert limits.working == 0 and not limits.working_for and limits.refused == 2


def test_the_default_leaves_half_of_the_queue_to_others():
    assert [ServeConfig(export=".", queue=queue).most_of_a_client for queue in (1, 4, 5)] == [1, 2, 3]
    assert ServeConfig(export=".", queue=4, client_queue=9).most_of_a_client == 9


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 413)])
def test_a_body_may_be_as_large_as_its_limit_and_no_larger(start, streamed, more, status):
    body = json.dumps({"history": HISTORY, "k": 3}).encode()
    body += b" " * (2048 + more - len(body))
    pieces = (body[start : start + 100] for start in range(0, len(body), 100))
    answer = start(largest_body=2048).post(
        "/v1/recommend", content=pieces if streamed else body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize(("length", "status", "waited"), [("1000", 200, 1), ("1001", 413, 0)])
def test_a_body_that_says_that_it_is_too_large_is_not_waited_for(length, status, waited):
    received = []

    async def inner(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def body():
        received.append(1)
        return {"type": "http.request", "body": b"{}", "more_body": False}

    limits = Limits(inner, token=None, queue=4, largest_body=1000, body_seconds=60)
    call, statuses = asked(limits, "/v1/recommend", receive=body, content_length=length)
    asyncio.run(call)
    assert (statuses, len(received)) == ([status], waited)


LIMITS = {"longest_history": 5, "most_ids": 12, "longest_list": 4}


@pytest.mark.parametrize(("field", "most"), [("history", 5), ("candidates", 12), ("exclude", 12)])
def test_lists_may_be_as_long_as_their_limit_and_no_longer(start, field, most):
    client = start(**LIMITS)
    asked = {"history": [100], "k": 1}
    values = list(range(100, 112)) if field == "candidates" else [200 + number for number in range(most)]
    assert client.post("/v1/recommend", json={**asked, field: values[:most]}).status_code == 200
    refused = client.post("/v1/recommend", json={**asked, field: [*values[:most], 300]})
    assert refused.status_code == 422 and refused.json()["field"] == field and f"at most {most}" in refused.text
    document = client.get("/openapi.json").json()["components"]["schemas"]["Recommend"]["properties"][field]
    assert f'"maxItems": {most}' in json.dumps(document), "the document says so too"


@pytest.mark.parametrize("path", ["/v1/recommend", "/v1/preview"])
def test_requested_lists_may_be_as_long_as_the_limit_and_no_longer(start, path):
    client = start(**LIMITS)
    asked = {"history": [100]} | ({"beta": 0.5} if path == "/v1/preview" else {})
    assert [client.post(path, json={**asked, "k": k}).status_code for k in (4, 5)] == [200, 422]
    assert [client.post(path, json={**asked, "k": 1, "history": [100] * n}).status_code for n in (5, 6)] == [200, 422]


def marks(value) -> tuple[int, int]:
    """Names of fields, and commas, in what JSON is read as."""
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    names, commas = map(sum, zip((0, 0), *map(marks, inside), strict=True))
    return names + (len(value) if isinstance(value, dict) else 0), commas + max(len(inside) - 1, 0)


TEXTS = st.text(st.sampled_from('a":\\,{}[] \n\u00e9'), max_size=6)
TREES = st.recursive(
    TEXTS | st.integers(0, 9), lambda inside: st.lists(inside, max_size=4) | st.dictionaries(TEXTS, inside, max_size=4)
)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(tree=TREES, indent=st.sampled_from([None, 1]), ascii=st.booleans())
def test_marks_are_counted_outside_of_texts(tree, indent, ascii):
    body = json.dumps(tree, indent=indent, ensure_ascii=ascii).encode()
    for mark, count in zip(":,", marks(tree), strict=True):
        assert more_than(count - 1, mark, body) and not more_than(count, mark, body)


def test_what_is_no_json_is_counted_in_one_pass():
    """A parser that started again at each quote would take hours for these."""
    for text, ends in ((b'"' + b'\\"' * 400_000, False), (b'"\\' * 400_001, False), (b'""' * 400_000, True)):
        assert more_than(9, ":", b":" * 9 + text + b":") == ends


def test_a_history_of_events_may_be_as_long_as_one_of_items(start):
    client = start(longest_history=200)
    body = {"history": [{"item": 100, "event": "click"}] * 200, "k": 3}
    assert client.post("/v1/recommend", json=body).status_code == 200
    names = client.post("/v1/recommend", json={**body, **{f"n{number}": 1 for number in range(63)}})
    assert names.status_code == 422 and "464 names" in names.text


@pytest.mark.parametrize(
    ("kind", "status"),
    [("application/json", 200), ("application/json; charset=utf-8", 200), ("application/vnd.shop+json", 200),
     ("text/plain", 415), ("application/x-www-form-urlencoded", 415), ("application/jsonp", 415), ("", 415)],
)  # fmt: skip
def test_a_body_must_be_called_json(client, kind, status):
    answer = client.post("/v1/recommend", content='{"history": [100], "k": 3}', headers={"content-type": kind})
    assert answer.status_code == status, answer.text


# ---------------------------------------------------------------------- who may ask, and what may come back


def slow_body():
    """A client that never sends its body."""

    async def receive():
        await asyncio.Event().wait()

    return receive


def asked(app, path, *, receive=None, client="127.0.0.1", **headers):
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
    scope = {"type": "http", "method": "POST", "path": path, "headers": raw, "client": (client, 1)}
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
        for _ in range(TURNS):
            await asyncio.sleep(0)
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


def waiting(pieces: list[bytes], begun: list[int]):
    """A client that sends these pieces of its body, and no more."""
    left = list(pieces)

    async def receive():
        if left:
            begun.append(1)
            return {"type": "http.request", "body": left.pop(0), "more_body": True}
        await asyncio.Event().wait()

    return receive


def test_bodies_that_wait_hold_a_bounded_number_of_bytes():
    """600 of 1,000 bytes that wait are one address's at most; what is refused or has ended is counted no more."""

    async def inner(scope, receive, send):
        assert len((await receive())["body"]) == 2
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def trial():
        limits = Limits(inner, token=None, queue=99, largest_body=600, waiting_bytes=1000, body_seconds=60)
        begun: list[int] = []
        sent = [("10.0.0.1", [b"a" * 300]), ("10.0.0.1", [b"a" * 200, b"a" * 100]), ("10.0.0.1", [b"a"]),
                ("10.0.0.2", [b"a" * 398]), ("10.0.0.3", [b"aaa"])]  # fmt: skip
        calls = [asked(limits, "/v1/x", receive=waiting(pieces, begun), client=one) for one, pieces in sent]
        tasks = [asyncio.create_task(call) for call, _ in calls]
        for _ in range(TURNS):
            await asyncio.sleep(0)
        small = asked(limits, "/v1/x", client="10.0.0.3")
        await small[0]
        held = dict(limits.held_for)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return [statuses for _, statuses in calls], small[1], held, limits

    refused, small, held, limits = asyncio.run(trial())
    assert refused == [[], [], [429], [], [429]] and small == [200]
    assert held == {"10.0.0.1": 600, "10.0.0.2": 398} and not limits.held_for


def test_the_largest_body_fits_whatever_may_wait():
    limits = Limits(None, token=None, queue=1, largest_body=1000, waiting_bytes=10, body_seconds=1)
    assert limits.waiting_bytes == limits.client_bytes == 1000


@pytest.mark.parametrize(
    ("address", "networks", "within"),
    [("10.0.0.1", ["10.0.0.0/8"], True), ("11.0.0.1", ["10.0.0.0/8"], False), ("::1", ["10.0.0.0/8", "::1"], True),
     ("10.0.0.1", ["*"], True), ("10.0.0.1", ["proxy"], False), ("", ["10.0.0.0/8"], False), ("10.0.0.1", [], False)],
)  # fmt: skip
def test_a_proxy_is_named_by_address_or_network(address, networks, within):
    assert is_within(address, networks) == within
