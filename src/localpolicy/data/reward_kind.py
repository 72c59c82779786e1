"""Kind of a reward column: opinions, amounts of a sale, or measures of what people did.

opinion   what somebody thinks of an item, stated on every row: stars, grades, thumbs. Asked: how well is what is ranked
          first liked?
amount    what a sale brought: a price, a margin, a quantity. Asked: how much does a decision bring? A dear item ranked
          first is no gain by itself, and rows that are no sale bring nothing
measure   how long or how far: seconds, shares, counts of a session

The user's word decides (`reward_kind` of `prepare`), then the column's name, then the numbers themselves. The test
split has no say: the question must not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import numpy as np

from localpolicy.data.column_names import FEW_STARS, RATINGS, plain
from localpolicy.data.rewards import is_rating
from localpolicy.data.store import CONTEXT, NO_ANSWER, SPLITS, Prepared

Kind = Literal["opinion", "amount", "measure"]

KNOWN_SPLITS = SPLITS[:2]  # all splits but the test split
ROWS = 200_000  # most rows used of each split, evenly spaced
OPINIONS = (*RATINGS, "score", "satisfaction", "thumb", "like", "opinion", "nota", "note", "bewertung")
AMOUNTS = (  # parts of a column's name
    "price", "amount", "revenue", "sales", "margin", "profit", "gmv", "spend", "spent", "paid", "payment", "turnover",
    "quantity", "qty", "units", "umsatz", "preis", "betrag", "menge", "montant", "prix", "importe", "precio", "prezzo",
)  # fmt: skip
MEASURES = (
    "dwell", "duration", "watch", "play", "listen", "second", "minute", "completion", "progress", "ratio", "time",
    "scroll", "read",
)  # fmt: skip
SALES = (  # parts of an event's name
    "purchase", "buy", "bought", "order", "sale", "sold", "transaction", "checkout", "payment", "paid", "kauf", "achat",
    "compra",
)  # fmt: skip


class RewardKind(NamedTuple):
    """Kind of a log's rewards (such as amounts), how it was determined, and the events that carry them."""

    kind: Kind
    why: str
    column: str  # the log's name of the column
    events: tuple[str, ...]  # events whose rewards differ from row to row

    @property
    def sales(self) -> tuple[str, ...]:
        """Names of the events with a sale if rewards are amounts: those named like sales, or else all events."""
        return sale_events(self.events)


def sale_events(events: Iterable[str]) -> tuple[str, ...]:
    """Events that are named like sales; all of them if none is."""
    events = tuple(events)
    return tuple(event for event in events if _named(event, SALES)) or events


def unpaid_events(events: Iterable[str], column: str, stated: str) -> tuple[str, ...]:
    """Events whose rows have reward 0 because the column holds amounts of sales; none without a sale event.

    A view that states the price of its item has earned nothing. `stated` is `reward_kind` of `prepare`.
    """
    kind = (_by_name(column) or ("",))[0] if stated == "auto" else stated
    events = tuple(events)
    others = tuple(event for event in events if not _named(event, SALES))
    return others if kind == "amount" and len(others) < len(events) else ()


def reward_kind(data: Prepared) -> RewardKind | None:
    """Kind of a log's rewards; None if they only encode the kind of action."""
    ranges = {event: span for event, span in reward_ranges(data).items() if event != NO_ANSWER}
    varying = tuple(event for event, (low, high) in ranges.items() if low < high)
    rated = bool(ranges) and all(map(is_rating, ranges))
    if not varying and not rated:
        return None
    settings = data.manifest["settings"]
    columns, stated = settings.get("columns", {}), settings.get("reward_kind", "auto")
    column = str(columns.get("event" if rated else "reward", "reward"))
    if stated != "auto":
        return RewardKind(stated, "as reward_kind says", column, varying)
    if rated:
        return RewardKind("opinion", "the events are ratings", column, tuple(ranges))
    kind, why = _by_name(column) or _by_events(ranges) or _by_numbers(*_rows(data))
    if kind == "opinion" and len(varying) < len(ranges):
        others = ", ".join(sorted({*ranges} - {*varying}))
        kind, why = "measure", f"{why}, but rows of {others} hold none"
    return RewardKind(kind, why, column, varying)


