"""Readers of other tools' logs: Vowpal Wabbit's decision service (CB and CCB) and Open Bandit Pipeline.

Vowpal Wabbit, one JSON object per line. `a` and `p` name every action and its probability, the chosen one first. A CCB
event (`_outcomes`) has a decision per slot among the actions that are left, with a law of its own: so each slot becomes
a request, and the event is their `person`, for they are not independent. Reward is -cost, `pdrop` becomes a weight, and
a deferred event that was never activated was not shown: it is left out.
"""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from localpolicy.errors import DataError, shown
from localpolicy.ranker.log import Answers, Column, RequestLog, checked, coded
from localpolicy.ranker.tables import understood

LONGEST = 1 << 26  # characters of a line
SLOT = "slot"  # the column of the request that says which slot it was
DEEPEST = 4  # levels of nested features
log = logging.getLogger(__name__)


def is_vowpal(given: Any) -> bool:
    """Whether a file's first line is an event of the decision service."""
    if not isinstance(given, str | Path) or not Path(given).is_file():
        return False
    if not Path(given).name.removesuffix(".gz").endswith((".json", ".jsonl", ".dsjson", ".ndjson")):
        return False
    with _opened(Path(given)) as file:
        try:
            first = json.loads(next(iter(file), ""))
        except (ValueError, OSError, EOFError):
            return False
    return isinstance(first, dict) and isinstance(first.get("c"), dict) and bool({"_outcomes", "a"} & set(first))


def _opened(path: Path) -> Any:
    return gzip.open(path, "rt", encoding="utf-8") if path.name.endswith(".gz") else path.open(encoding="utf-8")


def read_vowpal(path: Path | str) -> RequestLog:
    """Read a log of the decision service, in JSON lines of CB or CCB."""
    decisions: list[dict[str, Any]] = []
    skipped = 0
    with _opened(Path(path)) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            if len(line) > LONGEST:
                raise DataError(f"{path}, line {number}: more than {LONGEST:,} characters. Is it a log?")
            try:
                event = json.loads(line)
                found = list(_decisions(event))
            except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
                what = f"{path}, line {number} is no decision-service event ({type(error).__name__}: {error})"
                raise DataError(f"{what}. Remove the line, or fetch the file again.") from None
            skipped += not found
            decisions += found
    if skipped:
        log.info("left out of %s: %s deferred events that were never activated", path, f"{skipped:,}")
    return assembled(decisions, str(path))


