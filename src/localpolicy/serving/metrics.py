"""Metrics for Prometheus, summed over all workers, and the access log.

Several workers write their metrics into one folder (prometheus_client's multiprocess mode); any of them returns
the sums. A single worker needs no folder.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Collection, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess

ACCESS = logging.getLogger("localpolicy.access")
FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # folder of the workers' metrics; prometheus_client reads it when it is imported
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)  # seconds
POST_STATUSES = ("200", "422", "429", "503")  # that are counted from 0 on; others appear with the first of them
COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "lists": ("lists made", ("arm", "mode", "policy")),
    "model_failures": ("lists that the policy could not make, so that the fallback did", ()),
    "withdrawn": ("lists that nobody was given, since they could not be written down in time", ()),
    "shadow": ("questions that a candidate answered unseen", ("outcome",)),
    "shown": ("reports of what was seen", ()),
    "feedback": ("answers stored", ("late",)),
    "responses": ("HTTP answers", ("method", "path", "status")),
    "batches": ("passes of the policy", ()),
    "batched_requests": ("questions answered in them", ()),
    "log_records": ("records written to the log", ()),
    "log_transactions": ("transactions they shared", ()),
}


class Metrics:
    """Counters with labels, a histogram of seconds, and a gauge of rejected exports."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        where: dict[str, Any] = {"namespace": "localpolicy", "registry": self._registry}
        self._counters = {name: Counter(name, text, labels, **where) for name, (text, labels) in COUNTERS.items()}
        self._seconds = Histogram("seconds", "time to make a list and write it down", buckets=BUCKETS, **where)
        self._refused = Gauge("export_refused", "1 if the last new export was rejected and the old one is still served",
                              multiprocess_mode="livemax", **where)  # fmt: skip
        self._rotated = Gauge("rotated_answers", "answers that rotations have moved, by outcome", ("fate",),
                              multiprocess_mode="livemax", **where)  # fmt: skip
        self._known: dict[str, float] = {}
        for late in ("false", "true"):
            self.begin("feedback", late=late)
        for outcome in ("answered", "failed"):
            self.begin("shadow", outcome=outcome)

    def begin(self, name: str, **labels: str) -> None:
        """Start a counter at 0, since rates and alerts ignore a counter that is absent."""
        self._counters[name].labels(**labels)

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to the counter of this name and these labels."""
        counter = self._counters[name]
        (counter.labels(**labels) if labels else counter).inc(amount)

    def took(self, seconds: float) -> None:
        """Record the seconds that a list took."""
        self._seconds.observe(seconds)

    def follow(self, totals: Mapping[str, float], *, refused: bool) -> None:
        """Raise counters to totals that are counted elsewhere, and set the gauge of rejected exports."""
        for name, total in totals.items():
            self._counters[name].inc(total - self._known.get(name, 0.0))
            self._known[name] = total
        self._refused.set(float(refused))

    def rotated(self, answers: Mapping[str, int]) -> None:
        """Set the numbers of answers that rotations have moved, by outcome."""
        for fate, count in answers.items():
            self._rotated.labels(fate=fate).set(count)

    def text(self) -> str:
        """Return the metrics of all workers in Prometheus's text format."""
        registry = self._registry
        if os.environ.get(FOLDER):
            registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry).decode()


class AccessLog:
    """ASGI middleware that counts responses by path and status, and with `write` logs a JSON line about each."""

    def __init__(
        self, app: Any, *, metrics: Metrics, paths: frozenset[str], posts: Collection[str], write: bool
    ) -> None:
        self.app, self.metrics, self.paths, self.write = app, metrics, paths, write
        for path in paths:
            for status in POST_STATUSES if path in posts else ("200",):
                metrics.begin("responses", method="POST" if path in posts else "GET", path=path, status=status)
        if write and not ACCESS.handlers:  # a line of JSON alone, without the format of other handlers
            ACCESS.addHandler(logging.StreamHandler())
            ACCESS.setLevel(logging.INFO)
            ACCESS.propagate = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Call the application, then count and log its response."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def watched(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watched)
        finally:
            path = scope["path"] if scope["path"] in self.paths else "other"  # a client's own paths are no labels
            method = scope["method"] if scope["method"] in ("GET", "POST") else "other"
            self.metrics.add("responses", method=method, path=path, status=str(status))
            if self.write:
                client = (scope.get("client") or ("",))[0]
                spent = round(1000 * (time.perf_counter() - began), 2)
                line = {"time": time.time(), "method": method, "path": path, "status": status, "ms": spent}
                ACCESS.info(json.dumps({**line, "client": client}))
