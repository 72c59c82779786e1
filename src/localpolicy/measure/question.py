"""What a log can be asked: the question that is judged, and whether its rows are histories at all.

value     rewards differ and propensities were logged: what a policy earns, by importance weights
rewards   rewards differ between kinds of action, no propensities: what an answer would be worth, alone and with how
          many answers there would be (see judge.gate_answers)
liking    ratings, or a reward of many values: how well what is ranked high was liked. Never the nDCG of everything
          taken: that refuses a policy for burying what people disliked
nothing   all rewards are equal: models can be ranked, and there is nothing to improve on and no verdict
metric    whatever the log is, the rules name the figure that decides
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from localpolicy.data.store import CONTEXT, NO_ANSWER, SPLITS, Prepared, Split
from localpolicy.data.times import FEWEST_STEPS, seems_sorted
from localpolicy.measure.summary import is_rating

Kind = Literal["value", "rewards", "liking", "nothing", "metric"]


class Question(NamedTuple):
    """What is asked of a log, and why."""

    kind: Kind
    why: str


def question_of(data: Prepared, split: str = "test") -> Question:
    """What the rewards and propensities of a log allow to ask about the policies judged on `split`."""
    ranges = reward_ranges(data)
    answers = {event: span for event, span in ranges.items() if event != NO_ANSWER}
    if len({value for span in ranges.values() for value in span}) < 2:
        return Question("nothing", "all events are worth the same, so there is nothing to improve on")
    propensity = data[split].arrays.get("propensity")
    if propensity is not None and bool(np.isfinite(propensity).any()):
        return Question("value", "rewards differ and propensities were logged")
    if any(low < high for low, high in answers.values()):
        return Question("liking", "rewards differ between events of one kind, and no propensities were logged")
    if all(is_rating(event) for event in answers):
        return Question("liking", "events are ratings, and no propensities were logged")
    return Question("rewards", "kinds of action differ in reward, and no propensities were logged")


def reward_ranges(data: Prepared) -> dict[str, tuple[float, float]]:
    """The smallest and the largest reward of each event that a policy chose."""
    ranges: dict[str, tuple[float, float]] = {}
    for split in SPLITS:
        event, reward = data[split].arrays["event"], data[split].arrays["reward"]
        for code, name in enumerate(data.events):
            if name != CONTEXT and (here := np.asarray(event) == code).any():
                low, high = ranges.get(name, (np.inf, -np.inf))
                mine = reward[here]
                ranges[name] = (min(low, float(mine.min())), max(high, float(mine.max())))
    return ranges


# ---------------------------------------------------------------------- in the order of time?

# Where the rows of a log without times are sorted by something else, its sequences are no histories: a model of
# sequences then predicts how the file was written, and its figures say nothing of people.


def tied_share(data: Prepared) -> float:
    """Of the steps within sequences, those to a row of the very same time, which `prepare` orders by worth and lot.

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
