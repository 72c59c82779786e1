"""Spans for OpenTelemetry, if its API is installed and a collector is configured; else none.

OTEL_EXPORTER_OTLP_ENDPOINT names a collector, as everywhere. A provider that another tool has set up is used as it is.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

from localpolicy.errors import LocalPolicyError

NAME = "localpolicy"
NOTHING = nullcontext()
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def send_spans() -> None:
    """Send this process's spans to the collector that the environment names, if it names one."""
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise LocalPolicyError(
            f"{ENDPOINTS[0]} is set, and spans need OpenTelemetry's SDK: pip install 'localpolicy[trace]', or unset it."
        ) from None
    named = os.environ.get("OTEL_SERVICE_NAME", NAME)
    provider = TracerProvider(resource=Resource.create({"service.name": named}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


@cache
def _api() -> Any:
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace


def _tracer() -> Any:
    """Return the tracer; None without a provider, since unexported spans took a fifth of a request's time."""
    trace = _api()
    if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    return trace.get_tracer(NAME)


def span(name: str, **attributes: str | int | float | bool) -> AbstractContextManager[Any]:
    """Context manager: a span around a block. Its attributes name neither persons nor items: others keep traces."""
    tracer = _tracer()
    if tracer is None:
        return NOTHING
    return tracer.start_as_current_span(  # type: ignore[no-any-return]
        f"{NAME}.{name}", attributes={f"{NAME}.{key}": value for key, value in attributes.items()}
    )
