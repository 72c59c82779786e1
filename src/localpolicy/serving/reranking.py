"""`POST /v1/rerank`: candidates with somebody's scores -> a list, drawn by a layer and logged before it is answered.

The log keeps what a list's distribution depends on: candidates, scores, probabilities, rules and context, as the
content of its filter. So rotation, erasure and answers work as for every other list, and an audit draws it up again.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    TypeAdapter,
    WrapValidator,
)
from pydantic_core import to_json

from localpolicy.errors import ConfigError, DataError, shown
from localpolicy.ranker.features import as_columns
from localpolicy.ranker.layer import Layer
from localpolicy.ranker.layer import Reranked as Made
from localpolicy.ranker.rules import Rules
from localpolicy.serving.deployment import Deployment
from localpolicy.serving.filters import RERANK, Filter, dumps
from localpolicy.serving.handlers import Service
from localpolicy.serving.layers import layer_deployment
from localpolicy.serving.log import UnknownRequest
from localpolicy.serving.records import Request, is_made_with, new_id, now, time_of
from localpolicy.serving.schema import (
    LARGEST_ID,
    LONGEST_TEXT,
    Body,
    History,
    IdNumber,
    PastEvent,
    Policies,
    PolicyState,
    Real,
    Text,
    Whole,
    at_most,
    narrowed,
)  # fmt: skip
from localpolicy.serving.tracing import span

if TYPE_CHECKING:
    from localpolicy.serving.config import ServeConfig

MOST_COLUMNS = 40  # columns of a candidate, and of a context
MOST_CANDIDATES = 2000  # of one request
MOST_VALUES = 30_000  # values of all candidates of a request: with their names, about as many as the largest body holds
OF_A_DRAW = ("items", "scores", "columns", "context", "rules")  # what all pages of a draw share
MOST_RULES = 1000  # values of one request's rules
Value = Annotated[StrictBool | Real | Text | None, Field()]
# One union, tried from the left: a union within a union takes four times as long. Whole numbers stay whole, for ids.
Cell = Annotated[IdNumber | Real | Text | StrictBool | None, Field(union_mode="left_to_right")]
_OF_A_CANDIDATE = Field(min_length=2, max_length=MOST_COLUMNS)
Candidate = Annotated[dict[Text, Cell], _OF_A_CANDIDATE]


def _few_columns(given: Any) -> Any:
    """Return an object as it is; raise ValueError for too many columns, before any of its cells is looked at."""
    if isinstance(given, dict) and len(given) > MOST_COLUMNS:
        raise ValueError(f"at most {MOST_COLUMNS} columns, got {len(given):,}")
    return given


def candidates_within(most: int) -> Any:
    """Return the type of a request's candidates, at most `most`: objects, or columns of equal length.

    Objects of one form become columns at once, and each column is checked as a whole, which takes half as long as the
    check of every cell by itself. What does not pass goes the long way, which says what is wrong.
    """
    rows = Annotated[list[Candidate], at_most(most)]
    columns = Annotated[dict[Text, Annotated[list[Cell], at_most(most)]], _OF_A_CANDIDATE]
    config = ConfigDict(allow_inf_nan=False)
    by_row, by_column = TypeAdapter(rows, config=config), TypeAdapter(columns, config=config)

    def checked(given: Any, _: Callable[[Any], Any]) -> Any:
        for row in given if isinstance(given, list) else [given]:
            _few_columns(row)
        table = _columns_of(given)
        named = table is not None and 1 < len(table) <= MOST_COLUMNS and _are_cells(table)
        if table and named and all(len(values) <= most and _are_cells(values) for values in table.values()):
            return table
        return (by_column if isinstance(given, dict) else by_row).validate_python(given)

    return Annotated[rows | columns, WrapValidator(checked)]


def _columns_of(given: Any) -> dict[str, Any] | None:
    """Return candidates as columns if they are columns, or objects with the same names; else None."""
    if isinstance(given, dict):
        return given if all(type(values) is list for values in given.values()) else None
    if type(given) is not list or not given or set(map(type, given)) != {dict} or len(set(map(len, given))) > 1:
        return None
    names = tuple(given[0])
    if len(names) < 2:
        return None
    try:
        return dict(zip(names, zip(*map(itemgetter(*names), given), strict=True), strict=True))
    except KeyError:
        return None


def _are_cells(values: Any) -> bool:
    """Whether all values are what `Cell` takes as it is; false also for a few numbers near the ends of their range."""
    kinds: set[Any] = set(map(type, values))
    for kind in kinds:
        own: Any = values if len(kinds) == 1 else [value for value in values if type(value) is kind]
        if kind is float:
            fits = math.isfinite(sum(own))  # one that is not finite makes the sum so
        elif kind is int:
            fits = min(own) >= -LARGEST_ID - 1 and max(own) <= LARGEST_ID
        elif kind is str:
            lengths = set(map(len, own))
            fits = min(lengths) > 0 and max(lengths) <= LONGEST_TEXT and "\0" not in "".join(own)
        else:
            fits = kind in (bool, type(None))
        if not fits:
            return False
    return True


def _few(rules: Any) -> Any:
    """Raise ValueError if rules hold more than MOST_RULES values, at any depth; return the rules."""
    waiting, values = [rules], 0
    while waiting:
        values += 1
        if values > MOST_RULES:
            raise ValueError(f"rules hold more than {MOST_RULES} values")
        inside = waiting.pop()
        waiting += inside.values() if isinstance(inside, dict) else inside if isinstance(inside, list) else ()
    return rules


FewRules = Annotated[dict[Text, Any], AfterValidator(_few)]


class Rerank(Body):
    """Request for a list from candidates that a ranker has scored."""

    candidates: candidates_within(MOST_CANDIDATES) = Field(  # type: ignore[valid-type]
        description="objects with item, score (or probability) and the item's columns; or an object of such columns"
    )
    k: Whole = Field(10, ge=1, description="length of the list, or of a page")
    person: Text | None = Field(None, description="who it is for")
    history: History = Field([], description="what they did, to be logged; most recent last")
    context: Annotated[dict[Text, Value], Field(max_length=MOST_COLUMNS), BeforeValidator(_few_columns)] = Field(
        {}, description="columns of the request"
    )
    rules: FewRules | None = Field(
        None, max_length=8, description="instead of the service's: boost, pin, group, at_most, rest_hours, weights"
    )
    page: Whole = Field(1, ge=1, le=1000, description="2 continues the draw of page 1")
    draw: Text | None = Field(None, description="of page 1, as it was answered; needed from page 2 on")
    defer: StrictBool = Field(False, description="count nothing as shown until /v1/shown says so")


class Reranked(BaseModel):
    """Response body: a list, with the probability of each place given the places above it."""

    request: str
    draw: str = Field(description="send it with page 2")
    items: list[int | str]
    propensities: list[float]
    policy: str = Field(description="version of the layer and its β")
    page: int
    beta: float | None = Field(description="null: the ranker's own law")
    logged: bool


def most_candidates(config: ServeConfig) -> int:
    """Return the largest number of candidates in one request."""
    return min(config.most_ids, MOST_CANDIDATES)


def rerank_within(config: ServeConfig) -> type[Rerank]:
    """Return the model `Rerank` narrowed to this service's limits."""
    return narrowed(
        Rerank,
        candidates=candidates_within(most_candidates(config)),
        history=Annotated[History, at_most(config.longest_history)],
        k=Annotated[Whole, Field(ge=1, le=config.longest_list)],
    )


