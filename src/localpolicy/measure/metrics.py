"""What is measured: the question that a log can be asked, and metrics of one rank.

value     rewards differ and propensities were logged: what a policy earns, by importance weights
rewards   kinds of action differ in reward, or sales in what they earn, among rows that are no sale; no propensities:
          the reward per answer, alone and with how many answers there would be (see measure.answers)
liking    opinions, or measures of what people did: how well what is ranked high was liked. Never the nDCG of everything
          taken: that refuses a policy for burying what people disliked
nothing   all rewards are equal, or the log is a till's: models can be ranked, and there is no verdict
metric    whatever the log is, the rules name the figure that decides

Ranking metrics are named as in every report: nDCG@20 is the same text in code, command line and page. Items that tie
stand in random order: a metric is its expectation over the places that they share. The middle of these places would not
do: of 40 items that tie, each is among the first 5 once in 8 times, while the middle never is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, field_validator

from localpolicy.data.reward_kind import reward_kind, reward_ranges
from localpolicy.data.rewards import is_rating
from localpolicy.data.store import CONTEXT, NO_ANSWER, Prepared
from localpolicy.errors import ConfigError, nearest
from localpolicy.settings import Settings

Kind = Literal["value", "rewards", "liking", "nothing", "metric"]


class Question(NamedTuple):
    """The kind of estimand that decides between policies on a log, and why."""

    kind: Kind
    why: str
    amount: str = ""  # the log's name of what a sale brought, if rewards are such amounts


EQUAL = Question("nothing", "all events are worth the same, so there is nothing to improve on")
AMOUNTS = "sales differ in {}, and no propensities were logged"
TILL = (
    "a till says what was bought, not what was shown and left, so how much {} another policy would bring is not known"
)


def question_of(data: Prepared, split: str = "test") -> Question:
    """Estimand that the rewards and propensities of a log support for policies judged on `split`."""
    ranges = reward_ranges(data)
    answers = {event: span for event, span in ranges.items() if event != NO_ANSWER}
    if len({value for span in ranges.values() for value in span}) < 2:
        return EQUAL
    propensity = data[split].arrays.get("propensity")
    if propensity is not None and bool(np.isfinite(propensity).any()):
        return Question("value", "rewards differ and propensities were logged")
    kind = reward_kind(data)
    if kind is None:
        return Question("rewards", "kinds of action differ in reward, and no propensities were logged")
    if kind.kind == "amount":
        if {*answers} - {*kind.sales}:
            return Question("rewards", AMOUNTS.format(kind.column), kind.column)
        return Question("nothing", TILL.format(kind.column), kind.column)
    if kind.kind == "opinion":
        return Question("liking", f"rewards are opinions ({kind.why}), and no propensities were logged")
    return Question("liking", f"rewards measure what people did ({kind.why}), and no propensities were logged")


def by_meetings(data: Prepared, split: str = "test") -> bool:
    """Whether the first interaction of a sequence with an item counts, with all its later rewards.

    So it is in logs of actions, such as views and purchases: what follows a view comes whatever is shown.
    """
    return data.kind == "interactions" and question_of(data, split).kind == "rewards"


def paid_events(data: Prepared) -> list[str]:
    """Names of the events shown in tables, best paid first; none if events are ratings."""
    rewards = data.manifest["rewards"]
    names = [name for name in data.events if name not in (NO_ANSWER, CONTEXT) and not is_rating(name)]
    return sorted(names, key=lambda name: -float(rewards.get(name, 0.0)))


Array = np.ndarray


def hit(rank: Array, k: int) -> Array:
    """1[rank <= k]."""
    return np.asarray(rank <= k, dtype=np.float64)


def ndcg(rank: Array, k: int) -> Array:
    """1[rank <= k] / log2(rank + 1)."""
    return np.asarray(hit(rank, k) / np.log2(rank + 1))


def mrr(rank: Array, k: int) -> Array:
    """1[rank <= k] / rank."""
    return np.asarray(hit(rank, k) / rank)


METRICS: dict[str, Callable[[Array, int], Array]] = {"HR": hit, "nDCG": ndcg, "MRR": mrr}
OwnMetric = Callable[[Array, Array], Array]  # ranks and rewards of positions -> a value at each
OWN: dict[str, OwnMetric] = {}  # the user's, by the names they gave


def own_metric(function: OwnMetric) -> str:
    """Register a user's function of ranks and rewards as a metric under its own name; return the name."""
    name = getattr(function, "__name__", "")
    if not name.isidentifier() or name in METRICS:
        raise ConfigError(
            f"a metric of your own needs a name of its own: write it as a function (def …), got {name or function!r}."
        )
    OWN[name] = function
    return name


