"""Limits on clients: size, time and number of their requests, the token, and the origin they come from.

Nothing of a request is read or counted before its token was. Open pages take no body, so none is waited for. A web page
of somebody else's may make a browser ask on its behalf: its origin gives it away, and so does a name (Host) that an
attacker has pointed at this machine. Such a name has a dot in it; numbers and local names cannot be registered.
Connections are counted by address before all of this, and the bytes of bodies while they are read: both take memory.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from ipaddress import ip_address, ip_network
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

OPEN = ("/", "/healthz", "/readyz", "/openapi.json")  # answered without a token
SAFE = ("GET", "HEAD", "OPTIONS")  # methods that change nothing
UNCOUNTED = ("/healthz", "/readyz", "/metrics")  # answered even when the queue is full
JSON_CLOSED = ((b"content-type", b"application/json"), (b"connection", b"close"))  # headers of a refusal


async def refuse(send: Any, status: int, error: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    """Send an error before the application sees the request, and close the connection: the body is not read."""
    body = json.dumps({"error": error, "field": None}).encode()
    own = (*JSON_CLOSED, (b"content-length", str(len(body)).encode()))
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
        client_queue: int | None = None, waiting_bytes: int | None = None, hosts: Collection[str] | None = None,
        origins: Collection[str] = (), open_metrics: bool = False,
    ) -> None:  # fmt: skip
        self.app, self.token, self.queue, self.hosts, self.origins = app, token, queue, hosts, origins
        self.client_queue = queue if client_queue is None else client_queue
        self.largest_body, self.body_seconds = largest_body, body_seconds
        # A body within its own limit must fit, even if it is the only one.
        self.waiting_bytes = max(64 * largest_body if waiting_bytes is None else waiting_bytes, largest_body)
        self.client_bytes = max((self.waiting_bytes + 1) // 2, largest_body)
        self.open = (*OPEN, "/metrics") if open_metrics else OPEN
        self.working = self.refused = 0
        self.working_for: Counter[str] = Counter()  # by address
        self.held_for: Counter[str] = Counter()  # bytes of bodies that wait, by address

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
        with self._held(_address(scope)) as hold:
            body = await self._body(receive, send, hold, too_large)
            if body is not None:
                replay = first({"type": "http.request", "body": body, "more_body": False}, receive)
                del body
                await self._pass_on(scope, replay, send)

    async def _body(self, receive: Any, send: Any, hold: Callable[[int], str], too_large: str) -> bytes | None:
        """Return the whole body; None if it was refused, or the client is gone."""
        body = bytearray()
        try:
            async with asyncio.timeout(self.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    part = message.get("body", b"")
                    if len(body) + len(part) > self.largest_body:
                        await refuse(send, 413, too_large)
                        return None
                    if full := hold(len(part)):
                        await self._refuse_more(send, full)
                        return None
                    body += part
                    if not message.get("more_body"):
                        return bytes(body)
        except TimeoutError:
            await refuse(send, 408, f"the body took longer than {self.body_seconds:g} seconds.")
            return None

    @contextmanager
    def _held(self, client: str) -> Iterator[Callable[[int], str]]:
        """Context manager: count bytes of a client's body until the block ends.

        Yield a function that adds bytes, and returns why no more are taken; empty if they are.
        """
        mine = 0

        def hold(size: int) -> str:
            nonlocal mine
            if self.held_for.total() + size > self.waiting_bytes:
                return f"bodies of {self.waiting_bytes:,} bytes wait already"
            if self.held_for[client] + size > self.client_bytes:
                return f"bodies of yours of {self.client_bytes:,} bytes wait already"
            mine += size
            self.held_for[client] += size
            return ""

        try:
            yield hold
        finally:
            self.held_for[client] -= mine
            if not self.held_for[client]:
                del self.held_for[client]

    async def _pass_on(self, scope: Any, replay: Any, send: Any) -> None:
        """Pass a request whose body is complete to the application, counted while it is answered."""
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


def is_within(address: str, networks: Collection[str]) -> bool:
    """Whether an address is one of these addresses or networks; `*` is all of them."""
    for network in networks:
        if network in ("*", address):
            return True
        try:
            if ip_address(address) in ip_network(network, strict=False):
                return True
        except ValueError:
            continue  # a name
    return False


def _address(scope: Any) -> str:
    """Return the client's address."""
    return str((scope.get("client") or ("",))[0])


class PatientProtocol(H11Protocol):
    """HTTP protocol with limits on connections, and a time limit for headers; an idle connection is closed.

    No address but a proxy's has more than half of the connections: whoever opens many keeps out himself alone.
    """

    header_seconds = 10.0
    most_connections = 1024
    proxies: Collection[str] = ()  # addresses and networks whose connections are those of many clients
    open_from: ClassVar[Counter[str]] = Counter()  # connections by address
    _clock: asyncio.TimerHandle | None = None
    _from: str | None = None  # the client's address, if the connection is counted

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        address = str((transport.get_extra_info("peername") or ("",))[0])
        if full := self._full(address):
            self._refuse(429, "Too Many Requests", f"{full}; try again.", b"retry-after: 1\r\n")
        else:
            self._from = address
            self.open_from[address] += 1
            self._watch()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        if self._from is not None:
            self.open_from[self._from] -= 1
            if not self.open_from[self._from]:
                del self.open_from[self._from]
            self._from = None
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP; where an answer has begun already, the connection ends."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._refuse(400, "Bad Request", "the request is not HTTP/1.1, or its headers are too large.")
        self.transport.close()

    def _full(self, address: str) -> str:
        """Return why no more connections are accepted from this address now; empty if they are."""
        if self.open_from.total() >= self.most_connections:
            return f"{self.most_connections} connections are open already"
        most = (self.most_connections + 1) // 2
        if self.open_from[address] >= most and not is_within(address, self.proxies):
            return f"{most} connections of yours are open already"
        return ""

    def _refuse(self, status: int, reason: str, error: str, header: bytes = b"") -> None:
        """Write a refusal, whatever was asked, and end the connection."""
        body = json.dumps({"error": error, "field": None}).encode()
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in JSON_CLOSED)
        start = f"HTTP/1.1 {status} {reason}\r\ncontent-length: {len(body)}\r\n".encode()
        self.transport.write(start + lines + header + b"\r\n" + body)
        self.transport.close()

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
