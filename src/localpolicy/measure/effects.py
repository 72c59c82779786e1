"""What a deployment would change: which items are shown first more and less, and what a gain amounts to per day."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from localpolicy.data.reward_kind import reward_kind
from localpolicy.data.store import Prepared
from localpolicy.measure.position_metrics import Scores
from localpolicy.model.lists import names_of

MOST = 10  # items, of both directions together


class Moved(NamedTuple):
    """An item, and the shares of positions at which the old and the new policy show it first."""

    item: int
    name: str
    before: float
    after: float

    @property
    def change(self) -> float:
        return self.after - self.before


class MostMoved(NamedTuple):
    """Items by the size of their change, largest first."""

    more: tuple[Moved, ...]
    less: tuple[Moved, ...]
    moved: float  # half of the sum of all changes: the share of contexts that see another item first


def first_shares(scores: Scores, *, n_items: int) -> np.ndarray:
    """Share of positions at which a policy shows each item first: [V]."""
    return np.bincount(scores.top.astype(np.int64), minlength=n_items) / max(len(scores), 1)


def taken_shares(scores: Scores, *, n_items: int) -> np.ndarray:
    """Share of positions at which each item was logged: [V]."""
    return np.bincount(scores.item.astype(np.int64), minlength=n_items) / max(len(scores), 1)


def most_moved(
    before: np.ndarray,
    after: np.ndarray,
    catalogue: pa.Table,
    *,
    titles: Mapping[str, str] | None = None,
    most: int = MOST,
) -> MostMoved:
    """Items whose shares [V] changed most, with display names from titles, the catalogue or their ids."""
    change = after - before
    order = np.argsort(-np.abs(change), kind="stable")[:most]
    items = [int(item) for item in order if change[item] != 0]
    ids = [str(each) for each in catalogue["item_id"].take(pa.array(items, pa.int64())).to_pylist()]
    names = [(titles or {}).get(each, name) for each, name in zip(ids, names_of(catalogue, items) or ids, strict=True)]
    rows = [Moved(item, name, float(before[item]), float(after[item])) for item, name in zip(items, names, strict=True)]
    more, less = (tuple(row for row in rows if row.change * sign > 0) for sign in (1, -1))
    return MostMoved(more, less, float(np.abs(change).sum()) / 2)


# ---------------------------------------------------------------------- a gain in the unit of the reward


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


def log_days(data: Prepared) -> float | None:
    """Number of days that a log spans; None without times."""
    times = [part.arrays["time"] for part in data.splits.values() if len(part.arrays.get("time", ()))]
    if not times:
        return None
    span = (max(int(each.max()) for each in times) - min(int(each.min()) for each in times)) / DAY
    return span if span > 0 else None