@dataclass(frozen=True)
class OfRequest(Filter):
    """Inputs of a list's distribution, logged as the content of a filter."""

    about: str = ""  # JSON

    @cached_property
    def text(self) -> str:
        """JSON text of the request's record; `about` is inserted as text, without parsing it."""
        return f'{dumps(super().content())[:-1]},"{RERANK}":{self.about}}}'

    def content(self) -> dict[str, Any]:
        """Return the content as logged."""
        found: dict[str, Any] = json.loads(self.text)
        return found


class LayerService(Service):
    """Request handlers of a service that reranks by a layer, with its log and metrics."""

    deployment: Deployment

    def deployed(self, config: ServeConfig) -> Deployment:
        """The layer to serve, opened from its folder, with a rollout's candidate."""
        if config.floor:
            raise ConfigError("floor: a layer draws by its own law, without a floor. Leave it out (LPI_FLOOR, too).")
        return layer_deployment(config)

    async def rerank(self, asked: Rerank) -> Reranked:
        """Draw a list, log it, then return it."""
        began, moment = time.perf_counter(), now()
        request = new_id(moment, self.log.key)
        draw = self._draw(asked, request)
        route = self.deployment.route(asked.person or draw)
        layer: Any = route.recommender
        rules = layer.rules if asked.rules is None else Rules.parse(asked.rules, prefix="rules.")
        if asked.rules is not None and rules.rest_hours and asked.person is None:
            raise DataError("rules.rest_hours: nobody is named whose items could rest. Send a person, or leave it out.")
        resting = await self.shown_lately(asked.person, rules.rest_hours, time_of(draw) or moment)
        with span("policy", version=layer.version, arm=route.arm, places=asked.k):
            made, content = await asyncio.to_thread(_made, layer, asked, rules, resting, draw)
        if asked.page > 1:
            await self._check_first_page(draw, made, content)
        logged = self._is_logged(request)
        if logged:
            record = Request(
                id=request, time=moment, person=asked.person, history=_pairs(asked.history), items=made.items,
                propensities=made.propensities, policy=made.policy,
                beta=None if math.isinf(layer.beta) else layer.beta, mode="top" if layer.shadow else "drawn", floor=0.0,
                item_filter=content, deferred=asked.defer, share=self.config.share, arm=route.arm,
                stage=route.stage, rollout=route.rollout,
            )  # fmt: skip
            try:
                with span("log"):
                    await self.written(self.log.append(record))
            except BaseException:  # also where this request is cancelled: the client gets no list
                self.log.withdraw(request)
                self.metrics.add("withdrawn")
                raise
        self.metrics.add("lists", mode="top" if layer.shadow else "drawn", policy=made.policy, arm=route.arm)
        self.metrics.took(time.perf_counter() - began)
        if route.shadow is not None:
            self._ask_candidate(_answers(route.shadow, asked, rules, resting, draw), request, route)
        return Reranked(request=request, draw=draw, items=made.items, propensities=made.propensities,
                        policy=made.policy, page=asked.page, beta=None if math.isinf(layer.beta) else layer.beta,
                        logged=logged)  # fmt: skip

    def _draw(self, asked: Rerank, request: str) -> str:
        """Return the id of the request's draw: its own on page 1, later that of page 1."""
        if asked.page == 1:
            if asked.draw is not None:
                raise DataError("draw: page 1 begins a draw of its own. Leave it out, or ask for page 2 of that draw.")
            return request
        if asked.draw is None:
            raise DataError(f"page {asked.page} continues a draw: send the draw that page 1 was answered with.")
        if not is_made_with(self.log.key, asked.draw):
            raise UnknownRequest(f"no draw {asked.draw!r} was made here.")
        return asked.draw

    async def _check_first_page(self, draw: str, made: Made, content: OfRequest) -> None:
        """Raise DataError if page 1 was drawn with other candidates, rules or policy."""
        first = await self.written(self.log.find(draw))
        if first is None:
            return
        logged = await self.written(self.log.filter_of(draw))
        before, mine = (json.loads(text)[RERANK] for text in (logged, content.text))
        if first.items != made.above[: len(first.items)] or any(before[name] != mine[name] for name in OF_A_DRAW):
            raise DataError(f"page {made.page} does not continue page 1 of {draw!r}: candidates, scores, context, "
                            "rules or the policy are others now. Ask for page 1 again.")  # fmt: skip

    def policies(self) -> Policies:
        """Return the layers in service with their shares of traffic."""
        deployment = self.deployment
        share = 0.0 if deployment.rolled_out is None else deployment.assignment.share
        slots: list[tuple[str, Any, float]] = [
            ("current", deployment.current, 1 - share), ("candidate", deployment.candidate, share)
        ]  # fmt: skip
        states = [
            PolicyState(arm=arm, version=slot.loaded.version, objective="layer", items=0, dial=True, share=part,
                        events=list(slot.loaded.about["critics"]))
            for arm, slot, part in slots if slot is not None and slot.loaded is not None
        ]  # fmt: skip
        refused = deployment.current.refused or (None if deployment.candidate is None else deployment.candidate.refused)
        return Policies(policies=states, stage=deployment.assignment.stage, refused=refused, samples=[])


