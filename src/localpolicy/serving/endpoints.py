"""Endpoints that take one JSON body and answer with one model; errors are JSON bodies too.

To add an endpoint, write its body and its answer in `schema`, with `fail_fast=True` and a `max_length` on every list,
and register a function in `app`:

    @post("/v1/rerank", Rerank, names=FEW + 3 * most, commas=FEW + 3 * most)
    async def rerank(asked: Rerank) -> Reranked:
        \"\"\"Description of the endpoint in the OpenAPI document.\"\"\"
        return await service.rerank(asked)

`names` is how many `"name":` a body may hold and `commas` how many commas, those of its lists included: what has more
is refused before anything is made of it. That is all: the document, the token, the limits of size, time and queue, the
errors, the metrics and the spans follow from the path.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError

from localpolicy.errors import DataError, LocalPolicyError, bounded
from localpolicy.serving.log import LogError, UnknownRequest
from localpolicy.serving.schema import Problem
from localpolicy.serving.tracing import span

LOG = logging.getLogger(__name__)
SHOWN_PROBLEMS = 3
LONGEST_NAME = 64  # characters of a field's name that are repeated
FEW = 64  # more marks than any body has without its lists
SMALL = 1 << 14  # bytes of a body that is read in the event loop: that takes less time than to ask a thread for it
JSON_TYPE = re.compile(rb"application/(?:[\w.-]+\+)?json\s*(?:;|$)")
TEXT = r'"(?:[^"\\]++|\\.)*+"'  # no step through a body is taken twice, whatever it holds: `++` gives nothing back
NEXT = {
    mark: re.compile(rf'[^"{mark}]*+(?:{TEXT}[^"{mark}]*+)*+{mark}'.encode(), re.DOTALL) for mark in (":", ",")
}  # up to the next mark outside of texts
ANSWERED = [(b"content-type", b"application/json")]
AN_ITEM = "an item's id: a whole number of 64 bits, or a text of 1 to 256 characters"
EXPECTED = {"history": f"{AN_ITEM}; or {{item, event}}", "candidates": AN_ITEM, "exclude": AN_ITEM}
A_CELL = "a finite number, a text of 1 to 256 characters, true, false or null"  # of a candidate to rerank
PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "the body is not JSON"},
    401: {"model": Problem, "description": "no token, or not this one"},
    403: {"model": Problem, "description": "asked by a web page of another origin"},
    408: {"model": Problem, "description": "the body came too slowly"},
    413: {"model": Problem, "description": "the body is too large"},
    415: {"model": Problem, "description": "the body is not called application/json"},
    421: {"model": Problem, "description": "called by a name that is not this service's"},
    422: {"model": Problem, "description": "the question makes no sense"},
    429: {"model": Problem, "description": "too many requests wait; try again after Retry-After seconds"},
    503: {"model": Problem, "description": "the log cannot be written, so nothing is answered"},
}
UNKNOWN: dict[int | str, dict[str, Any]] = {404: {"model": Problem, "description": "no such request was made here"}}


@dataclass(frozen=True)
class Endpoint:
    """Model of a request's body, limits on its field names and commas, and the function that answers."""

    asked: type[BaseModel]
    names: int
    commas: int
    answer: Callable[[Any], Awaitable[BaseModel]]

    def read(self, body: bytes) -> BaseModel:
        """Parse a body; raise if it holds too many elements, or does not fit the model."""
        if more_than(self.names, ":", body) or more_than(self.commas, ",", body):
            most = f"at most {self.names:,} names of fields and {self.commas:,} commas"
            raise DataError(f"too many elements: a body here holds {most}.")
        return self.asked.model_validate_json(body)


