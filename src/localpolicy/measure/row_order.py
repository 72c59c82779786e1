"""Whether the rows of a log without times are sorted by something else, so that its sequences are no histories.

A model of sequences then predicts how the file was written, and its figures say nothing of people.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from localpolicy.data.store import CONTEXT, Prepared, Split
from localpolicy.data.times import FEWEST_STEPS, seems_sorted
from localpolicy.measure.question import question_of


def tied_share(data: Prepared) -> float:
    """Of the steps within sequences, those to a row of the very same time, which `prepare` orders by event and lot.

    What a request brought has the time of its list, and its own order.
    """
    steps = ties = 0
    for name in data.whole_splits:
        part = data[name]
        if "time" not in part.arrays:
            return 0.0
        within = _within(part) & _chosen(data, part)
        steps += int(within.sum())
        ties += int((np.diff(np.asarray(part.arrays["time"]), prepend=-1) == 0)[within].sum())
    return ties / max(steps, 1) if steps >= FEWEST_STEPS else 0.0


def sorted_by(data: Prepared) -> str | None:
    """The column, by the log's name, that the rows of each sequence are sorted by; None where times order them.

    Kinds of action are left out: a visit that ends with its purchase is in the order of time.
    """
    if "time" in data["train"].arrays:
        return None
    ids = data.catalogue["item_id"].to_numpy(zero_copy_only=False)
    asked: dict[str, Callable[[Split], np.ndarray]] = {"item_id": lambda part: _places(ids)[part.arrays["item"]]}
    if question_of(data).kind == "liking":
        asked["reward"] = lambda part: np.asarray(part.arrays["reward"])
    for ours, values_of in asked.items():
        parts = [data[name] for name in data.whole_splits]
        if seems_sorted(*_steps(parts, [values_of(part) for part in parts])):
            columns = data.manifest["settings"].get("columns", {})
            return str(columns.get(ours) or columns.get("event" if ours == "reward" else ours) or ours)
    return None


def _steps(parts: Sequence[Split], values: Sequence[np.ndarray]) -> tuple[int, float, float]:
    """Steps between rows of a sequence that differ, the share of them that goes up, and how far they reach."""
    every = np.sort(np.concatenate(values))
    steps = ups = sequences = 0
    reach = 0.0
    for part, value in zip(parts, values, strict=True):
        starts = np.asarray(part.offsets[:-1])[np.diff(part.offsets) > 1]
        ends = np.asarray(part.offsets[1:])[np.diff(part.offsets) > 1] - 1
        moved = np.diff(value, prepend=value[:1])[_within(part)]
        steps, ups = steps + int((moved != 0).sum()), ups + int((moved > 0).sum())
        first, last = (np.searchsorted(every, value[rows]) / len(every) for rows in (starts, ends))
        sequences, reach = sequences + len(starts), reach + float(np.abs(last - first).sum())
    return steps, ups / max(steps, 1), reach / max(sequences, 1)


def _within(part: Split) -> np.ndarray:
    """Rows that come after another of their sequence; places of a list are no steps."""
    within = np.ones(part.events, dtype=bool)
    within[np.asarray(part.offsets[:-1])[np.diff(part.offsets) > 0]] = False
    return within & (np.asarray(part.arrays["above"]) == 0) if "above" in part.arrays else within


def _chosen(data: Prepared, part: Split) -> np.ndarray:
    """Rows that are no context, and do not follow one."""
    chosen = np.ones(part.events, dtype=bool)
    if CONTEXT in data.events:
        context = np.flatnonzero(np.asarray(part.arrays["event"]) == data.events.index(CONTEXT))
        chosen[context] = chosen[context[context + 1 < part.events] + 1] = False
    return chosen


def _places(ids: np.ndarray) -> np.ndarray:
    """Each item's place among all, by number where ids are numbers."""
    try:
        ids = ids.astype(np.float64)
    except ValueError:
        ids = ids.astype(str)
    return np.unique(ids, return_inverse=True)[1]
