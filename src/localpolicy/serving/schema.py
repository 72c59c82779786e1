"""What clients send and get: the OpenAPI document is made from these."""

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

from localpolicy.serving.filters import Filter
from localpolicy.serving.recommender import SMALLEST_BETA

if TYPE_CHECKING:
    from localpolicy.serving.config import ServeConfig

LARGEST_ID = 2**63 - 1
LONGEST_TEXT = 256
WRITABLE = r"^[^\x00]*$"  # a zero byte cannot be stored; JSON has no halves of surrogate pairs


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 3.0 is 3. Neither texts nor true and false are numbers."""
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
    """Unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class PastEvent(Body):
    """One past event of a history."""

    item: Item
    event: Text


def at_most(most: int) -> Any:
    """A limit of a list: the parser stops at the first element past it, and at the first wrong one."""
    return Field(max_length=most, fail_fast=True)


History = list[Item | PastEvent]
Ids = list[Item]


class Recommend(Body):
    """A question for a list."""

    history: History = Field(description="items, or items with their events; most recent last")
    k: Whole = Field(10, ge=1, description="length of the list")
    person: Text | None = Field(None, description="who it is for; the same person keeps the same arm of a rollout")
    candidates: Ids | None = Field(None, description="only these may be shown")
    exclude: Ids = Field([], description="these may not be shown")
    exclude_seen: StrictBool = Field(False, description="nor what the history holds")
    exclude_last: Whole = Field(0, ge=0, description="nor the last so many items of the history; 1: what is seen now")
    beta: Real | None = Field(None, ge=SMALLEST_BETA, description="the dial: μ̂ exp(Q/β) instead of the trained policy")
    sample: StrictBool = Field(True, description="draw the list (default), or give the k best")
    defer: StrictBool = Field(False, description="count nothing as shown until /v1/shown says so")
    names: StrictBool = Field(False, description="also say what the items are called")

    @property
    def item_filter(self) -> Filter:
        """What may be shown."""
        candidates = None if self.candidates is None else tuple(self.candidates)
        return Filter(tuple(self.exclude), candidates, self.exclude_seen, self.exclude_last)


Question = TypeVar("Question", bound=Body)


def recommend_within(config: ServeConfig) -> type[Recommend]:
    """`Recommend` within one service's limits."""
    ids = Annotated[Ids, at_most(config.most_ids)]
    return narrowed(Recommend, candidates=ids | None, exclude=ids, **_lengths(config))


def preview_within(config: ServeConfig) -> type[PreviewRequest]:
    """`PreviewRequest` within one service's limits."""
    return narrowed(PreviewRequest, **_lengths(config))


def _lengths(config: ServeConfig) -> dict[str, Any]:
    return {
        "history": Annotated[History, at_most(config.longest_history)],
        "k": Annotated[Whole, Field(ge=1, le=config.longest_list)],
    }


def narrowed(model: type[Question], **kinds: Any) -> type[Question]:
    """A model with other types of some fields: their descriptions and defaults stay."""
    fields: dict[str, Any] = {}
    for name, kind in kinds.items():
        about = model.model_fields[name]
        fields[name] = kind, Field(about.default, description=about.description)
    return create_model(model.__name__, __base__=model, **fields)


class Listed(BaseModel):
    """A list, and with which probability each place was drawn given those above it."""

    request: str
    items: list[int | str]
    propensities: list[float]
    policy: str = Field(description="version of the policy that made it, or 'fallback'")
    mode: str = Field(description="drawn, top or fallback")
    beta: float | None
    floor: float
    filter: str = Field(description="digest of what was filtered; empty where nothing was")
    arm: str
    unknown: int = Field(description="items of the history that the policy does not know")
    logged: bool


class NamedList(Listed):
    """A list with names, where they were asked for."""

    names: list[str] = Field(description="as the item table says; an item without a name is called by its id")


class ShownReport(Body):
    """What was really seen of a list."""

    request: Text
    places: Whole | None = Field(None, ge=0, le=10_000, description="how many, from the top; default: all")
    time: Moment | None = Field(None, description="milliseconds since 1970, within the list's life; default: now")


class FeedbackReport(Body):
    """What came back."""

    id: Text = Field(description="yours: sent twice, it counts once")
    request: Text
    item: Item
    event: Text
    reward: Real | None = Field(None, ge=-1e9, le=1e9, description="default: what the reward map says of the event")
    time: Moment | None = Field(None, description="milliseconds since 1970, within the list's life; default: now")


class Stored(BaseModel):
    """It is on the disk."""

    stored: bool = Field(description="false where the same was stored before, or the request is not in the log's share")
    late: bool = False


class PreviewRequest(Body):
    """A question for μ̂'s list and the dial's, side by side. Nothing of it is logged."""

    history: History
    beta: Real = Field(ge=SMALLEST_BETA)
    k: Whole = Field(10, ge=1)


class Side(BaseModel):
    """One of two lists: its best items, what they are called, their probabilities, and those under the other policy."""

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
    """A policy that answers, or might."""

    arm: str
    version: str
    objective: str
    items: int
    dial: bool
    share: float
    events: list[str]


class Policies(BaseModel):
    """Who answers."""

    policies: list[PolicyState]
    stage: str
    refused: str | None = Field(description="why the last new export was refused, where one was")
    samples: list[dict[str, Any]] = Field(description="histories to look at")


class Health(BaseModel):
    """ok."""

    status: str


class Readiness(Health):
    """Lists can be made, and where they are written down: on this server's own disk, or in a shared database."""

    log: str = Field(description="'own disk', 'shared database', or that the shared database does not answer")


class Problem(BaseModel):
    """What is wrong, and what to do."""

    error: str
    field: str | None = None
