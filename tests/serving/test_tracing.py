"""Spans: made where OpenTelemetry is there, sent where the environment says so, and silent about people."""

from __future__ import annotations

import sys
from contextlib import contextmanager

import pytest
from fastapi.testclient import TestClient

from localpolicy.errors import LocalPolicyError
from localpolicy.serving import tracing
from localpolicy.serving.app import make_app
from localpolicy.serving.config import ServeConfig


class Tracer:
    def __init__(self):
        self.spans = []

    @contextmanager
    def start_as_current_span(self, name, attributes):
        self.spans.append((name, attributes))
        yield


def test_a_request_has_spans_for_the_policy_and_the_log(exported, tmp_path, monkeypatch):
    tracer = Tracer()
    monkeypatch.setattr(tracing, "_tracer", lambda: tracer)
    app = make_app(ServeConfig(export=exported.folder, log=str(tmp_path / "log.db"), hosts=("testserver",)))
    with TestClient(app) as client:
        answer = client.post("/v1/recommend", json={"history": [101], "k": 2, "person": "somebody"}).json()
        told = {"id": "1", "request": answer["request"], "item": answer["items"][0], "event": "click"}
        assert client.post("/v1/feedback", json=told).status_code == 200
    names = [name.removeprefix("localpolicy.") for name, _ in tracer.spans]
    assert names == ["POST /v1/recommend", "policy", "log", "POST /v1/feedback"]
    assert tracer.spans[1][1]["localpolicy.version"] == exported.version
    assert "somebody" not in str(tracer.spans) and "101" not in str(tracer.spans)


def test_without_opentelemetry_there_are_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    tracing._api.cache_clear()
    try:
        with tracing.span("anything", number=1) as nothing:
            assert nothing is None
    finally:
        tracing._api.cache_clear()


def test_spans_are_made_once_somebody_has_set_up_a_provider(monkeypatch):
    trace = pytest.importorskip("opentelemetry.trace")
    with tracing.span("anything") as nothing:
        assert nothing is None, "a span that goes nowhere is not made"
    monkeypatch.setattr(trace, "get_tracer_provider", trace.NoOpTracerProvider)
    with tracing.span("anything") as span:
        assert span is not None


def test_a_collector_without_the_sdk_is_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    for name in ("opentelemetry.sdk", "opentelemetry.sdk.trace", "opentelemetry.exporter"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(LocalPolicyError, match=r"pip install 'localpolicy\[trace\]'"):
        tracing.send_spans()
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    tracing.send_spans()