@dataclass(frozen=True)
class Endpoints:
    """The endpoints of an application by path. FastAPI documents them; `Posts` calls them."""

    app: FastAPI
    table: dict[str, Endpoint] = field(default_factory=dict)

    def post(
        self, path: str, asked: type[BaseModel], *, names: int = FEW, commas: int = FEW,
        refuses: Mapping[int | str, Any] = PROBLEMS,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # fmt: skip
        """Return a decorator that registers a function of one parameter, `asked`: the parsed body."""

        def register(answer: Callable[..., Any]) -> Callable[..., Any]:
            self.table[path] = Endpoint(asked, names, commas, answer)
            answer.__annotations__["asked"] = asked  # its limits may be those of this service alone
            self.app.post(path, responses=dict(refuses))(answer)
            return answer

        return register


class Posts:
    """ASGI middleware: bodies are read, and answers written, by pydantic alone.

    FastAPI would build Python objects out of the JSON, check all of them, and on the way back do both again; its routes
    are eight calls deep. At a thousand lists a second that is most of the time. `Limits` stands outside, so the body
    comes whole. What is wrong with it is looked for until one list has one wrong element.
    """

    def __init__(self, app: Any, *, table: Mapping[str, Endpoint]) -> None:
        self.app, self.table = app, table
        # Large bodies are read one at a time: what one of them takes of memory is all that any number of them take.
        self.reader = ThreadPoolExecutor(1, thread_name_prefix="bodies")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request to one of the endpoints; pass all others on to the application."""
        known = self.table.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if known is None:
            await self.app(scope, receive, send)
            return
        with span(f"POST {scope['path']}"):
            if not any(name == b"content-type" and JSON_TYPE.match(kind) for name, kind in scope["headers"]):
                refused = problem(415, "expected JSON: send the header content-type: application/json.")
                await refused(scope, receive, send)
                return
            body = (await receive()).get("body", b"")
            try:
                if len(body) <= SMALL:
                    asked = known.read(body)
                else:
                    asked = await asyncio.get_running_loop().run_in_executor(self.reader, known.read, body)
                answer = await known.answer(asked)
            except ValidationError as error:
                await invalid(error.errors(include_url=False, include_input=False))(scope, receive, send)
                return
            except LocalPolicyError as error:
                await refusal(error)(scope, receive, send)
                return
            content = answer.model_dump_json().encode()
            headers = [*ANSWERED, (b"content-length", str(len(content)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": content})


def more_than(most: int, mark: str, body: bytes) -> bool:
    """Whether a JSON body has more than `most` of these marks outside its strings; the search stops there."""
    if body.count(mark.encode()) <= most:
        return False
    count = at = 0
    while count <= most and (found := NEXT[mark].match(body, at)):
        count, at = count + 1, found.end()
    return count > most


def problem(status: int, error: str, field: str | None = None, **headers: str) -> JSONResponse:
    """Return a response whose JSON body explains the error."""
    return JSONResponse({"error": error, "field": field}, status, headers=headers or None)


def refusal(error: LocalPolicyError) -> JSONResponse:
    """Return the response for one of our errors: 503, 404 or 422."""
    if isinstance(error, LogError):
        LOG.error("%s", error)
        return problem(503, "the log cannot be written, so nothing is answered.", None, **{"retry-after": "1"})
    return problem(404 if isinstance(error, UnknownRequest) else 422, bounded(str(error)))


def invalid(errors: Sequence[Any]) -> JSONResponse:
    """Return the response for an invalid body. The body is not quoted: it may be large, or hold what JSON cannot."""
    if any(each["type"] == "json_invalid" for each in errors):
        return problem(400, "the body is not JSON.")
    messages = _messages(errors)
    more = f" (and {len(messages) - SHOWN_PROBLEMS} more)" if len(messages) > SHOWN_PROBLEMS else ""
    shown = [f"{field}: {message}" for field, message in list(messages.items())[:SHOWN_PROBLEMS]]
    return problem(422, "; ".join(shown) + more, next(iter(messages), None))


def _messages(errors: Sequence[Any]) -> dict[str, str]:
    """Return one message per field. A value of a union fails once for each of its types: that is one problem."""
    messages: dict[str, str] = {}
    for error in errors:
        path = error["loc"]
        inside = next((number for number, part in enumerate(path) if isinstance(part, int)), None)
        several = inside is not None and len(path) > inside + 1
        of_cell = several and path[0] == "candidates" and len(path) > 3  # an object's, or a column's
        named = path[:3] if of_cell else path[: inside + 1] if several and inside is not None else path
        field = ".".join(str(part)[:LONGEST_NAME] for part in named) or "body"
        expected = A_CELL if of_cell else EXPECTED.get(str(path[0]), "another value") if several else ""
        messages.setdefault(field, f"expected {expected}" if several else error["msg"])
    return messages
