"""Limits on clients: size, time and number of their requests, the token, and the origin they come from.

Nothing of a request is read or counted before its token was. Open pages take no body, so none is waited for. A web page
of somebody else's may make a browser ask on its behalf: its origin gives it away, and so does a name (Host) that an
attacker has pointed at this machine. Such a name has a dot in it; numbers and local names cannot be registered.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections import Counter
from collections.abc import Collection
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

OPEN = ("/", "/healthz", "/readyz", "/openapi.json")  # answered without a token
SAFE = ("GET", "HEAD", "OPTIONS")  # methods that change nothing
UNCOUNTED = ("/healthz", "/readyz", "/metrics")  # answered even when the queue is full


async def refuse(send: Any, status: int, error: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    """Send an error before the application sees the request, and close the connection: the body is not read."""
    body = json.dumps({"error": error, "field": None}).encode()
    own = (
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    )
    await send({"type": "http.response.start", "status": status, "headers": [*own, *headers]})
    await send({"type": "http.response.body", "body": body})


def first(message: Any, receive: Any) -> Any:
    """Return a `receive` that replays a message already received, and then receives the others."""
    waiting = [message]

    async def replay() -> Any:
        return waiting.pop() if waiting else await receive()

    return replay


class Limits:
    """ASGI middleware that checks host, origin, token, size, time and queue, in this order."""

    def __init__(
        self, app: Any, *, token: str | None, queue: int, largest_body: int, body_seconds: float,
        client_queue: int | None = None, hosts: Collection[str] | None = None, origins: Collection[str] = (),
        open_metrics: bool = False,
    ) -> None:  # fmt: skip
        self.app, self.token, self.queue, self.hosts, self.origins = app, token, queue, hosts, origins
        self.client_queue = queue if client_queue is None else client_queue
        self.largest_body, self.body_seconds = largest_body, body_seconds
        self.open = (*OPEN, "/metrics") if open_metrics else OPEN
        self.working = self.refused = 0
        self.working_for: Counter[str] = Counter()  # by address

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Refuse the request, or pass it to the application with its body read."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path, headers = scope["path"], dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if not self._is_here(host):
            await refuse(send, 421, f"this service is not called {host[:100]!r}: allow the name with --set hosts=….")
            return
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if scope["method"] not in SAFE and origin and not self._is_from_here(origin, host):
            await refuse(send, 403, f"pages of {origin[:100]!r} may not ask: allow them with --set origins=….")
            return
        if not self._may(path, headers):
            await refuse(send, 401, "expected 'Authorization: Bearer TOKEN' with this service's token.",
                         ((b"www-authenticate", b"Bearer"),))  # fmt: skip
            return
        if path in self.open:
            await self.app(scope, receive, send)
        elif path in UNCOUNTED or not (full := self._full(scope)):
            await self._read(scope, receive, send, headers)
        else:
            await self._refuse_more(send, full)

    def _is_here(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
        if self.hosts is None:
            return True
        if self.hosts:
            return name.strip("[]") in self.hosts
        return "." not in name.removesuffix(".localhost") or all(part.isdigit() for part in name.split("."))

    def _is_from_here(self, origin: str, host: str) -> bool:
        return origin in self.origins or origin.partition("://")[2] == host

    def _full(self, scope: Any) -> str:
        """Return why no more requests are accepted from this client now; empty if they are."""
        if self.working >= self.queue:
            return f"{self.queue} requests wait already"
        mine = self.working_for[_address(scope)]
        return f"{mine} requests of yours wait already" if mine >= self.client_queue else ""

    async def _refuse_more(self, send: Any, full: str) -> None:
        self.refused += 1
        await refuse(send, 429, f"{full}; try again.", ((b"retry-after", b"1"),))

    def _may(self, path: str, headers: dict[bytes, bytes]) -> bool:
        if self.token is None or path in self.open:
            return True
        given = headers.get(b"authorization", b"")
        return hmac.compare_digest(given, b"Bearer " + self.token.encode())

    async def _read(self, scope: Any, receive: Any, send: Any, headers: dict[bytes, bytes]) -> None:
        """Read the body within its limits, then pass it to the application."""
        too_large = f"the body is larger than {self.largest_body:,} bytes; send less at once."
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.largest_body:
            await refuse(send, 413, too_large)
            return
        body = bytearray()
        try:
            async with asyncio.timeout(self.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return
                    body += message.get("body", b"")
                    if len(body) > self.largest_body:
                        await refuse(send, 413, too_large)
                        return
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            await refuse(send, 408, f"the body took longer than {self.body_seconds:g} seconds.")
            return
        replay = first({"type": "http.request", "body": bytes(body), "more_body": False}, receive)
        if scope["path"] in UNCOUNTED:
            await self.app(scope, replay, send)
        elif full := self._full(scope):  # counted once the body is complete, so that a slow sender blocks no one
            await self._refuse_more(send, full)
        else:
            client = _address(scope)
            self.working += 1
            self.working_for[client] += 1
            try:
                await self.app(scope, replay, send)
            finally:
                self.working -= 1
                self.working_for[client] -= 1
                if not self.working_for[client]:
                    del self.working_for[client]


def _address(scope: Any) -> str:
    """Return the client's address."""
    return str((scope.get("client") or ("",))[0])


class PatientProtocol(H11Protocol):
    """HTTP protocol with a time limit for the headers; an idle connection is closed."""

    header_seconds = 10.0
    _clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the time limit when headers are awaited, and again at their first byte."""
        waiting = self.conn.their_state is h11.IDLE
        if waiting and self._clock is None:
            self._clock = self.loop.call_later(self.header_seconds, self._too_slow)
        elif not waiting:
            self._stop()

    def _too_slow(self) -> None:
        self._clock = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()

    def _stop(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