async def _answers(layer: Any, asked: Rerank, rules: Rules, resting: list[Any], draw: str) -> bool:
    """Return true if the candidate can answer the question; it raises otherwise."""
    await asyncio.to_thread(_made, layer, asked, rules, resting, draw)
    return True


def _made(layer: Layer, asked: Rerank, rules: Rules, resting: list[Any], draw: str) -> tuple[Made, OfRequest]:
    """Draw the list; return it with the logged inputs of its distribution."""
    columns = as_columns(asked.candidates)
    _check_one_type(columns["item"], asked.history)
    made = layer.rerank(columns, asked.k, person=asked.person, context=asked.context, rules=rules, resting=resting,
                        page=asked.page, request=draw)  # fmt: skip
    content = _content(layer, asked, made, columns, rules, resting)
    _ = content.digest  # in this thread too
    return made, content


def _check_one_type(items: Sequence[Any], history: Sequence[Any]) -> None:
    """Raise DataError if some ids of a request are whole numbers and others texts."""
    texts = isinstance(items[0], str)
    expected = "texts" if texts else "whole numbers"
    if len(set(map(type, items))) > 1:
        raise DataError(f"candidates: ids are all numbers or all texts; {shown(items[0])} is among the {expected}.")
    for past in history:
        item = past.item if isinstance(past, PastEvent) else past
        if isinstance(item, str) != texts:
            raise DataError(f"history: the candidates' ids are {expected}, got {shown(item)}.")


def _pairs(history: Any) -> list[tuple[Any, str]]:
    return [(past.item, past.event) if isinstance(past, PastEvent) else (past, "") for past in history]


def _content(
    layer: Layer, asked: Rerank, made: Made, columns: dict[str, Any], rules: Rules, resting: list[Any]
) -> OfRequest:
    """Return the logged inputs of a list's distribution: layer, candidates, scores, probabilities, rules, context."""
    record = made.record
    others = {name: list(values) for name, values in columns.items() if name not in ("item", "score", "probability")}
    about = {
        "draw": made.request, "page": made.page, "above": made.above, "items": record["candidates"],
        "scores": record["scores"], "probabilities": made.probabilities, "columns": others,
        "context": asked.context, "rules": rules.model_dump(mode="json", exclude_defaults=True), "resting": resting,
        "would_show": record.get("would_show"), "law": layer.draws,
    }  # fmt: skip
    return OfRequest(about=to_json(about).decode())  # all its numbers are finite; an eighth of the time of `dumps`
