"""Records of the service's log: lists, reports of shown places, and answers."""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from localpolicy.serving.filters import Filter, Id

Mode = Literal["drawn", "top", "fallback"]
TIME_DIGITS = 12  # of a request id: milliseconds since 1970 in hex, so that ids sort by time
MARK_DIGITS = 10  # at its end: a keyed hash of the rest, by the log's key


@dataclass(frozen=True)
class Request:
    """One list as it was made: history, items, propensities, policy, filter, and arm of a rollout."""

    id: str
    time: int  # milliseconds since 1970
    person: str | None
    history: Sequence[tuple[Id, str]]  # (item, event), most recent last
    items: Sequence[Id]
    propensities: Sequence[float]  # of each place given those above
    policy: str  # version of the policy that drew the list, or 'fallback'
    beta: float | None
    mode: Mode
    floor: float  # ε
    item_filter: Filter
    deferred: bool  # counts as shown only once the client says so
    share: float  # of traffic that is logged
    arm: str = ""  # 'current' or 'candidate' during a rollout
    stage: str = ""  # and its stage
    rollout: str = ""  # and its id


@dataclass(frozen=True)
class Shown:
    """Report of how many places of a list were seen, from the top, and when."""

    request: str
    places: int
    time: int  # when it happened, as the client says
    arrived: int | None = None  # when the report arrived; None: at `time`


@dataclass(frozen=True)
class Feedback:
    """One answer to one shown item."""

    id: str  # the client's: the same id twice is one answer
    request: str
    item: Id
    event: str
    reward: float | None
    time: int  # when it happened
    late: bool  # past the window
    arrived: int | None = None  # when the answer arrived; None: at `time`


@dataclass(frozen=True)
class Shadowed:
    """Record of a candidate's list that was made in the shadow stage and not shown."""

    request: str
    policy: str
    failed: bool
    rollout: str = ""


Record = Request | Shown | Feedback | Shadowed


def now() -> int:
    """Return the time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def new_id(moment: int, key: bytes = b"") -> str:
    """Return a unique id: the time, then 80 random bits; with a key 40, and 40 only the key's owner can compute."""
    if not key:
        return f"{moment:0{TIME_DIGITS}x}{os.urandom(10).hex()}"
    start = f"{moment:0{TIME_DIGITS}x}{os.urandom(5).hex()}"
    return start + _mark(start, key)


def is_made_with(key: bytes, request: str) -> bool:
    """Whether an id was made with this key: a log need not remember the lists that left it to know them again."""
    start, mark = request[:-MARK_DIGITS], request[-MARK_DIGITS:]
    return time_of(request) is not None and hmac.compare_digest(mark.encode(), _mark(start, key).encode())


def _mark(start: str, key: bytes) -> str:
    return hmac.new(key, start.encode(), "sha256").hexdigest()[:MARK_DIGITS]


def time_of(request: Any) -> int | None:
    """Return the time within an id; None if it is not one of ours."""
    try:
        return int(request[:TIME_DIGITS], 16) if len(request) == TIME_DIGITS + 20 else None
    except ValueError:
        return None
