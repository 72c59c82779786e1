"""What a rollout is judged by: one unit per person and stage, with the arm it was given and what it brought.

A person's visits are not independent, and their arm is the same: so a person counts once in each stage, with the mean
reward of their lists within a horizon after the first. One who had the candidate before keeps it, which tells nothing
new; one who had the current policy at share p and is asked again at share q gets the candidate with probability
(q - p) / (1 - p), which is what the tests are told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from localpolicy.serving.assignment import SHADOW
from localpolicy.serving.database import Database
from localpolicy.serving.join import JoinConfig, joined

NEEDED = ["sequence_id", "request", "timestamp", "reward", "arm", "stage", "mode", "place"]


class Units(NamedTuple):
    """n units in the order in which they came. All [n]."""

    arm: np.ndarray  # 1: candidate
    probability: np.ndarray  # of the candidate, given what came before
    reward: np.ndarray  # mean over the unit's lists of the sum over places
    fallback: np.ndarray  # share of its lists that were fallbacks
    stage: np.ndarray  # text


@dataclass
class _Unit:
    first: int
    arm: str
    stage: str
    rewards: dict[str, float] = field(default_factory=dict)
    fallback: dict[str, bool] = field(default_factory=dict)


def units_of(events: Iterable[Mapping[str, Any]], shares: Mapping[str, float], *, horizon_ms: int) -> Units:
    """Units out of joined events, in order of time."""
    units: dict[tuple[str, str], _Unit] = {}
    for row in events:
        if not row["arm"] or row["stage"] not in shares or row["stage"] == SHADOW:
            continue
        at = row["timestamp"] if isinstance(row["timestamp"], int) else int(row["timestamp"].timestamp() * 1000)
        key = row["sequence_id"], row["stage"]
        unit = units.setdefault(key, _Unit(at, row["arm"], row["stage"]))
        if at - unit.first <= horizon_ms:
            unit.rewards[row["request"]] = unit.rewards.get(row["request"], 0.0) + row["reward"]
            unit.fallback[row["request"]] = row["mode"] == "fallback"
    kept: list[tuple[int, float, float, float, str]] = []
    before: dict[str, float] = {}  # the largest share at which a person had the current policy; 1: had the candidate
    for (person, _), unit in sorted(units.items(), key=lambda keyed: keyed[1].first):
        share, known = shares[unit.stage], before.get(person, 0.0)
        candidate = unit.arm == "candidate"
        if known < 1 and share > known:
            p = (share - known) / (1 - known)
            reward, fallback = (
                float(np.mean(list(by_request.values()))) for by_request in (unit.rewards, unit.fallback)
            )
            kept.append((candidate, p, reward, fallback, unit.stage))
        before[person] = 1.0 if candidate else max(known, share)
    columns = list(zip(*kept, strict=True)) or [(), (), (), (), ()]
    arm, probability, reward_, fallback_ = (np.array(column, np.float64) for column in columns[:4])
    return Units(arm, probability, reward_, fallback_, np.array(columns[4], dtype=object))


def read_units(
    log: Path | str, shares: Mapping[str, float], *, config: JoinConfig, horizon_ms: int, upto: int
) -> Units:
    """Units of a log (database or rotated folder) whose lists were made before `upto`."""
    path = Path(log)
    if path.is_dir():
        files = sorted(path.glob("events-*.parquet"))
        rows = (row for file in files for row in pq.read_table(file, columns=NEEDED).to_pylist() if row["request"])
        return units_of(rows, shares, horizon_ms=horizon_ms)
    database = Database(log)
    try:
        events = (row for row in joined(database, config, upto=upto) if row["request"])
        return units_of(events, shares, horizon_ms=horizon_ms)
    finally:
        database.close()
