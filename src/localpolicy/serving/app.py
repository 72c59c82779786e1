"""The HTTP service: endpoints, and every error as a clear body."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import os
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from localpolicy.errors import LocalPolicyError
from localpolicy.serving.answering import Service, Unknown
from localpolicy.serving.config import ServeConfig, is_loopback
from localpolicy.serving.limits import Limits, PatientProtocol, first
from localpolicy.serving.log import LogError
from localpolicy.serving.metrics import AccessLog
from localpolicy.serving.schema import (
    FeedbackReport,
    Health,
    Listed,
    NamedList,
    Policies,
    Preview,
    PreviewRequest,
    Problem,
    Recommend,
    ShownReport,
    Stored,
)  # fmt: skip
from localpolicy.serving.tracing import send_spans, span
from localpolicy.version import __version__

LOG = logging.getLogger(__name__)
SETTINGS, TOKEN = "LPI_SERVE", "LPI_TOKEN"  # environment variables: how workers learn what to serve
SHOWN_PROBLEMS = 3
IS_JSON = (b"content-type", b"application/json")
Endpoint = Callable[[Any], Awaitable[BaseModel]]
AN_ITEM = "an item's id: a whole number of 64 bits, or a text of 1 to 256 characters"
EXPECTED = {"history": f"{AN_ITEM}; or {{item, event}}", "candidates": AN_ITEM, "exclude": AN_ITEM}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "the body is not JSON"},
    401: {"model": Problem, "description": "no token, or not this one"},
    403: {"model": Problem, "description": "asked by a web page of another origin"},
    408: {"model": Problem, "description": "the body came too slowly"},
    413: {"model": Problem, "description": "the body is too large"},
    421: {"model": Problem, "description": "called by a name that is not this service's"},
    422: {"model": Problem, "description": "the question makes no sense"},
    429: {"model": Problem, "description": "too many requests wait; try again after Retry-After seconds"},
    503: {"model": Problem, "description": "the log cannot be written, so nothing is answered"},
}
UNKNOWN: dict[int | str, dict[str, Any]] = {404: {"model": Problem, "description": "no such request was made here"}}


def from_environment() -> FastAPI:
    """The application of one worker."""
    config = ServeConfig.model_validate_json(os.environ[SETTINGS])
    PatientProtocol.header_seconds = config.body_seconds
    send_spans()
    return make_app(config, token=os.environ.get(TOKEN) or None)


def make_app(config: ServeConfig, *, token: str | None = None) -> FastAPI:
    """The application; raises where the export or the log cannot be opened."""
    service = Service(config)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(service.watch())
        gc.freeze()  # a full collection goes through what was loaded: 40 ms in which nobody is answered
        yield
        gc.unfreeze()
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        service.close()

    app = FastAPI(
        title="localpolicy", version=__version__, lifespan=life, docs_url=None, redoc_url=None,
        description="Lists with exact propensities, and a log of what became of them.",
    )  # fmt: skip
    app.state.service = service
    _endpoints(app, service)
    app.add_middleware(Direct, routes=app.routes)  # the innermost
    app.add_middleware(
        Limits, token=token, queue=config.queue, largest_body=config.largest_body, body_seconds=config.body_seconds,
        hosts=config.hosts or (() if is_loopback(config.host) else None), origins=config.origins,
        open_metrics=config.open_metrics,
    )  # fmt: skip
    _errors(app)
    paths = frozenset(path for route in app.routes if (path := getattr(route, "path", None)) is not None)
    app.add_middleware(AccessLog, metrics=service.metrics, paths=paths, write=config.access_log)  # the outermost
    return app


def _endpoints(app: FastAPI, service: Service) -> None:
    @app.post("/v1/recommend", responses=PROBLEMS)
    async def recommend(asked: Recommend) -> Listed | NamedList:
        """A list for a history, drawn with known probabilities and logged before it is answered."""
        with span("recommend"):
            return await service.recommend(asked)

    @app.post("/v1/shown", responses={**PROBLEMS, **UNKNOWN})
    async def shown(report: ShownReport) -> Stored:
        """How much of a list was really seen, and when."""
        return await service.shown(report)

    @app.post("/v1/feedback", responses={**PROBLEMS, **UNKNOWN})
    async def feedback(answer: FeedbackReport) -> Stored:
        """What came back for one item; the same id counts once, late ones are kept and marked."""
        with span("feedback"):
            return await service.feedback(answer)

    @app.post("/v1/preview", responses=PROBLEMS)
    async def preview(asked: PreviewRequest) -> Preview:
        """The list of the logging policy's estimate and the dial's, side by side; not logged."""
        return await service.preview(asked)

    open_problems: dict[int | str, dict[str, Any]] = {status: PROBLEMS[status] for status in (401, 408, 413, 421, 429)}

    @app.get("/v1/policies", responses=open_problems)
    async def policies() -> Policies:
        """Which policies answer, and which share of traffic each has."""
        return service.policies()

    @app.get("/healthz", responses=open_problems)
    async def healthz() -> Health:
        """The process lives."""
        return Health(status="ok")

    @app.get("/readyz", responses={**open_problems, 503: PROBLEMS[503]})
    async def readyz() -> Health:
        """A policy is loaded and the log takes a record."""
        await service.ready()
        return Health(status="ok")

    @app.get("/metrics", response_class=PlainTextResponse, responses=open_problems)
    async def metrics() -> str:
        """Counters of all workers, for Prometheus."""
        service.count_totals()
        return service.metrics.text()

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> HTMLResponse:
        """The dial, to look at."""
        return HTMLResponse(content, headers=guarded(content))

    content = (files("localpolicy.serving") / "page.html").read_text(encoding="utf-8")


class Direct:
    """ASGI middleware: endpoints that take one body and return one model are read and written by pydantic alone.

    FastAPI would build Python objects out of the JSON, check them, and on the way back do both again; its routes are
    eight calls deep. At a thousand lists a second that is most of the time. What it says of odd bodies, and the OpenAPI
    document, stay the same. `Limits` stands outside: the body comes whole.
    """

    def __init__(self, app: Any, *, routes: Sequence[Any]) -> None:
        self.app = app
        self.endpoints: dict[str, tuple[Any, Endpoint]] = {  # a model and what answers it
            route.path: (route.dependant.body_params[0].field_info.annotation, route.endpoint)
            for route in routes
            if isinstance(route, APIRoute) and len(route.dependant.body_params) == 1
        }

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer, or hand on."""
        known = self.endpoints.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if known is None or IS_JSON not in scope["headers"]:
            await self.app(scope, receive, send)
            return
        asked, endpoint = known
        message = await receive()
        try:
            question = asked.model_validate_json(message.get("body", b""))
        except ValidationError:
            await self.app(scope, first(message, receive), send)  # which says what is wrong with it
            return
        try:
            answer = await endpoint(question)
        except LocalPolicyError as error:
            await refusal(error)(scope, receive, send)
            return
        body = answer.model_dump_json().encode()
        headers = [IS_JSON, (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class Unforeseen:
    """ASGI middleware: unexpected errors are reported to the operator, not to the client."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Hand on; answer where nothing was answered."""
        begun = False

        async def watched(message: Any) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except Exception as error:
            if scope["type"] != "http" or begun:
                raise
            LOG.error("%s %s: %s: %s", scope["method"], scope["path"], type(error).__name__, error)
            await problem(503, "the service could not answer; its operator can see why.")(scope, receive, send)


def problem(status: int, error: str, field: str | None = None, **headers: str) -> JSONResponse:
    """An error as a body that says what is wrong."""
    return JSONResponse({"error": error, "field": field}, status, headers=headers or None)


def refusal(error: LocalPolicyError) -> JSONResponse:
    """One of our errors as an answer."""
    if isinstance(error, LogError):
        LOG.error("%s", error)
        return problem(503, "the log cannot be written, so nothing is answered.", None, **{"retry-after": "1"})
    return problem(404 if isinstance(error, Unknown) else 422, str(error))


def guarded(page: str) -> dict[str, str]:
    """Headers that let a page run its own script and style, talk to its own server, and nothing else."""
    allowed = {
        f"{kind}-src": " ".join(
            f"'sha256-{b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"
            for inside in re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        )
        for kind, tag in (("script", "script"), ("style", "style"))
    }
    rules = {"default-src": "'none'", "connect-src": "'self'", "img-src": "data:", "base-uri": "'none'",
             "form-action": "'none'", "frame-ancestors": "'none'", **allowed}  # fmt: skip
    return {
        "content-security-policy": "; ".join(f"{name} {value}" for name, value in rules.items()),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }


def _errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        errors = error.errors()
        if any(each["type"] == "json_invalid" for each in errors):
            return problem(400, "the body is not JSON.")
        # What came is not repeated: it may be large, or hold what JSON cannot.
        said = _said(errors)
        more = f" (and {len(said) - SHOWN_PROBLEMS} more)" if len(said) > SHOWN_PROBLEMS else ""
        shown = [f"{field}: {message}" for field, message in list(said.items())[:SHOWN_PROBLEMS]]
        return problem(422, "; ".join(shown) + more, next(iter(said), None))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        return problem(error.status_code, str(error.detail), **(error.headers or {}))

    @app.exception_handler(LocalPolicyError)
    async def ours(request: Request, error: LocalPolicyError) -> JSONResponse:
        return refusal(error)

    app.add_middleware(Unforeseen)


def _said(errors: Sequence[Any]) -> dict[str, str]:
    """One message per field. A value that may be several things fails once for each of them: that is one problem."""
    said: dict[str, str] = {}
    for error in errors:
        path = [part for part in error["loc"] if part != "body"]
        inside = next((number for number, part in enumerate(path) if isinstance(part, int)), None)
        several = inside is not None and len(path) > inside + 1
        field = ".".join(map(str, path[: inside + 1] if several and inside is not None else path)) or "body"
        said.setdefault(field, f"expected {EXPECTED.get(str(path[0]), 'another value')}" if several else error["msg"])
    return said