def reward_ranges(data: Prepared) -> dict[str, tuple[float, float]]:
    """Smallest and largest reward of each event that a policy chose, by training and validation."""
    ranges: dict[str, tuple[float, float]] = {}
    for split in KNOWN_SPLITS:
        event, reward = data[split].arrays["event"], data[split].arrays["reward"]
        for code, name in enumerate(data.events):
            if name != CONTEXT and (here := np.asarray(event) == code).any():
                low, high = ranges.get(name, (np.inf, -np.inf))
                mine = reward[here]
                ranges[name] = (min(low, float(mine.min())), max(high, float(mine.max())))
    return ranges


def _by_name(column: str) -> tuple[Kind, str] | None:
    """Kind of reward that a column of this name holds, or None."""
    why = f"the column is called {column}"
    if plain(column) in OPINIONS:
        return "opinion", why
    if _named(column, AMOUNTS):
        return "amount", why
    return ("measure", why) if _named(column, MEASURES) else None


def _by_events(ranges: Mapping[str, tuple[float, float]]) -> tuple[Kind, str] | None:
    """Kind "amount" if only sales earn anything while other events earn nothing, else None."""
    earning = [event for event, span in ranges.items() if span != (0.0, 0.0)]
    sales = [event for event in earning if _named(event, SALES)]
    if sales and sales == earning and len(ranges) > len(earning):
        return "amount", f"only rows of {', '.join(sales)} earn anything"
    return None


def _by_numbers(item: np.ndarray, reward: np.ndarray) -> tuple[Kind, str]:
    """Kind of reward by the distribution of the numbers, over rows with an answer."""
    values, counts = np.unique(reward, return_counts=True)
    steps = np.diff(values)
    in_steps = steps / steps.min(initial=np.inf)
    even = len(values) <= FEW_STARS and np.allclose(in_steps, np.round(in_steps), atol=1e-3)
    whole = bool(np.allclose(values, np.round(values)))
    if whole and values[0] == 1 and len(values) > 2 and (np.diff(counts) <= 0)[:2].all():
        return "amount", "whole numbers from 1 on, the more the rarer: a quantity"
    if even:
        return "opinion", f"{len(values)} different numbers at even steps"
    if values[0] > 0 and (share := _share_of_items(item, np.log(reward))) > 0.5:
        return "amount", f"{share:.0%} of the numbers' variance lies between items: a price"
    return "measure", "numbers of many values that differ from person to person"


def _share_of_items(item: np.ndarray, values: np.ndarray) -> float:
    """Share of the variance that lies between items, of those with two rows or more; 0 if there are none."""
    _, index, counts = np.unique(item, return_inverse=True, return_counts=True)
    kept = counts[index] > 1
    if not kept.any() or not values[kept].var() > 0:
        return 0.0
    index, values = index[kept], values[kept]
    means = np.bincount(index, weights=values) / np.maximum(np.bincount(index), 1)
    lost = float(((values - means[index]) ** 2).sum()) / max(len(values) - len(np.unique(index)), 1)
    return max(0.0, 1 - lost / float(values.var(ddof=1)))


def _rows(data: Prepared) -> tuple[np.ndarray, np.ndarray]:
    """Items and rewards of answered rows, evenly spaced over the splits."""
    silent = [code for code, name in enumerate(data.events) if name in (CONTEXT, NO_ANSWER)]
    items, rewards = [], []
    for split in KNOWN_SPLITS:
        arrays = data[split].arrays
        step = max(1, len(arrays["item"]) // ROWS)
        counted = ~np.isin(arrays["event"][::step], silent)
        items.append(arrays["item"][::step][counted])
        rewards.append(arrays["reward"][::step][counted].astype(np.float64))
    return np.concatenate(items), np.concatenate(rewards)


def _named(name: str, parts: Iterable[str]) -> bool:
    return any(part in plain(name) for part in parts)
