"""Bodies of requests and responses, from which the OpenAPI document is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    StrictBool,
    StrictStr,
    create_model,
)

from localpolicy.ranker.rules import LONGEST_REST
from localpolicy.serving.filters import Filter
from localpolicy.serving.recommender import SMALLEST_BETA

if TYPE_CHECKING:
    from localpolicy.serving.config import ServeConfig

LARGEST_ID = 2**63 - 1
LONGEST_TEXT = 256
WRITABLE = r"^[^\x00]*$"  # a zero byte cannot be stored; JSON has no halves of surrogate pairs


def _whole(value: Any) -> Any:
    """Convert 3.0 to 3, since JSON has one kind of number; raise ValueError for a text, true or false."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("expected a whole number")
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Lists hold thousands of ids and texts, which are checked without Python code: 21,000 texts take 4 ms instead of 25.
Whole = Annotated[int, BeforeValidator(_whole)]
Real = Annotated[float, Strict()]  # whole ones too; neither texts nor true and false
Text = Annotated[StrictStr, Field(min_length=1, max_length=LONGEST_TEXT, pattern=WRITABLE)]
_IN_64_BITS: Any = Field(ge=-LARGEST_ID - 1, le=LARGEST_ID)
IdNumber = Annotated[int, Strict(), _IN_64_BITS]
Item = Annotated[IdNumber | Text | Annotated[Whole, _IN_64_BITS], Field(union_mode="left_to_right")]
Moment = Annotated[Whole, Field(ge=0, le=253_402_300_799_999)]  # milliseconds, to the year 9999


class Body(BaseModel):
    """Body of a request; an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class PastEvent(Body):
    """One past event of a history."""

    item: Item
    event: Text


def at_most(most: int) -> Any:
    """Return a length limit of a list; the parser stops at the first element past it, or the first wrong one."""
    return Field(max_length=most, fail_fast=True)


History = list[Item | PastEvent]
Ids = list[Item]


class Recommend(Body):
    """Request for a list."""

    history: History = Field(description="items, or items with their events; most recent last")
    k: Whole = Field(10, ge=1, description="length of the list")
    person: Text | None = Field(None, description="who it is for; the same person keeps the same arm of a rollout")
    candidates: Ids | None = Field(None, description="only these may be shown")
    exclude: Ids = Field([], description="these may not be shown")
    exclude_seen: StrictBool = Field(False, description="nor what the history holds")
    exclude_last: Whole = Field(0, ge=0, description="nor the last n items of the history; 1: what is seen now")
    rest_hours: Real = Field(0, ge=0, le=LONGEST_REST, description="nor what this person was shown in the last n hours")
    beta: Real | None = Field(None, ge=SMALLEST_BETA, description="the dial: μ̂ exp(Q/β) instead of the trained policy")
    sample: StrictBool = Field(True, description="draw the list (default), or give the k best")
    defer: StrictBool = Field(False, description="count nothing as shown until /v1/shown says so")
    names: StrictBool = Field(False, description="also say what the items are called")

    @property
    def item_filter(self) -> Filter:
        """Filter of the items that may be shown."""
        candidates = None if self.candidates is None else tuple(self.candidates)
        return Filter(tuple(self.exclude), candidates, self.exclude_seen, self.exclude_last)


Question = TypeVar("Question", bound=Body)


def recommend_within(config: ServeConfig) -> type[Recommend]:
    """Return the model `Recommend` narrowed to this service's limits."""
    ids = Annotated[Ids, at_most(config.most_ids)]
    return narrowed(Recommend, candidates=ids | None, exclude=ids, **_lengths(config))


def preview_within(config: ServeConfig) -> type[PreviewRequest]:
    """Return the model `PreviewRequest` narrowed to this service's limits."""
    return narrowed(PreviewRequest, **_lengths(config))


def _lengths(config: ServeConfig) -> dict[str, Any]:
    return {
        "history": Annotated[History, at_most(config.longest_history)],
        "k": Annotated[Whole, Field(ge=1, le=config.longest_list)],
    }


def narrowed(model: type[Question], **kinds: Any) -> type[Question]:
    """Return a model with other types of some fields; their descriptions and defaults stay."""
    fields: dict[str, Any] = {}
    for name, kind in kinds.items():
        about = model.model_fields[name]
        fields[name] = kind, Field(about.default, description=about.description)
    return create_model(model.__name__, __base__=model, **fields)


class Listed(BaseModel):
    """A list, with the probability of each place given the places above it."""

    request: str
    items: list[int | str]
    propensities: list[float]
    policy: str = Field(description="version of the policy that made it, or 'fallback'")
    mode: str = Field(description="drawn, top or fallback")
    beta: float | None
    floor: float
    filter: str = Field(description="digest of the filter; empty if nothing was filtered")
    arm: str
    unknown: int = Field(description="items of the history that the policy does not know")
    logged: bool


class NamedList(Listed):
    """A list with the items' names, if they were requested."""

    names: list[str] = Field(description="as the item table says; an item without a name is called by its id")


class ShownReport(Body):
    """Report of how much of a list was really seen."""

    request: Text
    places: Whole | None = Field(None, ge=0, le=10_000, description="how many, from the top; default: all")
    time: Moment | None = Field(None, description="milliseconds since 1970, within the list's life; default: now")


class FeedbackReport(Body):
    """Report of the user's answer to one shown item."""

    id: Text = Field(description="yours: sent twice, it counts once")
    request: Text
    item: Item
    event: Text
    reward: Real | None = Field(None, ge=-1e9, le=1e9, description="default: the reward map's for the event")
    time: Moment | None = Field(None, description="milliseconds since 1970, within the list's life; default: now")


class Stored(BaseModel):
    """Acknowledgement of a report: stored or a duplicate, in time or late."""

    stored: bool = Field(description="false if it was stored before, or the request is not in the logged share")
    late: bool = False


class PreviewRequest(Body):
    """Request for μ̂'s list and the dial's, side by side. Neither is logged."""

    history: History
    beta: Real = Field(ge=SMALLEST_BETA)
    k: Whole = Field(10, ge=1)


class Side(BaseModel):
    """One side of a preview: the best items, their names and probabilities, and those under the other policy."""

    items: list[int | str]
    names: list[str]
    probabilities: list[float]
    other: list[float]


class Preview(BaseModel):
    """Both lists, and how far apart the policies are in this context, in nats."""

    logging: Side
    policy: Side
    beta: float
    js: float
    kl: float


class PolicyState(BaseModel):
    """A policy in service: the current one or a candidate, with its share of traffic."""

    arm: str
    version: str
    objective: str
    items: int
    dial: bool
    share: float
    events: list[str]


class Policies(BaseModel):
    """The policies in service, the rollout's stage, and the last rejected export."""

    policies: list[PolicyState]
    stage: str
    refused: str | None = Field(description="why the last new export was refused, if one was")
    samples: list[dict[str, Any]] = Field(description="histories to look at")


class Health(BaseModel):
    """Liveness: the status is `ok`."""

    status: str


class Readiness(Health):
    """Readiness to make lists, and where they are logged: on this server's disk, or in a shared database."""

    log: str = Field(description="'own disk', 'shared database', or that the shared database does not answer")


class Problem(BaseModel):
    """Body of an error: what is wrong, what to do, and in which field."""

    error: str
    field: str | None = None