def _decisions(event: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the decisions of one event; none if it was never shown."""
    about = event["c"]
    actions = [_flat(one) for one in about["_multi"]]
    named = [str(one.pop("_tag", number)) for number, one in enumerate(actions, 1)]
    shared = {name: value for name, value in _flat(about).items() if not name.startswith("_")}
    weight = 1 / (1 - float(event.get("pdrop", 0.0)))
    name = str(event.get("EventId", ""))
    if "_outcomes" in event:
        slots = about.get("_slots", [{}] * len(event["_outcomes"]))
        for number, (outcome, slot) in enumerate(zip(event["_outcomes"], slots, strict=True)):
            of_slot = {f"{SLOT}.{key}": value for key, value in _flat(slot).items() if not key.startswith("_")}
            yield {"request": f"{outcome.get('_id', name)}#{number}", "event": name,
                   "chosen": list(map(int, outcome["_a"])), "p": list(map(float, outcome["_p"])),
                   "reward": -float(outcome.get("_label_cost", 0.0)), "weight": weight,
                   "actions": actions, "named": named,
                   "context": {**shared, SLOT: str(number), **of_slot}}  # fmt: skip
        return
    deferred = event.get("DeferredAction", False) or event.get("_skipLearn", False)
    activated = any(isinstance(one, dict) and one.get("ActionTaken") for one in event.get("o", ()))
    if deferred and not activated:
        return
    yield {"request": name, "event": name, "chosen": [int(one) - 1 for one in event["a"]],
           "p": list(map(float, event["p"])), "reward": -float(event.get("_label_cost", 0.0)), "weight": weight,
           "actions": actions, "named": named, "context": shared}  # fmt: skip


def _flat(features: Any, prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Flatten nested features into columns: {"User": {"age": 3}} is `User.age`; lists are left out."""
    found: dict[str, Any] = {}
    for name, value in features.items():
        if isinstance(value, Mapping) and depth < DEEPEST:
            found |= _flat(value, f"{prefix}{name}.", depth + 1)
        elif isinstance(value, str | int | float):
            found[f"{prefix}{name}"] = value
    return found


def assembled(decisions: list[dict[str, Any]], label: str) -> RequestLog:
    """Build a log with one request per decision, whose first candidate was shown."""
    if not decisions:
        raise DataError(f"{label} holds no decision that was shown.")
    for one in decisions:
        if len(one["p"]) != len(one["chosen"]) or not set(one["chosen"]) <= set(range(len(one["actions"]))):
            raise DataError(f"request {shown(one['request'])} has {len(one['p'])} probabilities for "
                            f"{len(one['chosen'])} of its {len(one['actions'])} actions. Each needs one.")  # fmt: skip
    start = np.concatenate([[0], np.cumsum([len(one["chosen"]) for one in decisions])])
    item, items = coded([one["named"][action] for one in decisions for action in one["chosen"]])
    rows = [one["actions"][action] for one in decisions for action in one["chosen"]]
    reward = np.array([one["reward"] for one in decisions])
    place = np.zeros(len(item), np.int64)
    place[start[:-1]] = 1
    earned = np.flatnonzero(reward)
    return checked(RequestLog(
        ids=np.array([one["request"] for one in decisions]), start=start, item=item, items=items, place=place,
        answers=Answers(start[:-1][earned], np.zeros(len(earned), np.int64), ("reward",), reward[earned]),
        probability=np.array([p for one in decisions for p in one["p"]]),
        person=coded([one["event"] for one in decisions])[0], weight=np.array([one["weight"] for one in decisions]),
        context=_columns([one["context"] for one in decisions]), columns=_columns(rows), label=label,
    ))  # fmt: skip


def _columns(rows: list[dict[str, Any]]) -> dict[str, Column]:
    """Turn dicts into columns: numbers if all values are, else texts."""
    found = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        texts = any(isinstance(value, str) for value in values)
        column = understood(pa.array([None if value is None else str(value) for value in values]) if texts
                            else pa.array(values, pa.float64()))  # fmt: skip
        if column is not None:
            found[name] = column
    return found


def is_obp(given: Any) -> bool:
    """Whether `given` is a feedback dictionary of Open Bandit Pipeline."""
    return isinstance(given, Mapping) and {"action", "reward", "n_actions"} <= set(given)


def read_obp(feedback: Mapping[str, Any]) -> RequestLog:
    """Read a feedback dictionary: each round is a request of one place, with all actions as candidates.

    `pi_b` is the law. `pscore` alone knows it at the shown action only, and is not taken for a law.
    """
    action, reward = np.asarray(feedback["action"], np.int64), np.asarray(feedback["reward"], np.float64)
    count, size = len(action), int(feedback["n_actions"])
    if len(reward) != count or not ((action >= 0) & (action < size)).all():
        raise DataError(f"the feedback has {count} actions and {len(reward)} rewards; actions go from 0 to {size - 1}.")
    position = feedback.get("position")
    position = np.zeros(count, np.int64) if position is None else np.asarray(position, np.int64)
    probability = None
    if feedback.get("pi_b") is not None:
        law = np.asarray(feedback["pi_b"], np.float64)
        law = law[:, :, None] if law.ndim == 2 else law
        if law.shape[:2] != (count, size):
            raise DataError(f"pi_b has the shape {law.shape}, expected ({count}, {size}, positions).")
        probability = law[np.arange(count), :, np.minimum(position, law.shape[2] - 1)].ravel()
    place = np.zeros(count * size, np.int64)
    row = np.arange(count) * size + action
    place[row] = 1
    context = {f"x{number}": Column(values) for number, values in enumerate(_features(feedback.get("context"), count))}
    if position.any():
        context[SLOT] = Column(position.astype(np.int32), tuple(str(one) for one in range(int(position.max()) + 1)))
    of_items = _features(feedback.get("action_context"), size)
    columns = {f"a{number}": Column(np.tile(values, count)) for number, values in enumerate(of_items)}
    earned = np.flatnonzero(reward)
    return checked(RequestLog(
        ids=np.arange(count).astype(str), start=np.arange(count + 1) * size, item=np.tile(np.arange(size), count),
        items=np.arange(size).astype(str), place=place, probability=probability, context=context, columns=columns,
        answers=Answers(row[earned], np.zeros(len(earned), np.int64), ("reward",), reward[earned]),
        label="the feedback dictionary",
    ))  # fmt: skip


def _features(values: Any, count: int) -> Iterable[np.ndarray]:
    if values is None:
        return []
    table = np.asarray(values, np.float64)
    if table.ndim != 2 or len(table) != count:
        raise DataError(f"features have the shape {table.shape}, expected one row for each of {count}.")
    return list(table.T)
