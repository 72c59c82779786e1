"""What a gain amounts to in the reward's own unit: per 1,000 decisions, lists, visits or answers, and per day."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from localpolicy.data.reward_kind import reward_kind
from localpolicy.data.store import Prepared

PER = 1_000  # decisions, lists or visits
DAY = 86_400_000  # milliseconds
UNNAMED = "reward"  # unit of rewards that a reward map gives


class GainPerDay(NamedTuple):
    """A gain in the reward's own unit, with its interval."""

    gain: float
    low: float
    high: float
    per: int  # of what is counted
    counted: str  # decisions, lists, visits or answers
    unit: str  # the log's name of what is earned
    a_day: float | None  # of what is counted, by the log's times

    @property
    def named(self) -> bool:
        """Whether rewards are amounts of a named column of the log."""
        return self.unit != UNNAMED

    @property
    def daily(self) -> tuple[float, float, float] | None:
        """Gain per day at the log's rate of decisions, with its interval; None if the log has no times."""
        if self.a_day is None:
            return None
        gain, low, high = (each / self.per * self.a_day for each in (self.gain, self.low, self.high))
        return gain, low, high


def gain_per_day(data: Prepared, gain: float, low: float, high: float, *, counted: str = "decisions") -> GainPerDay:
    """Convert a gain per decision, list, visit or answer to the gain per 1,000 of them and per day.

    How many answers a day brings depends on what is shown: of answers there is no figure per day.
    """
    kind = reward_kind(data)
    unit = UNNAMED if kind is None else kind.column
    a_day = per_day(data, counted=counted) if counted in ("decisions", "lists", "visits") else None
    return GainPerDay(PER * gain, PER * low, PER * high, PER, counted, unit, a_day)


def per_day(data: Prepared, *, counted: str = "decisions") -> float | None:
    """Number of decisions, lists or visits per day of the log; None without times or within one day."""
    if "time" not in data["train"].arrays:
        return None
    total, first, last = 0, np.iinfo(np.int64).max, np.iinfo(np.int64).min
    for split in data.whole_splits:
        arrays = data[split].arrays
        chosen = data.chosen(split)
        if not chosen.any():
            continue
        time = np.asarray(arrays["time"])[chosen]
        first, last = min(first, int(time.min())), max(last, int(time.max()))
        if counted == "visits":
            total += len(data[split])
        elif counted == "lists" and "above" in arrays:
            total += int((np.asarray(arrays["above"])[chosen] == 0).sum())
        else:
            total += int(chosen.sum())
    return total * DAY / (last - first) if last - first >= DAY else None
