"""Are the rows in the order of time?

Where the rows of a log without times are sorted by something else, its sequences are no histories: a model of
sequences then predicts how the file was written, and its figures say nothing of people.
"""

from __future__ import annotations

import numpy as np

from localpolicy.data.store import CONTEXT, Prepared
from localpolicy.data.times import FEWEST_STEPS, seems_sorted
from localpolicy.judge.claims import Claim, check
from localpolicy.measure.metrics import question_of

MOST_TIED = 0.5  # of the steps within sequences


def order_check(data: Prepared) -> Claim | None:
    """Claim "cannot tell" if the log is sorted by something other than time, or mostly has tied times; else None."""
    column, tied = sorted_by(data), tied_share(data)
    if column is not None:
        why = f"the log has no times and its rows are sorted by {column}"
        remedy = "Prepare the log with its times (--columns timestamp=NAME)"
    elif tied > MOST_TIED and question_of(data).kind == "rewards":  # of other logs the order within a tie is random
        why = (
            f"{tied:.0%} of the rows that follow another have the same time, as where times are days: of these, "
            "purchases and the like are put last"
        )
        remedy = "Prepare the log with finer times"
    else:
        return None
    reason = f"{why}. A model of sequences predicts that order, and its figures say nothing of people. {remedy}"
    return check("order", "cannot tell", reason, plain="the order of the rows is not that of time")


def tied_share(data: Prepared) -> float:
    """Share of steps within sequences between rows of equal time; `prepare` orders those by reward and hash.

    What a request brought has the time of its list, and its own order.
    """
    if "time" not in data["train"].arrays:
        return 0.0
    counted = _within(data)
    if CONTEXT in data.events:  # neither a row of context nor the one after it
        context = _column(data, "event") == data.events.index(CONTEXT)
        counted &= ~context & ~np.roll(context, 1)
    ties = np.diff(_column(data, "time"), prepend=-1)[counted] == 0
    return float(ties.mean()) if len(ties) >= FEWEST_STEPS else 0.0


def sorted_by(data: Prepared) -> str | None:
    """Name of the log's column that sorts the rows of each sequence; None if times order them, or nothing does.

    Kinds of action are left out: a visit that ends with its purchase is in the order of time.
    """
    if "time" in data["train"].arrays:
        return None
    asked = {"item_id": _places(data)[_column(data, "item")]}
    if question_of(data).kind == "liking":
        asked["reward"] = _column(data, "reward")
    for ours, values in asked.items():
        if seems_sorted(*_steps(values, data)):
            columns = data.manifest["settings"].get("columns", {})
            return str(columns.get(ours) or columns.get("event" if ours == "reward" else ours) or ours)
    return None


def _steps(values: np.ndarray, data: Prepared) -> tuple[int, float, float]:
    """Number of steps between unequal rows of a sequence, share of rises among them, and mean range they cross.

    Of each list its first row stands for it: the order of alternatives in a list is no order of time.
    """
    first = np.zeros(len(values), dtype=bool)
    first[_begins(data)] = True
    if "above" in data["train"].arrays:
        heads = (_column(data, "above") == 0) | first
        values, first = values[heads], first[heads]
    moved = np.diff(values, prepend=values[:1])[~first]
    steps, ups = int((moved != 0).sum()), int((moved > 0).sum())
    places, begins = np.searchsorted(np.sort(values), values) / len(values), np.flatnonzero(first)
    ends = np.append(begins[1:], len(values)) - 1
    reach = np.abs(places[ends] - places[begins])[ends > begins]
    return steps, ups / max(steps, 1), float(reach.mean()) if len(reach) else 0.0


def _column(data: Prepared, name: str) -> np.ndarray:
    """Column `name` of all splits, each row once."""
    return np.concatenate([data[split].arrays[name] for split in data.whole_splits])


def _begins(data: Prepared) -> np.ndarray:
    """Index of the first row of each sequence."""
    lengths = np.concatenate([np.diff(data[split].offsets) for split in data.whole_splits])
    return np.asarray((np.cumsum(lengths) - lengths)[lengths > 0])


def _within(data: Prepared) -> np.ndarray:
    """Mask of the rows that follow another row of their sequence; list places below the first are left out."""
    within = np.ones(len(_column(data, "item")), dtype=bool)
    within[_begins(data)] = False
    return within & (_column(data, "above") == 0) if "above" in data["train"].arrays else within


def _places(data: Prepared) -> np.ndarray:
    """Rank of each item among all by its id, as a number if all ids are numbers."""
    ids = data.catalogue["item_id"].to_numpy(zero_copy_only=False)
    try:
        ids = ids.astype(np.float64)
    except ValueError:
        ids = ids.astype(str)
    return np.unique(ids, return_inverse=True)[1]
