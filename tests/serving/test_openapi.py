"""The OpenAPI document, and a machine that tries to break what it describes."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localpolicy.serving.app import make_app
from localpolicy.serving.config import ServeConfig

ENDPOINTS = ("/v1/recommend", "/v1/shown", "/v1/feedback", "/v1/preview")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([100, "click", 1, 0.5]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = ("history", "k", "person", "candidates", "exclude", "exclude_seen", "exclude_last", "rest_hours", "beta",
          "sample", "defer", "request", "places", "time", "id", "item", "event", "reward")  # fmt: skip


@pytest.fixture(scope="module")
def client(exported, tmp_path_factory):
    config = ServeConfig.parse({"export": exported.folder, "log": str(tmp_path_factory.mktemp("api") / "log.db")})
    with TestClient(make_app(config)) as client:
        yield client


def test_every_endpoint_says_what_it_takes_gives_and_refuses(client):
    document = client.get("/openapi.json").json()
    for path in ENDPOINTS:
        about = document["paths"][path]["post"]
        assert about["description"] and {"200", "400", "401", "408", "413", "422", "429", "503"} <= set(
            about["responses"]
        )
        refused = about["responses"]["422"]["content"]["application/json"]["schema"]
        assert refused == {"$ref": "#/components/schemas/Problem"}
    assert {"/v1/policies", "/healthz", "/readyz", "/metrics"} <= set(document["paths"])


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(path=st.sampled_from(ENDPOINTS), body=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6) | VALUES)
def test_nothing_a_client_sends_breaks_the_service(client, path, body):
    import json

    content = json.dumps(body).encode("utf-8", "surrogatepass")
    answer = client.post(path, content=content, headers={"content-type": "application/json"})
    documented = client.app.openapi()["paths"][path]["post"]["responses"]
    assert str(answer.status_code) in documented and answer.status_code < 500, (body, answer.text)
    if answer.status_code != 200:
        assert set(answer.json()) == {"error", "field"} and answer.json()["error"]
