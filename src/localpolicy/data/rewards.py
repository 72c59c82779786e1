"""Rewards of events: `purchase=1.0,click=0.2`, or thresholds for ratings: `>=4=1,>=3=0.5,*=0`.

A name beats a threshold, the highest threshold met beats the others, and `*` covers the rest. An event that nothing
covers is an error: a silent zero would teach the policy that the event has no value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from localpolicy.errors import ConfigError, DataError
from localpolicy.limits import CONTEXT, NO_ANSWER

DEFAULT = "purchase=1.0,click=0.2"  # the paper's
RATINGS = ">=4=1,>=3=0.5,*=0"  # the paper's: 1, 2 -> 0; 3 -> 0.5; 4, 5 -> 1


@dataclass(frozen=True)
class RewardMap:
    """Map from events to rewards."""

    names: Mapping[str, float]
    thresholds: tuple[tuple[float, float], ...] = ()  # (at least, reward), highest first
    otherwise: float | None = None

    @classmethod
    def parse(cls, text: str) -> RewardMap:
        """Parse `name=reward` entries separated by commas."""
        names: dict[str, float] = {}
        thresholds: list[tuple[float, float]] = []
        otherwise = None
        given: set[str] = set()
        for entry in filter(None, (part.strip() for part in text.split(","))):
            event, equals, value = entry.rpartition("=")
            event = event.strip()
            reward = _number(value, entry)
            if not equals or not event:
                raise ConfigError(f"rewards: expected event=number, got '{entry}' (as in {DEFAULT}).")
            event = event if event == "*" or event.startswith(">=") else event_name(event)
            if event in given:
                raise ConfigError(f"rewards: '{event}' is given twice. Give it one reward.")
            given.add(event)
            if event.startswith(">="):
                thresholds.append((_number(event[2:], entry), reward))
            elif event == "*":
                otherwise = reward
            else:
                names[event] = reward
        return cls(names, tuple(sorted(thresholds, reverse=True)), otherwise)

    def of(self, event: str) -> float:
        """Reward of one event."""
        if event in self.names:
            return self.names[event]
        rating = _rating(event)
        for least, reward in self.thresholds:
            if rating is not None and rating >= least:
                return reward
        if event in (CONTEXT, NO_ANSWER):
            return 0.0
        if self.otherwise is None and rating is not None and not self.thresholds:
            raise DataError(
                f"event '{event}' is a rating, and the reward map says nothing of ratings: add thresholds, such as "
                f"--rewards '{RATINGS}'."
            )
        if self.otherwise is None:
            raise DataError(
                f"event '{event}' is missing from the reward map. Add it (--rewards '{event}=…'), cover the rest "
                "(--rewards '…,*=0'), rename it (--rename), or leave its rows out (--drop-events)."
            )
        return self.otherwise


def event_name(raw: str) -> str:
    """Name of an event as the log wrote it; ratings lose trailing zeros, so that 4, 4.0 and 4.00 are one."""
    rating = _rating(raw)
    return raw if rating is None else f"{rating:g}"


def pairs(text: str, *, what: str) -> dict[str, str]:
    """Parse `a=b,c=d` into a mapping; ConfigError, which names the setting `what`, if that is not possible."""
    values: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (part.strip() for part in entry.partition("="))
        if not (key and equals and value):
            raise ConfigError(f"{what}: expected name=name, got '{entry}'.")
        if key in values:
            raise ConfigError(f"{what}: '{key}' is given twice.")
        values[key] = value
    return values


def is_rating(event: str) -> bool:
    """Whether an event is a rating (its name is a number): tables leave these out, since there are too many."""
    return _rating(event) is not None


def _rating(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in text else None  # Python reads 1_0 as ten


def _number(text: str, entry: str) -> float:
    value = _rating(text)
    if value is None:
        raise ConfigError(f"rewards: '{text}' in '{entry}' is not a finite number (as in {DEFAULT}).")
    return value
