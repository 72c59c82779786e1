"""A ledger of what a service acknowledged over HTTP, with its own join: it knows none of the product's code.

`service_week.py` compares it with what the service rotates.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

HOUR = 3_600_000  # milliseconds
WINDOW, LAG = HOUR, 30_000  # until when an answer counts; the most that a reply may take
REWARDS = {"click": 0.2, "purchase": 1.0}
Place = tuple[str, int]  # a request, and a place of its list


class Exchange(NamedTuple):
    """A call, the moved clock's time when it was sent, and the reply; status 0: none came."""

    verb: str
    body: dict[str, Any]
    sent: int
    status: int
    reply: dict[str, Any]

    @property
    def reward(self) -> float | None:
        """Stated reward of an answer, or else that of its event."""
        reward: float | None = self.body.get("reward", REWARDS.get(self.body["event"]))
        return reward


class Row(NamedTuple):
    """One place of a list with its answers, as it is rotated."""

    person: str
    item: int
    event: str
    reward: float
    propensity: float
    mode: str
    floor: float
    history: list[tuple[int, str]]
    seen: int


@dataclass
class Impression:
    """A list that was given, and what its person saw of it."""

    day: int
    given: Exchange
    seen: int | None
    places: int | None = None

    @property
    def visible(self) -> list[int]:
        items: list[int] = self.given.reply["items"]
        return [] if self.seen is None else items[: self.places]

    def fate(self, answer: Exchange) -> str:
        """Return what becomes of an answer that arrives before the list is rotated."""
        if self.seen is None or answer.body["item"] not in self.visible:
            return "unseen"
        if answer.sent > self.seen + WINDOW:
            return "late"
        return "set aside" if answer.reward is None else "used"


def aggregate(answers: list[Exchange], how: str) -> tuple[str, float]:
    """Return the event and the reward of one place."""
    if not answers:
        return "none", 0.0
    answers = sorted(answers, key=lambda answer: (answer.body.get("time", answer.sent), answer.body["id"]))
    rewards = [answer.reward or 0.0 for answer in answers]
    chosen = {"first": 0, "last": -1}.get(how, rewards.index(max(rewards)))
    return answers[chosen].body["event"], round(sum(rewards) if how == "sum" else rewards[chosen], 9)


@dataclass
class Ledger:
    """Everything that was acknowledged, and the ledger's own join of it."""

    lists: dict[str, Impression] = field(default_factory=dict)
    answers: dict[tuple[int, str], Exchange] = field(default_factory=dict)  # an id counts once a day
    unclear: set[tuple[int, str]] = field(default_factory=set)  # ids and persons (day -1) that may be stored, or not
    replies: Counter[str] = field(default_factory=Counter)

    def enter(self, day: int, exchange: Exchange) -> None:
        """Enter a call by its reply; a doubled answer counts once."""
        verb, body, sent, status, reply = exchange
        self.replies[f"{verb} {status}"] += 1
        if verb == "recommend" and status == 200:
            self.lists[reply["request"]] = Impression(day, exchange, None if body.get("defer") else sent)
        elif verb == "recommend" and not status:
            self.unclear.add((-1, body["person"]))
        elif verb == "shown" and status == 200:
            one = self.lists[body["request"]]
            one.places = max(one.places or 0, body.get("places", len(one.given.reply["items"])))
            one.seen = sent if one.seen is None else min(one.seen, sent)
        elif verb == "feedback":
            key = (day, body["id"])
            if status in (0, 503):
                self.unclear.add(key)
            elif status == 200 and (reply["stored"] or (key in self.unclear and key not in self.answers)):
                self.answers[key] = exchange

    def of(self, day: int) -> dict[str, Impression]:
        """Return the lists of a day, all of which its night rotates."""
        return {request: one for request, one in self.lists.items() if one.day == day}

    def join(self, day: int, how: str) -> tuple[dict[Place, Row], dict[str, str]]:
        """Return the day's rows, and the fates of its answers."""
        answers: dict[str, list[Exchange]] = defaultdict(list)
        for (arrived, _), answer in self.answers.items():
            if arrived == day:
                answers[answer.body["request"]].append(answer)
        rows, fates = {}, {}
        for request, one in self.of(day).items():
            mine, (_, body, _, _, reply) = answers.pop(request, []), one.given
            fates.update({answer.body["id"]: one.fate(answer) for answer in mine})
            history = [(past["item"], past["event"]) for past in body["history"]]
            for place, item in enumerate(one.visible):
                used = [each for each in mine if each.body["item"] == item and fates[each.body["id"]] == "used"]
                event, reward = aggregate(used, how)
                rows[request, place] = Row(body["person"], item, event, reward, reply["propensities"][place],
                                           reply["mode"], reply["floor"], history, one.seen or 0)  # fmt: skip
        late = [answer for several in answers.values() for answer in several]  # their lists were rotated before
        return rows, fates | {answer.body["id"]: "late" for answer in late}


class Rotated(NamedTuple):
    """Rows, fates and persons of a night's files; each should be there once."""

    rows: dict[Place, list[Row]]
    fates: dict[str, list[str]]
    persons: dict[str, list[str]]

    @classmethod
    def read(cls, folder: Path) -> Rotated:
        """Read the files; a list's context rows, in order of place, are the history of its request."""
        found, past = cls(defaultdict(list), defaultdict(list), defaultdict(list)), defaultdict(list)
        for row in sorted(cls._rows(folder, "events-*.parquet"), key=lambda row: int(row["place"])):
            if row["event"] == "context":
                past[row["request"]].append((row["item_id"], row["past_event"]))
                continue
            seen = round(row["timestamp"].replace(tzinfo=UTC).timestamp() * 1000)
            found.rows[row["request"], row["place"]].append(
                Row(row["sequence_id"], row["item_id"], row["event"], round(row["reward"], 9), row["propensity"],
                    row["mode"], row["floor"], past[row["request"]], seen)
            )  # fmt: skip
        for row in cls._rows(folder, "_feedback/*.parquet"):
            found.fates[row["id"]].append(row["fate"])
        for row in cls._rows(folder, "_requests/*.parquet"):
            found.persons[row["id"]].append(row["person"])
        return found

    @staticmethod
    def _rows(folder: Path, pattern: str) -> list[dict[str, Any]]:
        return [row for file in sorted(folder.glob(pattern)) for row in pq.read_table(file).to_pylist()]


def differences(ledger: Ledger, day: int, how: str, files: Rotated) -> Iterator[tuple[Any, ...]]:
    """Yield every row, answer and list of a night on which the ledger and the files differ."""
    (rows, fates), lists = ledger.join(day, how), ledger.of(day)
    for request in sorted({*lists, *files.persons}):
        persons = files.persons.get(request, [])
        allowed = (-1, persons[0]) in ledger.unclear if persons and request not in lists else request in lists
        if len(persons) != 1 or not allowed:
            yield "list", request, request in lists, persons
    for place in sorted({*rows, *files.rows}):
        want, got = rows.get(place), files.rows.get(place, [])
        same = want and len(got) == 1 and want[:-1] == got[0][:-1] and 0 <= got[0].seen - want.seen <= LAG
        if place[0] in lists and not same:
            yield "row", place, want, got
    for answer in sorted({*fates, *files.fates}):
        fate, found = fates.get(answer), files.fates.get(answer, [])
        if found != [fate] and not (fate is None and (day, answer) in ledger.unclear and len(found) == 1):
            yield "answer", answer, fate, found
