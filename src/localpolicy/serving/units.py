"""What a rollout is judged by: one unit per person and stage, with the arm it was given and what it brought.

A person's visits are not independent, and their arm is the same: so a person counts once in each stage, with the mean
reward of their lists within a horizon after the first. One who had the candidate before keeps it, which tells nothing
new; one who had the current policy at share p and is asked again at share q gets the candidate with probability
(q - p) / (1 - p), which is what the tests are told.

A unit can change until its horizon is over and the window of its last list has closed. Until then it is not *ripe*:
its arm and its first list are known, its reward is not. What counts is when an answer arrived, not when the client
says that it happened: an answer that comes after the window changes nothing, whatever time it states.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from localpolicy.serving.assignment import SHADOW
from localpolicy.serving.database import Database
from localpolicy.serving.join import JoinConfig, Worth, aggregate
from localpolicy.serving.log import SEEN

LISTS = f"""SELECT r.id, r.time, r.person, r.arm, r.stage, r.policy, r.mode, r.items, {SEEN}
    FROM requests r LEFT JOIN shown s ON s.request = r.id WHERE r.rollout = ?
UNION ALL SELECT request, time, person, arm, stage, policy, mode, items, seen FROM evidence WHERE rollout = ?"""
# The latest lists of the log that no candidate made.
PAST_LISTS = f"""SELECT r.id, r.time, r.person, r.arm, r.stage, r.policy, r.mode, r.items, {SEEN}
    FROM requests r LEFT JOIN shown s ON s.request = r.id WHERE r.arm <> 'candidate' ORDER BY r.time DESC LIMIT ?"""
ANSWER = "f.id, f.request, f.item, f.event, f.reward, COALESCE(f.arrived, f.time), f.time"
PAST_ANSWERS = f"SELECT {ANSWER} FROM feedback f JOIN ({PAST_LISTS}) l ON l.id = f.request"
ANSWERS = " UNION ALL ".join(
    f"SELECT {ANSWER} FROM {answers} f JOIN {lists} l ON l.{key} = f.request WHERE l.rollout = ?"
    for answers, lists, key in (
        ("feedback", "requests", "id"), ("feedback", "evidence", "request"), ("evidence_answers", "evidence", "request")
    )
)  # fmt: skip


class RolloutList(NamedTuple):
    """One list of a rollout, and what it brought."""

    person: str
    time: int
    arm: str
    stage: str
    policy: str
    mode: str
    reward: float


class Units(NamedTuple):
    """n units in the order in which they came. All [n]."""

    arm: np.ndarray  # 1: candidate
    probability: np.ndarray  # of the candidate, given what came before
    reward: np.ndarray  # mean over the unit's lists of the sum over places
    fallback: np.ndarray  # 1 where its first list was a fallback: known at once, unlike a share of all
    lists: np.ndarray  # how many
    first: np.ndarray  # when its first list was made
    stage: np.ndarray  # text

    def where(self, chosen: np.ndarray) -> Units:
        """Some of them."""
        return Units(*(column[chosen] for column in self))


@dataclass
class Visit:
    """A person's lists of one stage."""

    first: int
    arm: str
    stage: str
    fallback: bool  # of the first list
    rewards: list[float] = field(default_factory=list)

    @property
    def reward(self) -> float:
        """The mean of the lists."""
        return float(np.mean(self.rewards))


def visits(lists: Iterable[RolloutList], *, horizon_ms: int) -> list[tuple[str, Visit]]:
    """Each person's lists of a stage within the horizon after the first, in the order of those; lists by time."""
    found: dict[tuple[str, str], Visit] = {}
    for row in lists:
        mine = found.setdefault((row.person, row.stage), Visit(row.time, row.arm, row.stage, row.mode == "fallback"))
        if row.time - mine.first <= horizon_ms:
            mine.rewards.append(row.reward)
    return sorted(((person, mine) for (person, _), mine in found.items()), key=lambda keyed: keyed[1].first)


