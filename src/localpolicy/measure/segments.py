"""Groups of positions: by what came of them, and by what is known before they are scored."""

from __future__ import annotations

import numpy as np

from localpolicy.data.store import NO_ANSWER
from localpolicy.measure.score import Scores

WHATEVER_EVENT = ("all", "repeat", "new")  # groups that every log has
HISTORY = (5, 10, 15)  # actions before a position, at most
HEAD, MIDDLE = 1 / 3, 2 / 3  # shares of all events: the most popular items that make up the first third are the head


def is_rating(event: str) -> bool:
    """Whether an event is a rating (its name is a number): tables leave these out, there are too many."""
    try:
        float(event)
    except ValueError:
        return False
    return True


def answered(scores: Scores) -> np.ndarray:
    """Positions that someone answered: all of them, where a log holds only what users did."""
    if NO_ANSWER not in scores.events:
        return np.ones(len(scores), dtype=bool)
    return np.asarray(scores.event != scores.events.index(NO_ANSWER))


def groups(scores: Scores) -> dict[str, np.ndarray]:
    """Which positions a ranking metric averages over: each event that answers, all of these, repeats and new."""
    masks = {}
    for code, name in enumerate(scores.events):
        here = scores.event == code
        if name != NO_ANSWER and here.any():
            masks[name] = here
    every = answered(scores)
    others = (every, every & scores.repeat, every & ~scores.repeat)
    return masks | dict(zip(WHATEVER_EVENT, others, strict=True))


def segments(scores: Scores, counts: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Which positions each segment holds: by history length, by popularity of the item taken, repeat or new.

    `counts` [V] says how popular each item is; without it there are no segments by popularity.
    """
    masks = bins("history", scores.history, HISTORY)
    if counts is not None:
        for name, band in popularity_bands(counts).items():
            masks[f"popularity {name}"] = band[scores.item]
    masks |= {"repeat": scores.repeat, "new": ~scores.repeat}
    return {name: here for name, here in masks.items() if here.any()}


def bins(name: str, values: np.ndarray, bounds: tuple[int, ...]) -> dict[str, np.ndarray]:
    """≤ b_1, b_1+1 to b_2, ..., > b_last."""
    low: float = -np.inf
    masks = {}
    for bound in bounds:
        label = f"{name} ≤ {bound}" if low == -np.inf else f"{name} {int(low) + 1}-{bound}"
        masks[label] = (values > low) & (values <= bound)
        low = bound
    return {**masks, f"{name} > {bounds[-1]}": values > low}


def popularity_bands(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Items [V] in three bands of equal weight: few in the head, many in the tail."""
    order = np.argsort(-counts, kind="stable")
    reached = np.empty(len(counts))
    # The share of events before an item, so that the most popular item is in the head however popular it is.
    reached[order] = (np.cumsum(counts[order]) - counts[order]) / max(counts.sum(), 1)
    return {"head": reached < HEAD, "middle": (reached >= HEAD) & (reached < MIDDLE), "tail": reached >= MIDDLE}