def _own_values(name: str, rank: Array, tied: Array, reward: Array) -> Array:
    """Values of the user's metric at each position."""
    values = np.asarray(OWN[name](rank, reward), dtype=np.float64)
    if values.shape != rank.shape or not np.isfinite(values).all():
        raise ConfigError(
            f"the metric {name} must give a finite number for each of {len(rank):,} positions, got shape "
            f"{values.shape}."
        )
    return values


def metric(name: str) -> Callable[..., Array]:
    """Function of ranks, ties and rewards for a metric name such as `nDCG@20`; ConfigError if it is unknown.

    Without @k all items count. Rewards matter to the user's own metrics alone, ties to the others.
    """
    if name in OWN:
        return partial(_own_values, name)
    match = re.fullmatch(r"([A-Za-z]+)(?:@([1-9][0-9]*))?", name)
    if not match or match[1] not in METRICS:
        raise ConfigError(f"no metric '{name}'{nearest(name.partition('@')[0], METRICS)}; write it as nDCG@20.")
    function, k = METRICS[match[1]], int(match[2] or np.iinfo(np.int64).max)
    return partial(_expected, function, k)


def _expected(
    function: Callable[[Array, int], Array], k: int, rank: Array, tied: Array | None = None, reward: Array | None = None
) -> Array:
    """(1/(t+1)) Σ_{i=0..t} f(first + i), first = rank - t/2: `tied` (t) others share the places with the item."""
    values = function(rank, k)
    shared = np.zeros(len(rank), bool) if tied is None else np.asarray(tied) > 0
    if tied is None or not shared.any():
        return values
    others = tied[shared]
    first = rank[shared] - others / 2
    deepest = int(min(k, (first + others).max()))
    sums = np.concatenate([[0.0], np.cumsum(function(np.arange(1.0, deepest + 1), k))])
    below, last = (np.minimum(place, deepest).astype(np.int64) for place in (first - 1, first + others))
    values[shared] = (sums[last] - sums[below]) / (others + 1)
    return values


def is_certain(name: str, n_items: int) -> bool:
    """Whether a metric is 1 whatever is ranked first: the HR@k of no more than k items."""
    match = re.fullmatch(r"(?:.*[.])?HR@([0-9]+)", name)
    return match is not None and int(match[1]) >= n_items


AT_K = ("HR@5", "HR@10", "HR@20", "nDCG@5", "nDCG@10", "nDCG@20")  # what papers report: shown wherever a k is named
AT_20 = ("HR@20", "nDCG@20")  # what is tested, and kept of each validation
DEFAULT_METRICS = (*AT_K, "MRR")


class EvaluateConfig(Settings):
    """Settings of an evaluation: split, metrics, positions and lists."""

    split: str = Field("test", description="the split to score: train, validation or test")
    min_history: int = Field(1, ge=0, description="smallest history of a scored position (default: as in training)")
    exclude_seen: bool = Field(False, description="do not recommend items that the sequence already holds")
    lists: int = Field(20, ge=1, description="length K of the lists that coverage@K and popularity@K are measured on")
    metrics: tuple[str, ...] = Field(
        DEFAULT_METRICS, description="ranking metrics, as nDCG@20; from Python also functions of ranks and rewards"
    )
    batch_size: int = Field(256, ge=1, description="sequences scored at once")
    sequences: int | None = Field(
        None, ge=1, description="number of sequences to score, evenly spaced over the split (default: all)"
    )

    @field_validator("metrics", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        """Replace a user's metric function by its name, and register it."""
        listed = [value] if callable(value) or isinstance(value, str) else value
        return tuple(own_metric(each) if callable(each) else each for each in listed)