def units_of(lists: Iterable[RolloutList], shares: Mapping[str, float], *, horizon_ms: int) -> Units:
    """Units out of a rollout's lists, in order of time."""
    tested = (row for row in lists if row.stage in shares and row.stage != SHADOW)
    kept: list[tuple[float, float, float, float, int, int, str]] = []
    before: dict[str, float] = {}  # the largest share at which a person had the current policy; 1: had the candidate
    for person, unit in visits(tested, horizon_ms=horizon_ms):
        share, known = shares[unit.stage], before.get(person, 0.0)
        candidate = unit.arm == "candidate"
        if known < 1 and share > known:
            p = (share - known) / (1 - known)
            kept.append((candidate, p, unit.reward, unit.fallback, len(unit.rewards), unit.first, unit.stage))
        before[person] = 1.0 if candidate else max(known, share)
    columns: Sequence[Any] = list(zip(*kept, strict=True)) or [()] * 7
    kinds = (np.float64,) * 4 + (np.int64,) * 2 + (object,)
    return Units._make(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True))


class Told(NamedTuple):
    """A rollout's answers: how many have a reward, and how many were set aside, since they have none."""

    known: int
    set_aside: int


def rollout_lists(database: Database, rollout: str, config: JoinConfig) -> tuple[list[RolloutList], Told]:
    """A rollout's lists in order of time, rotated or not; and how many of its answers count."""
    return _lists(database.rows(LISTS, (rollout,) * 2), database.stream(ANSWERS, (rollout,) * 3), config)


def past_lists(database: Database, config: JoinConfig, *, most: int) -> list[RolloutList]:
    """The latest lists in the log that no candidate made, in order of time."""
    return _lists(database.rows(PAST_LISTS, (most,)), database.stream(PAST_ANSWERS, (most,)), config)[0]


def _lists(
    rows: Iterable[tuple[Any, ...]], told: Iterable[tuple[Any, ...]], config: JoinConfig
) -> tuple[list[RolloutList], Told]:
    """Lists with what their answers brought."""
    worth = Worth(config)
    answers: dict[str, dict[str, tuple[int, str, str, float, int]]] = {}
    for name, request, item, event, stated, arrived, time in told:
        if (reward := worth.of(event, stated)) is None:
            continue
        answers.setdefault(request, {}).setdefault(name, (time, item, event, reward, arrived))
    lists = []
    for request, time, person, arm, stage, policy, mode, items, seen in rows:
        closes = time + config.window_ms
        if seen is None or seen > closes:
            continue  # built is not seen
        by_item: dict[str, list[tuple[str, float]]] = {}
        for _, item, event, reward, arrived in sorted(answers.get(request, {}).values()):
            if arrived <= closes:
                by_item.setdefault(item, []).append((event, reward))
        total = sum(aggregate(mine, config)[1] for mine in by_item.values())
        total += config.default * (len(json.loads(items)) - len(by_item))
        lists.append(RolloutList(request if person is None else person, time, arm, stage, policy, mode, total))
    counted = Told(sum(map(len, answers.values())), worth.set_aside.total())
    return sorted(lists, key=lambda made: made.time), counted


def keep_evidence(database: Database, rotation: int) -> None:
    """Before a rotation's lists leave the log, keep what rollouts need of them; within its transaction.

    Only another rollout clears what an earlier one left: once no list of the earlier one is in the log. Their ids tell
    nothing of their order, since clocks step back.
    """
    database.execute(
        f"""INSERT INTO evidence SELECT r.id, r.rollout, r.time, r.person, r.arm, r.stage, r.policy, r.mode, r.items,
            {SEEN} FROM requests r LEFT JOIN shown s ON s.request = r.id WHERE r.rotation = ? AND r.rollout <> ''""",
        (rotation,),
    )
    database.execute(
        """INSERT INTO evidence_answers SELECT f.id, f.request, f.item, f.event, f.reward, f.time, f.arrived
            FROM feedback f JOIN evidence e ON e.request = f.request WHERE f.rotation = ? ON CONFLICT DO NOTHING""",
        (rotation,),
    )
    lists = "FROM requests WHERE rollout <> ''"  # those of this rotation among them
    database.execute(
        f"DELETE FROM evidence WHERE rollout NOT IN (SELECT rollout {lists}) AND EXISTS (SELECT 1 {lists})"
    )
    database.execute("DELETE FROM evidence_answers WHERE request NOT IN (SELECT request FROM evidence)")
