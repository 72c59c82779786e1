"""Experimental units of a rollout: one per person and stage, with its arm and its reward.

A person's visits are not independent, and their arm is the same: so a person counts once in each stage, with the mean
reward of their lists within a horizon after the first. One who had the candidate before keeps it, which adds no
evidence; one who had the current policy at share p and comes again at share q gets the candidate with probability
(q - p) / (1 - p), which the tests use.

A unit can change until its horizon is over and the window of its last list has closed. Until then it is not *ripe*:
its arm and its first list are known, its reward is not. What counts is when an answer arrived, not when the client
says that it happened: an answer that comes after the window changes nothing, whatever time it states.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from localpolicy.serving.assignment import SHADOW
from localpolicy.serving.database import Database
from localpolicy.serving.join import JoinConfig, ResponseReward, aggregate, with_answers
from localpolicy.serving.log import SEEN

LISTS = f"""SELECT r.id, r.time, r.person, r.arm, r.stage, r.policy, r.mode, r.items, {SEEN}
    FROM requests r LEFT JOIN shown s ON s.request = r.id WHERE r.rollout = ?
UNION ALL SELECT request, time, person, arm, stage, policy, mode, items, seen FROM evidence WHERE rollout = ?
ORDER BY 2, 1"""
# The latest lists of the log that no candidate made.
PAST_LISTS = f"""SELECT r.id, r.time, r.person, r.arm, r.stage, r.policy, r.mode, r.items, {SEEN}
    FROM requests r LEFT JOIN shown s ON s.request = r.id WHERE r.arm <> 'candidate'
    ORDER BY r.time DESC, r.id DESC LIMIT ?"""
ANSWER = "f.id, f.request, f.item, f.event, f.reward, COALESCE(f.arrived, f.time), f.time, l.time"
OF_LISTS = "ORDER BY 8, 2, 6, 1"  # answers in the order of their lists, each list's as they came
PAST_ANSWERS = f"SELECT {ANSWER} FROM feedback f JOIN ({PAST_LISTS}) l ON l.id = f.request {OF_LISTS}"
ANSWERS = " UNION ALL ".join(
    f"SELECT {ANSWER} FROM {answers} f JOIN {lists} l ON l.{key} = f.request WHERE l.rollout = ?"
    for answers, lists, key in (
        ("feedback", "requests", "id"), ("feedback", "evidence", "request"), ("evidence_answers", "evidence", "request")
    )
) + f" {OF_LISTS}"  # fmt: skip
PAST_IN_ORDER = f"SELECT * FROM ({PAST_LISTS}) l ORDER BY 2, 1"


class RolloutList(NamedTuple):
    """One list of a rollout with its reward."""

    person: str
    time: int
    arm: str
    stage: str
    policy: str
    mode: str
    reward: float


class Units(NamedTuple):
    """n units in the order in which they came; all fields are [n]."""

    arm: np.ndarray  # 1: candidate
    probability: np.ndarray  # of the candidate, given what came before
    reward: np.ndarray  # mean over the unit's lists of the sum over places
    fallback: np.ndarray  # 1 if its first list was a fallback: known at once, unlike a share of all
    lists: np.ndarray  # number of lists
    first: np.ndarray  # when its first list was made
    stage: np.ndarray  # text

    def where(self, chosen: np.ndarray) -> Units:
        """Units that the mask `chosen` selects."""
        return Units(*(column[chosen] for column in self))


@dataclass
class Visit:
    """A person's lists of one stage."""

    first: int
    arm: str
    stage: str
    fallback: bool  # of the first list
    lists: int = 0
    total: float = 0.0  # of their rewards

    @property
    def reward(self) -> float:
        """Mean reward of the lists."""
        return self.total / self.lists


def visits(lists: Iterable[RolloutList], *, horizon_ms: int) -> list[tuple[str, Visit]]:
    """Group lists, in order of time, into visits: a person's lists of a stage within the horizon after the first."""
    found: dict[tuple[str, str], Visit] = {}
    for row in lists:
        mine = found.setdefault((row.person, row.stage), Visit(row.time, row.arm, row.stage, row.mode == "fallback"))
        if row.time - mine.first <= horizon_ms:
            mine.lists, mine.total = mine.lists + 1, mine.total + row.reward
    return sorted(((person, mine) for (person, _), mine in found.items()), key=lambda keyed: keyed[1].first)


