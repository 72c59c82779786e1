"""What a policy would change, for a person's eye: the items that it shows more and less, and what its gain amounts to.

A figure may praise a policy that shows fuel to everybody. The list of what moved most says so before any figure does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from localpolicy.data.reward_kind import reward_kind
from localpolicy.data.store import CONTEXT, Prepared
from localpolicy.measure.summary import Scores
from localpolicy.model.lists import names_of

MOST = 10  # items, of both directions together
PER = 1_000  # decisions, lists or visits
DAY = 86_400_000  # milliseconds
UNNAMED = "reward"  # unit of rewards that a reward map gives


class Moved(NamedTuple):
    """An item, and the shares of all contexts in which it is shown first."""

    item: int
    name: str
    before: float
    after: float

    @property
    def change(self) -> float:
        """Changes as shares of all contexts."""
        return self.after - self.before


class MostMoved(NamedTuple):
    """Items by the size of their change, largest first."""

    more: tuple[Moved, ...]
    less: tuple[Moved, ...]
    moved: float  # half of the sum of all changes: the share of contexts that see another item first


def first_shares(scores: Scores, *, n_items: int) -> np.ndarray:
    """How often a policy would show each item first, as a share of all positions: [V]."""
    return np.bincount(scores.top.astype(np.int64), minlength=n_items) / max(len(scores), 1)


def taken_shares(scores: Scores, *, n_items: int) -> np.ndarray:
    """How often the log shows, or people take, each item, as a share of all positions: [V]."""
    return np.bincount(scores.item.astype(np.int64), minlength=n_items) / max(len(scores), 1)


def most_moved(
    before: np.ndarray,
    after: np.ndarray,
    catalogue: pa.Table,
    *,
    titles: Mapping[str, str] | None = None,
    most: int = MOST,
) -> MostMoved:
    """The items whose shares [V] changed most, by their titles, the names in the catalogue, or else their ids."""
    change = after - before
    order = np.argsort(-np.abs(change), kind="stable")[:most]
    items = [int(item) for item in order if change[item] != 0]
    ids = [str(each) for each in catalogue["item_id"].take(pa.array(items, pa.int64())).to_pylist()]
    names = [(titles or {}).get(each, name) for each, name in zip(ids, names_of(catalogue, items) or ids, strict=True)]
    rows = [Moved(item, name, float(before[item]), float(after[item])) for item, name in zip(items, names, strict=True)]
    more, less = (tuple(row for row in rows if row.change * sign > 0) for sign in (1, -1))
    return MostMoved(more, less, float(np.abs(change).sum()) / 2)


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
        """Whether the log calls what is earned by a name of its own."""
        return self.unit != UNNAMED

    @property
    def daily(self) -> tuple[float, float, float] | None:
        """The gain of a day like those of the log, with its interval."""
        if self.a_day is None:
            return None
        gain, low, high = (each / self.per * self.a_day for each in (self.gain, self.low, self.high))
        return gain, low, high


def gain_per_day(data: Prepared, gain: float, low: float, high: float, *, counted: str = "decisions") -> GainPerDay:
    """What a gain per decision, list, visit or answer comes to, per 1,000 of them and per day.

    How many answers a day brings depends on what is shown: of answers there is no figure per day.
    """
    kind = reward_kind(data)
    unit = UNNAMED if kind is None else kind.column
    a_day = per_day(data, counted=counted) if counted in ("decisions", "lists", "visits") else None
    return GainPerDay(PER * gain, PER * low, PER * high, PER, counted, unit, a_day)


def per_day(data: Prepared, *, counted: str = "decisions") -> float | None:
    """How many decisions, lists or visits a day of the log holds; None where it has no times, or spans no day."""
    if "time" not in data["train"].arrays:
        return None
    total, first, last = 0, np.iinfo(np.int64).max, np.iinfo(np.int64).min
    for split in data.whole_splits:
        arrays = data[split].arrays
        chosen = np.asarray(arrays["event"]) != (data.events.index(CONTEXT) if CONTEXT in data.events else -1)
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
