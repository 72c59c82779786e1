"""Join of logged lists, reports and answers into events: one row per shown item, with its reward."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pydantic import Field

from localpolicy.data.rewards import DEFAULT, RewardMap
from localpolicy.errors import DataError
from localpolicy.limits import CONTEXT, NO_ANSWER
from localpolicy.serving.database import Database
from localpolicy.serving.filters import Filter, dumps
from localpolicy.serving.log import SEEN
from localpolicy.serving.records import time_of
from localpolicy.settings import Settings

MOST_CAUSES = 5  # reasons for answers set aside that a message lists
COLUMNS = (
    "sequence_id", "item_id", "event", "timestamp", "reward", "propensity", "policy", "request", "place", "filter",
    "filter_content", "beta", "mode", "floor", "share", "arm", "stage", "context_id", "past_event",
)  # fmt: skip
QUERY = f"""SELECT r.id, {SEEN}, r.person, r.history, r.items, r.propensities, r.policy, r.beta, r.mode, r.floor,
    r.filter, f.content, r.share, r.arm, r.stage, s.places
FROM requests r LEFT JOIN shown s ON s.request = r.id LEFT JOIN filters f ON f.digest = r.filter
WHERE r.rotation = ? ORDER BY 2, r.id"""
ANSWERS = f"""SELECT f.id, f.request, f.item, f.event, f.reward, f.time, COALESCE(f.arrived, f.time), {SEEN}
FROM feedback f JOIN requests r ON r.id = f.request AND r.rotation = f.rotation
LEFT JOIN shown s ON s.request = r.id
WHERE f.rotation = ? ORDER BY 8, r.id, f.time, f.id"""  # in the order of their lists
STRANGERS = """SELECT f.id, f.request, w.request IS NOT NULL
FROM feedback f LEFT JOIN requests r ON r.id = f.request AND r.rotation = f.rotation
LEFT JOIN withdrawn w ON w.request = f.request
WHERE f.rotation = ? AND r.id IS NULL"""
EARLIER = "SELECT COALESCE(MAX(upto), 0) FROM rotations WHERE number < ?"
USED, LATE, UNSEEN, SET_ASIDE, WITHDRAWN, UNKNOWN = FATES = (
    "used", "late", "unseen", "set aside", "withdrawn", "unknown"
)  # fmt: skip

MOST_PLACES = 32_000  # rows of one history that a place's number can count
Row = tuple[Any, ...]
Counted = dict[Any, list[tuple[str, float]]]  # events and rewards by item
Past = list[tuple[Any, str]]  # items, and the events on them


class JoinConfig(Settings):
    """Settings of the join: how answers become rewards, and until when they count."""

    window: float = Field(
        3600.0, gt=0, description="seconds after a list within which an answer counts, by the server's clock"
    )
    rewards: str = Field(DEFAULT, description="the reward of each event, where an answer states none")
    default: float = Field(0.0, description="reward of a shown item without feedback")
    aggregation: Literal["max", "sum", "first", "last"] = Field(
        "max", description="how to combine several events on one item"
    )
    smallest_reward: float | None = Field(None, description="set aside answers with a smaller reward")
    largest_reward: float | None = Field(None, description="set aside answers with a larger reward")

    @property
    def window_ms(self) -> int:
        """`window` in milliseconds."""
        return round(self.window * 1000)


class ResponseReward:
    """Reward of an answer: the stated one, else the reward map's for its event.

    Answers without a known reward are set aside and counted, so one client's odd event stops no rotation.
    """

    def __init__(self, config: JoinConfig) -> None:
        self._map = RewardMap.parse(config.rewards)
        self._least, self._most = config.smallest_reward, config.largest_reward
        self._known: dict[str, float | None] = {}
        self.set_aside: Counter[str] = Counter()  # by reason

    def of(self, event: str, stated: float | None) -> float | None:
        """Return the reward of an answer; None if the answer is set aside."""
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

    def text(self) -> str:
        """Return a sentence with the number of answers set aside and the reasons."""
        causes = self.set_aside.most_common(MOST_CAUSES)
        more = f" and {len(self.set_aside) - MOST_CAUSES} more" if len(self.set_aside) > MOST_CAUSES else ""
        listed = ", ".join(f"{count:,} × {why}" for why, count in causes)
        return f"{self.set_aside.total():,} answers were set aside: {listed}{more}"


class Answer(NamedTuple):
    """One answer to one list."""

    id: str
    item: Any
    event: str
    stated: float | None
    time: int  # as the client says
    arrived: int  # by the server's clock


@dataclass
class Joined:
    """Events of the lists and answers that a rotation has claimed, and the outcome of each answer.

    An answer is **used** if it arrived within the window of a list that was seen, by the server's clock. `grace`
    milliseconds later it may arrive if it happened within the window, as the client says; with `late` it always counts.
    Else it is **late** (also if its list has left the log before), **unseen** (of a place or a list that nobody
    saw), **set aside** (no known reward), or its list is **withdrawn**, or **unknown**.
    """

    database: Database
    response_reward: ResponseReward
    config: JoinConfig
    rotation: int
    grace: int = 0
    late: bool = False
    fates: dict[str, str] = field(default_factory=dict)  # of answers by id, once `events` has ended; others are used

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of events, each list after the history that was sent with its request.

        If that history is what a person's rows hold already, and perhaps more, only what is more becomes rows before
        the list: `context`, which no policy chose. Else all of it does, under a `context_id` of its own: a client may
        send what was bought elsewhere, only what was clicked, or only the latest. A file needs no other file: in each
        of them a person's first list brings its whole history.
        """
        self._strangers()
        before: dict[str, tuple[str, Past]] = {}  # each person's history so far, and its name
        lists = self.database.stream(QUERY, (self.rotation,))
        for row, answers in with_answers(lists, self.database.stream(ANSWERS, (self.rotation,))):
            (request, seen, person, history, items, propensities, policy, beta, mode, floor, item_filter, content,
             share, arm, stage, places) = row  # fmt: skip
            mine = [Answer(id, json.loads(item), *rest) for id, _, item, *rest, _ in answers]
            if seen is None:
                self.fates |= {answer.id: UNSEEN for answer in mine}
                continue  # built is not seen
            items, policy = json.loads(items), sampling_id(policy, beta, floor)
            items = items if places is None else items[:places]
            counted = self._counted(mine, items, seen)
            sequence, past = (
                request if person is None else person,
                [(item, event) for item, event in json.loads(history)],
            )
            if content is not None:
                item_filter, content = _filter(content, past)
            name, rows = before.get(sequence, ("", []))
            if not name or rows != past[: len(rows)]:
                name, rows = request, []
            new = past[len(rows) :][-MOST_PLACES:]
            for number, (item, event) in enumerate(new):
                yield _context(sequence, item, event, seen, policy, request, number - len(new), name)
            became: Past = []
            for position, (item, propensity) in enumerate(zip(items, json.loads(propensities), strict=False)):
                event, reward = aggregate(counted.get(item, ()), self.config)
                became.append((item, event))
                once = content if position == 0 else None
                values = (sequence, item, event, seen, reward, propensity, policy, request, position, item_filter,
                          once, beta, mode, floor, share, arm, stage, name, None)  # fmt: skip
                yield dict(zip(COLUMNS, values, strict=True))
            if person is not None:
                before[person] = name, [*past, *became]

    def _counted(
        self, answers: Sequence[Answer], items: Sequence[Any], seen: int
    ) -> dict[Any, list[tuple[str, float]]]:
        """Return events and rewards of the answers that count, by item; record the fates of the others."""
        counted: dict[Any, list[tuple[str, float]]] = {}
        ends = seen + self.config.window_ms
        for answer in answers:
            soon = answer.arrived <= ends or (answer.arrived <= ends + self.grace and answer.time <= ends)
            if answer.item not in items:
                self.fates[answer.id] = UNSEEN
            elif not (soon or self.late):
                self.fates[answer.id] = LATE
            elif (reward := self.response_reward.of(answer.event, answer.stated)) is None:
                self.fates[answer.id] = SET_ASIDE
            else:
                counted.setdefault(answer.item, []).append((answer.event, reward))
        return counted

    def _strangers(self) -> None:
        """Record the fate of each answer whose list is not in the log: withdrawn, late or unknown."""
        (upto,) = self.database.rows(EARLIER, (self.rotation,))[0]
        for id, request, withdrawn in self.database.stream(STRANGERS, (self.rotation,)):
            made = time_of(request)
            gone = made is not None and made < upto  # an earlier rotation has moved it
            self.fates[id] = WITHDRAWN if withdrawn else LATE if gone else UNKNOWN


def with_answers(lists: Iterable[Row], answers: Iterator[Row]) -> Iterator[tuple[Row, list[Row]]]:
    """Yield each list with its answers, both as rows of queries in the same order of lists.

    A list's id is its row's first value, and an answer's second.
    """
    waiting = next(answers, None)
    for row in lists:
        mine = []
        while waiting is not None and waiting[1] == row[0]:
            mine.append(waiting)
            waiting = next(answers, None)
        yield row, mine


def sampling_id(policy: str, beta: float | None, floor: float) -> str:
    """Return the identifier of the serving distribution: policy, β and exploration floor."""
    return policy + ("" if beta is None else f" at beta {beta:g}") + (f" with floor {floor:g}" if floor else "")


def _filter(content: str, history: Sequence[tuple[Any, str]]) -> tuple[str, str]:
    """Return name and content of a list's filter resolved for its history: the items it really excluded, each once."""
    resolved = Filter.of(json.loads(content)).resolved([item for item, _ in history])
    return resolved.digest, dumps(resolved.content()) if resolved.digest else ""


def aggregate(answers: Iterable[tuple[str, float]], config: JoinConfig) -> tuple[str, float]:
    """Return the event and the reward of one shown item, from its answers in order of time."""
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