def units_of(lists: Iterable[RolloutList], shares: Mapping[str, float], *, horizon_ms: int) -> Units:
    """Build units from a rollout's lists, in order of time."""
    tested = (row for row in lists if row.stage in shares and row.stage != SHADOW)
    kept: list[tuple[float, float, float, float, int, int, str]] = []
    before: dict[str, float] = {}  # largest share at which a person had the current policy; 1 if they had the candidate
    for person, unit in visits(tested, horizon_ms=horizon_ms):
        share, known = shares[unit.stage], before.get(person, 0.0)
        candidate = unit.arm == "candidate"
        if known < 1 and share > known:
            p = (share - known) / (1 - known)
            kept.append((candidate, p, unit.reward, unit.fallback, unit.lists, unit.first, unit.stage))
        before[person] = 1.0 if candidate else max(known, share)
    columns: Sequence[Any] = list(zip(*kept, strict=True)) or [()] * 7
    kinds = (np.float64,) * 4 + (np.int64,) * 2 + (object,)
    return Units._make(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True))


@dataclass
class Tally:
    """Answers with and without a reward, and policy versions by arm; complete once `rollout_lists` is exhausted."""

    known: int = 0  # answers with a reward
    policies: dict[str, set[str]] = field(default_factory=dict)  # versions that made lists, by arm
    response_reward: ResponseReward | None = None

    @property
    def set_aside(self) -> int:
        """Number of answers without a reward."""
        return 0 if self.response_reward is None else self.response_reward.set_aside.total()


def rollout_lists(database: Database, rollout: str, config: JoinConfig, tally: Tally) -> Iterator[RolloutList]:
    """Yield a rollout's lists in order of time, rotated or not, and count them in `tally`."""
    return _lists(database.stream(LISTS, (rollout,) * 2), database.stream(ANSWERS, (rollout,) * 3), config, tally)


def past_lists(database: Database, config: JoinConfig, *, most: int) -> Iterator[RolloutList]:
    """Yield the latest lists in the log that no candidate made, in order of time."""
    return _lists(database.stream(PAST_IN_ORDER, (most,)), database.stream(PAST_ANSWERS, (most,)), config, Tally())


def _lists(
    rows: Iterator[tuple[Any, ...]], responses: Iterator[tuple[Any, ...]], config: JoinConfig, tally: Tally
) -> Iterator[RolloutList]:
    """Yield lists with the rewards of their answers, counted in `tally`; both come in order of the lists."""
    response_reward = tally.response_reward = ResponseReward(config)
    for row, mine in with_answers(rows, responses):
        request, time, person, arm, stage, policy, mode, items, seen = row
        closes = time + config.window_ms
        answers: dict[str, tuple[int, str, str, float, int]] = {}
        for name, _, item, event, stated, arrived, happened, _ in mine:
            if name not in answers and (reward := response_reward.of(event, stated)) is not None:
                answers[name] = (happened, item, event, reward, arrived)
        tally.known += len(answers)
        if seen is None or seen > closes:
            continue  # a deferred list that was not seen
        if mode != "fallback":
            tally.policies.setdefault(arm, set()).add(policy)
        by_item: dict[str, list[tuple[str, float]]] = {}
        for _, item, event, reward, arrived in sorted(answers.values()):
            if arrived <= closes:
                by_item.setdefault(item, []).append((event, reward))
        total = sum(aggregate(one, config)[1] for one in by_item.values())
        total += config.default * (len(json.loads(items)) - len(by_item))
        yield RolloutList(request if person is None else person, time, arm, stage, policy, mode, total)


def keep_evidence(database: Database, rotation: int) -> None:
    """Copy what rollouts need of a rotation's lists before these leave the log, within its transaction.

    Only another rollout clears what an earlier one left: once no list of the earlier one is in the log. Their ids do
    not give their order, since clocks step back.
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
