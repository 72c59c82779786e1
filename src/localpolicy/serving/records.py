"""What the service writes down: lists it made, what was shown of them, and what came back."""

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
MARK_DIGITS = 10  # at its end: what the log's key makes of the rest


@dataclass(frozen=True)
class Request:
    """One list, as it was made."""

    id: str
    time: int  # milliseconds since 1970
    person: str | None
    history: Sequence[tuple[Id, str]]  # (item, event), most recent last
    items: Sequence[Id]
    propensities: Sequence[float]  # of each place given those above
    policy: str  # who drew it: the version of a policy, or 'fallback'
    beta: float | None
    mode: Mode
    floor: float  # ε
    item_filter: Filter
    deferred: bool  # counts as shown only once the client says so
    share: float  # of traffic that is logged
    arm: str = ""  # 'current' or 'candidate' while a rollout goes on
    stage: str = ""  # and its stage
    rollout: str = ""  # and its id


@dataclass(frozen=True)
class Shown:
    """How many places of a list were really seen, from the top, and when."""

    request: str
    places: int
    time: int  # when it happened, as the client says
    arrived: int | None = None  # when it was told; None: at that time


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
    arrived: int | None = None  # when it was told; None: when it happened


@dataclass(frozen=True)
class Shadowed:
    """A list of the candidate that was made and logged, but not shown."""

    request: str
    policy: str
    failed: bool
    rollout: str = ""


Record = Request | Shown | Feedback | Shadowed


def now() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def new_id(moment: int, key: bytes = b"") -> str:
    """A unique id: the time, then 80 random bits; with a key 40, and 40 that only the key's owner can compute."""
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
    """The time within an id; None where it is no id of ours."""
    try:
        return int(request[:TIME_DIGITS], 16) if len(request) == TIME_DIGITS + 20 else None
    except ValueError:
        return None
