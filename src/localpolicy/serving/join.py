"""From logged lists, reports and answers to events: one row per shown item, with the reward that came back in time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from pydantic import Field

from localpolicy.data.rewards import DEFAULT, RewardMap
from localpolicy.errors import DataError
from localpolicy.limits import CONTEXT, NO_ANSWER
from localpolicy.serving.database import Database
from localpolicy.serving.filters import Filter
from localpolicy.serving.log import dumps
from localpolicy.settings import Settings

MOST_CAUSES = 5  # why answers were set aside, in a message
COLUMNS = (
    "sequence_id", "item_id", "event", "timestamp", "reward", "propensity", "policy", "request", "place", "filter",
    "filter_content", "beta", "mode", "floor", "share", "arm", "stage", "context_id", "past_event",
)  # fmt: skip
QUERY = """SELECT r.id, r.time, r.person, r.history, r.items, r.propensities, r.policy, r.beta, r.mode, r.floor,
    r.filter, f.content, r.deferred, r.share, r.arm, r.stage, s.places, s.time
FROM requests r LEFT JOIN shown s ON s.request = r.id LEFT JOIN filters f ON f.digest = r.filter
WHERE r.rotation = ? ORDER BY COALESCE(s.time, r.time), r.id"""
ANSWERS = """SELECT f.request, f.item, f.event, f.reward, f.time FROM feedback f JOIN requests r ON r.id = f.request
WHERE f.rotation = ? ORDER BY f.time, f.id"""


MOST_PLACES = 32_000  # rows of one history that a place's number can count
Past = list[tuple[Any, str]]  # items, and what came of them


class JoinConfig(Settings):
    """How answers become rewards."""

    window: float = Field(3600.0, gt=0, description="seconds after a list within which an answer counts")
    rewards: str = Field(DEFAULT, description="the reward of each event, where an answer states none")
    default: float = Field(0.0, description="reward of a shown item without feedback")
    aggregation: Literal["max", "sum", "first", "last"] = Field(
        "max", description="how to combine several events on one item"
    )
    smallest_reward: float | None = Field(None, description="set aside answers with a smaller reward")
    largest_reward: float | None = Field(None, description="set aside answers with a larger reward")

    @property
    def window_ms(self) -> int:
        """In milliseconds."""
        return round(self.window * 1000)


class Worth:
    """What answers are worth: what they state, else what the reward map says of their event.

    Answers without a known reward are set aside and counted, so one client's odd event stops no rotation.
    """

    def __init__(self, config: JoinConfig) -> None:
        self._map = RewardMap.parse(config.rewards)
        self._least, self._most = config.smallest_reward, config.largest_reward
        self._known: dict[str, float | None] = {}
        self.set_aside: Counter[str] = Counter()  # by why

    def of(self, event: str, stated: float | None) -> float | None:
        """The reward of an answer; None where it is set aside."""
        if stated is not None:
            low = self._least is not None and stated < self._least
            if low or (self._most is not None and stated > self._most):
                self.set_aside[f"reward below {self._least:g}" if low else f"reward above {self._most:g}"] += 1
                return None
            return stated
        if event not in self._known:
            try:
                self._known[event] = self._map.of(event)
            except DataError:
                self._known[event] = None
        if self._known[event] is None:
            self.set_aside[f"event {event!r} (not in the reward map)"] += 1
        return self._known[event]

    def said(self) -> str:
        """How many were set aside, and why."""
        causes = self.set_aside.most_common(MOST_CAUSES)
        more = f" and {len(self.set_aside) - MOST_CAUSES} more" if len(self.set_aside) > MOST_CAUSES else ""
        listed = ", ".join(f"{count:,} × {why}" for why, count in causes)
        return f"{self.set_aside.total():,} answers were set aside: {listed}{more}"


def joined(database: Database, worth: Worth, config: JoinConfig, *, rotation: int) -> Iterator[dict[str, Any]]:
    """Events of the requests and answers that a rotation has claimed, each list after the very history it was sent.

    Where that history is what a person's rows hold already, and perhaps more, only what is more becomes rows before the
    list: `context`, which no policy chose. Else all of it does, under a `context_id` of its own: a client may send what
    was bought elsewhere, only what was clicked, or only the latest. A file needs no other file: in each of them a
    person's first list brings its whole history.
    """
    answers: dict[str, list[tuple[Any, str, float, int]]] = {}
    for request, item, event, stated, time in database.stream(ANSWERS, (rotation,)):
        if (reward := worth.of(event, stated)) is not None:
            answers.setdefault(request, []).append((json.loads(item), event, reward, time))
    before: dict[str, tuple[str, Past]] = {}  # each person's history so far, and its name
    for row in database.rows(QUERY, (rotation,)):
        (request, made, person, history, items, propensities, policy, beta, mode, floor, item_filter, content, deferred,
         share, arm, stage, places, seen) = row  # fmt: skip
        if deferred and places is None:
            continue  # built is not seen
        items, policy = json.loads(items), law(policy, beta, floor)
        shown = len(items) if places is None else places
        at = made if seen is None else seen
        sequence, past = request if person is None else person, [(item, event) for item, event in json.loads(history)]
        if content is not None:
            item_filter, content = _filter(content, past)
        name, rows = before.get(sequence, ("", []))
        if not name or rows != past[: len(rows)]:
            name, rows = request, []
        new = past[len(rows) :][-MOST_PLACES:]
        for number, (item, event) in enumerate(new):
            yield _context(sequence, item, event, at, policy, request, number - len(new), name)
        mine = [answer for answer in answers.get(request, ()) if answer[3] <= at + config.window_ms]
        became: Past = []
        for position, (item, propensity) in enumerate(zip(items[:shown], json.loads(propensities), strict=False)):
            event, reward = aggregate(((e, r) for i, e, r, _ in mine if i == item), config)
            became.append((item, event))
            values = (sequence, item, event, at, reward, propensity, policy, request, position, item_filter,
                      content if position == 0 else None, beta, mode, floor, share, arm, stage, name, None)  # fmt: skip
            yield dict(zip(COLUMNS, values, strict=True))
        if person is not None:
            before[person] = name, [*past, *became]


def law(policy: str, beta: float | None, floor: float) -> str:
    """The name of what drew a list: equal names, equal probabilities in equal contexts."""
    return policy + ("" if beta is None else f" at beta {beta:g}") + (f" with floor {floor:g}" if floor else "")


def _filter(content: str, history: Sequence[tuple[Any, str]]) -> tuple[str, str]:
    """Name and content of a list's filter for its own history: what it really left out. Once in a list is enough."""
    resolved = Filter.of(json.loads(content)).resolved([item for item, _ in history])
    return resolved.digest, dumps(resolved.content()) if resolved.digest else ""


def aggregate(answers: Iterable[tuple[str, float]], config: JoinConfig) -> tuple[str, float]:
    """The event and the reward of one shown item, from its answers in order of time."""
    rewarded: Sequence[tuple[str, float]] = list(answers)
    if not rewarded:
        return NO_ANSWER, config.default
    best = max(rewarded, key=lambda answer: answer[1])
    if config.aggregation == "sum":
        return best[0], sum(reward for _, reward in rewarded)
    return {"max": best, "first": rewarded[0], "last": rewarded[-1]}[config.aggregation]


def _context(
    sequence: str, item: Any, event: str, at: int, policy: str, request: str, place: int, name: str
) -> dict[str, Any]:
    blank: dict[str, Any] = dict.fromkeys(COLUMNS)
    return {**blank, "sequence_id": sequence, "item_id": item, "event": CONTEXT, "timestamp": at, "reward": 0.0,
            "policy": policy, "request": request, "place": place, "context_id": name, "past_event": event}  # fmt: skip
