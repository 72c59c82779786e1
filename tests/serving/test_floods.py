"""As many elements as a body holds, in every list that an endpoint takes: refused soon, in few words and little memory.

The lists are those of the OpenAPI document, so an endpoint of tomorrow is flooded too.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from live import Server, serving

from localpolicy.serving.config import ServeConfig

FULL = ServeConfig(export=".").largest_body
MOST_MEMORY = 50 << 20  # bytes that floods may add
ELEMENTS = {
    "objects": "{}", "lists": "[]", "nulls": "null", "truths": "true", "items": "101", "negative": "-1",
    "fractions": "0.5", "texts": '"a"', "empty texts": '""', "escapes": r'"\u0061"', "surrogates": r'"\ud83d\ude00"',
    "events": '{"item":1,"event":"click"}', "half events": '{"item":1}', "nested": '{"a":{"a":{"a":[]}}}',
    "doubled names": '{"a":1,"a":1,"a":1}', "colons": '":::::::"', "quotes": r'"\"\"\":"',
}  # fmt: skip
WHOLE = {
    "names": "{" + ",".join(f'"n{number}":0' for number in range(90_000)) + "}",
    "one name": "{" + ",".join(['"k":1'] * 170_000) + "}",
    "brackets": "[" * FULL,
    "braces": '{"a":' * (FULL // 5),
    "a text without an end": '{"person":"' + '\\"' * (FULL // 2 - 10),
    "a long number": '{"k":' + "9" * (FULL - 10) + "}",
    "a long fraction": '{"kk":0.' + "1" * (FULL - 10) + "}",
    "a long name": '{"' + "a" * (FULL - 10) + '":1}',
    "spaces": '{"kk":[' + " " * (FULL - 20) + "]",
}


@pytest.fixture(scope="module", params=["exported", "layer"])
def server(request, tmp_path_factory) -> Iterator[Server]:
    """Of a policy, and of a layer: between them they have all endpoints."""
    made = request.getfixturevalue(request.param)
    folder = made if request.param == "layer" else made.folder
    with serving(folder, tmp_path_factory.mktemp("floods") / "log.db") as server:
        yield server


def sent(server: Server, path: str, body: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("POST", path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def document(server: Server) -> dict:
    return server.call("GET", "/openapi.json")[1]


def bodies(document: dict) -> Iterator[tuple[str, str, dict]]:
    """Each endpoint that takes a body: its path, the name of the body and its fields."""
    for path, about in document["paths"].items():
        if "post" in about:
            (name,) = (
                content["schema"]["$ref"].rpartition("/")[2]
                for kind, content in about["post"]["requestBody"]["content"].items()
            )
            yield path, name, document["components"]["schemas"][name]["properties"]


def is_list(about: dict) -> bool:
    return any(kind.get("type") == "array" for kind in (about, *about.get("anyOf", ())))


def most_memory(server: Server) -> int:
    """Bytes that the server ever had."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def test_every_list_and_text_of_every_body_has_a_limit(server):
    """In the document, so that the parser stops there; texts of 256, lists as the settings say."""
    whole = document(server)
    for path, name, fields in bodies(whole):
        for field, about in fields.items():
            kinds = [about, *about.get("anyOf", ())]
            for kind in kinds:
                assert kind.get("type") != "array" or kind["maxItems"] <= 10_000, (path, name, field)
                assert kind.get("type") != "string" or kind["maxLength"] <= 256, (path, name, field)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_floods_of_elements_are_refused_soon_and_in_little_memory(server):
    whole = document(server)
    floods = {
        (path, field, name): f'{{"{field}":[{",".join([element] * (FULL // (len(element) + 1) - 8))}]}}'
        for path, _, fields in bodies(whole)
        for field, about in fields.items()
        if is_list(about)
        for name, element in ELEMENTS.items()
    }
    floods |= {(path, "whole", name): body for path, _, _ in bodies(whole) for name, body in WHOLE.items()}
    floods |= {
        (path, field, f"{name} of {inside}"): f'{{"{field}":{{"{inside}":[{",".join([element] * (FULL // 28))}]}}}}'
        for path, _, fields in bodies(whole)
        for field, about in fields.items()
        if any(kind.get("type") == "object" for kind in (about, *about.get("anyOf", ())))
        for inside in ("boost", "a")
        for name, element in ELEMENTS.items()
    }
    assert len(floods) > 75
    before = most_memory(server)
    for case, body in floods.items():
        assert 100_000 < len(body) <= FULL, case
        status, answer = sent(server, case[0], body)
        assert status in (400, 422), (case, status)
        assert len(answer) < 1000 and set(json.loads(answer)) == {"error", "field"}, (case, answer[:200])
    assert most_memory(server) - before < MOST_MEMORY, f"{(most_memory(server) - before) >> 20} MB more"
    assert server.call("GET", "/readyz")[0] == 200
