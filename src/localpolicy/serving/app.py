"""The HTTP service: its endpoints, its middleware, and every error as a JSON body."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import os
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from localpolicy.errors import LocalPolicyError
from localpolicy.ranker.layer import FILE as LAYER
from localpolicy.serving.config import ServeConfig, is_loopback
from localpolicy.serving.endpoints import FEW, PROBLEMS, UNKNOWN, Endpoints, Posts, problem, refusal
from localpolicy.serving.handlers import Service
from localpolicy.serving.limits import Limits, PatientProtocol
from localpolicy.serving.metrics import AccessLog
from localpolicy.serving.reranking import (
    MOST_COLUMNS,
    MOST_VALUES,
    LayerService,
    Rerank,
    Reranked,
    most_candidates,
    rerank_within,
)  # fmt: skip
from localpolicy.serving.schema import (
    FeedbackReport,
    Health,
    Listed,
    NamedList,
    Policies,
    Preview,
    PreviewRequest,
    Readiness,
    Recommend,
    ShownReport,
    Stored,
    preview_within,
    recommend_within,
)  # fmt: skip
from localpolicy.serving.tracing import send_spans
from localpolicy.version import __version__

LOG = logging.getLogger(__name__)
SETTINGS, TOKEN = "LPI_SERVE", "LPI_TOKEN"  # environment variables: settings and token for the workers


def from_environment() -> FastAPI:
    """Make the application of one worker from the environment variables."""
    config = ServeConfig.model_validate_json(os.environ[SETTINGS])
    PatientProtocol.header_seconds = config.body_seconds
    PatientProtocol.most_connections, PatientProtocol.proxies = config.connections, config.proxies
    send_spans()
    return make_app(config, token=os.environ.get(TOKEN) or None)


def make_app(config: ServeConfig, *, token: str | None = None) -> FastAPI:
    """Make the application; raise if the export or the log cannot be opened."""
    layered = (config.export / LAYER).exists()
    service = LayerService(config) if layered else Service(config)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        app.openapi()  # made once, and kept: 30 ms without an answer
        watching = asyncio.create_task(service.watch())
        gc.freeze()  # a full collection would scan all loaded objects: 40 ms without an answer
        yield
        gc.unfreeze()
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        service.close()

    app = FastAPI(
        title="localpolicy", version=__version__, lifespan=life, docs_url=None, redoc_url=None,
        description="Lists with exact propensities, and a log of the answers to them.",
    )  # fmt: skip
    app.state.service = service
    endpoints = Endpoints(app)
    if isinstance(service, LayerService):
        _rerank(endpoints, service)
    else:
        _lists(endpoints, service)
        _dial(app)
    _reports(endpoints, service)
    _gets(app, service)
    app.add_middleware(Posts, table=endpoints.table)  # the innermost
    app.add_middleware(
        Limits, token=token, queue=config.queue, client_queue=config.most_of_a_client,
        largest_body=config.largest_body, body_seconds=config.body_seconds, waiting_bytes=config.waiting_bytes,
        hosts=config.hosts or (() if is_loopback(config.host) else None), origins=config.origins,
        open_metrics=config.open_metrics,
    )  # fmt: skip
    _errors(app)
    paths = frozenset(path for route in app.routes if (path := getattr(route, "path", None)) is not None)
    app.add_middleware(  # the outermost
        AccessLog, metrics=service.metrics, paths=paths, posts=endpoints.table, write=config.access_log
    )
    return app


def _rerank(endpoints: Endpoints, service: LayerService) -> None:
    config = service.config
    most = FEW + 2 * config.longest_history + min(MOST_VALUES, MOST_COLUMNS * most_candidates(config))

    @endpoints.post("/v1/rerank", rerank_within(config), names=most, commas=most, refuses={**PROBLEMS, **UNKNOWN})
    async def rerank(asked: Rerank) -> Reranked:
        """A list of the candidates, drawn with known probabilities and logged before it is answered."""
        return await service.rerank(asked)


def _lists(endpoints: Endpoints, service: Service) -> None:
    config, post = service.config, endpoints.post
    names = FEW + 2 * config.longest_history  # where all of a history are events
    commas = names + 2 * config.most_ids

    @post("/v1/recommend", recommend_within(config), names=names, commas=commas)
    async def recommend(asked: Recommend) -> Listed | NamedList:
        """A list for a history, drawn with known probabilities and logged before it is answered."""
        return await service.recommend(asked)

    @post("/v1/preview", preview_within(config), names=names, commas=commas)
    async def preview(asked: PreviewRequest) -> Preview:
        """The list of the logging policy's estimate and the dial's, side by side; not logged."""
        return await service.preview(asked)


def _reports(endpoints: Endpoints, service: Service) -> None:
    post = endpoints.post

    @post("/v1/shown", ShownReport, refuses={**PROBLEMS, **UNKNOWN})
    async def shown(asked: ShownReport) -> Stored:
        """Report how much of a list was really seen, and when."""
        return await service.shown(asked)

    @post("/v1/feedback", FeedbackReport, refuses={**PROBLEMS, **UNKNOWN})
    async def feedback(asked: FeedbackReport) -> Stored:
        """Report an answer to one item; the same id counts once, late answers are kept and marked."""
        return await service.feedback(asked)


def _gets(app: FastAPI, service: Service) -> None:
    open_problems: dict[int | str, dict[str, Any]] = {status: PROBLEMS[status] for status in (401, 408, 413, 421, 429)}

    @app.get("/v1/policies", responses=open_problems)
    async def policies() -> Policies:
        """List the policies in service and the share of traffic of each."""
        return service.policies()

    @app.get("/healthz", responses=open_problems)
    async def healthz() -> Health:
        """Answer as long as the process lives."""
        return Health(status="ok")

    @app.get("/readyz", responses={**open_problems, 503: PROBLEMS[503]})
    async def readyz() -> Readiness:
        """Answer if a policy is loaded, and the log's disk takes a record or the log is a shared database."""
        return await service.ready()

    @app.get("/metrics", response_class=PlainTextResponse, responses=open_problems)
    async def metrics() -> str:
        """Counters of all workers, for Prometheus."""
        return await service.numbers()


def _dial(app: FastAPI) -> None:
    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> HTMLResponse:
        """Serve the page with the dial."""
        return HTMLResponse(content, headers=guarded(content))

    content = (files("localpolicy.serving") / "page.html").read_text(encoding="utf-8")


class Unforeseen:
    """ASGI middleware: unexpected errors are reported to the operator, not to the client."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Call the application; answer with 503 if it raised before it answered."""
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
    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        return problem(error.status_code, str(error.detail), **(error.headers or {}))

    @app.exception_handler(LocalPolicyError)
    async def ours(request: Request, error: LocalPolicyError) -> JSONResponse:
        return refusal(error)

    app.add_middleware(Unforeseen)
