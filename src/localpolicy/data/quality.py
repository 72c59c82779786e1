"""Quality of a prepared data set: leaks and faults, measured from its arrays, a chunk at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from localpolicy.data.store import SPLITS, Prepared, Split
from localpolicy.limits import NO_FILTER, UNKNOWN_FILTER

LONG = 1000  # events of a sequence: more is rarely one person's
ORDINARY = (31_536_000_000, 4_102_444_800_000)  # ms: from 1971 to 2099

Histogram = dict[str, int]  # "3-4" -> how many


@dataclass(frozen=True)
class Quality:
    """Measures of data quality. Shares are of events unless their name says otherwise; None if a log has no times."""

    events: int
    ties: int | None  # events at the time of the one before, in the same sequence
    duplicates: int | None  # … with its item and event too
    repeats: int  # events whose item came earlier in the sequence
    overlapping: dict[str, int | None]  # held-out sequences that begin before training ends
    unseen_items: dict[str, int]  # items of a held-out split that training lacks
    unseen_events: dict[str, int]  # … and the events on them
    mean_length: float
    median_length: float
    longest: int
    long: int  # sequences of more than LONG events
    odd_times: int | None  # events before 1971 or after 2099: sentinels, or another unit
    filtered: int | None  # events shown under a filter; None if a log of lists does not state filters
    filter_unknown: int  # … whose items the log does not state
    lists: int  # lists of more than one item
    examined: list[float] | None  # position bias: examination of each place of a list; None if it cannot be estimated
    top_share: dict[str, float]  # share of events on the most popular 1 % and 10 % of items
    lengths: Histogram = field(default_factory=dict)
    popularity: Histogram = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The measures as a JSON-serialisable dict."""
        return asdict(self)


def measure(data: Prepared) -> Quality:
    """Measure a prepared data set."""
    timed = "time" in data["train"].arrays
    ties = duplicates = repeats = odd_times = 0
    counts = {name: np.zeros(data.n_items, dtype=np.int64) for name in SPLITS}
    for name, split in data.splits.items():
        for sequence, chunk in _chunks(split):
            counts[name] += np.bincount(chunk["item"], minlength=data.n_items)
            if name not in data.whole_splits:
                continue
            pairs = sequence * data.n_items + chunk["item"]
            repeats += len(pairs) - len(np.unique(pairs))
            if timed:
                same = (sequence[1:] == sequence[:-1]) & (chunk["time"][1:] == chunk["time"][:-1])
                ties += int(same.sum())
                odd_times += int(((chunk["time"] < ORDINARY[0]) | (chunk["time"] >= ORDINARY[1])).sum())
                for column in ("item", "event"):
                    same &= chunk[column][1:] == chunk[column][:-1]
                duplicates += int(same.sum())
    total = sum((counts[name] for name in data.whole_splits), np.zeros(data.n_items, dtype=np.int64))
    lengths = np.concatenate([np.diff(data[name].offsets) for name in data.whole_splits])
    held_out = SPLITS[1:]
    unseen = {name: (counts[name] > 0) & (counts["train"] == 0) for name in held_out}
    bias = data.position_bias
    return Quality(
        events=int(total.sum()),
        ties=ties if timed else None,
        duplicates=duplicates if timed else None,
        repeats=repeats,
        overlapping={name: _overlapping(data, name) if timed else None for name in held_out},
        unseen_items={name: int(unseen[name].sum()) for name in held_out},
        unseen_events={name: int(counts[name][unseen[name]].sum()) for name in held_out},
        mean_length=float(lengths.mean()),
        median_length=float(np.median(lengths)),
        longest=int(lengths.max()),
        long=int((lengths > LONG).sum()),
        odd_times=odd_times if timed else None,
        filtered=None if _silent_on_filters(data) else _count(data, lambda number: number != NO_FILTER),
        filter_unknown=_count(data, lambda number: number == UNKNOWN_FILTER),
        lists=_lists(data),
        examined=bias.examined.tolist() if bias is not None and bias.identifiable else None,
        top_share={f"{percent} %": _top_share(total, percent / 100) for percent in (1, 10)},
        lengths=histogram(lengths),
        popularity=histogram(total[total > 0]),
    )


def duplicate_events(data: Prepared) -> int:
    """Number of events equal in time, item and event to the one before in the sequence; 0 without times."""
    count = 0
    for split in data.splits.values():
        if "time" not in split.arrays:
            return 0
        for sequence, chunk in _chunks(split):
            same = sequence[1:] == sequence[:-1]
            for column in ("time", "item", "event"):
                same &= chunk[column][1:] == chunk[column][:-1]
            count += int(same.sum())
    return count


def _chunks(split: Split) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Chunks of whole sequences: each event's sequence, and the arrays."""
    for first, stop in split.chunks():
        bounds = split.offsets[first : stop + 1]
        sequence = np.repeat(np.arange(stop - first, dtype=np.int64), np.diff(bounds))
        yield sequence, {name: np.asarray(array[bounds[0] : bounds[-1]]) for name, array in split.arrays.items()}


def _lists(data: Prepared) -> int:
    """Number of lists with several items: those with an item below the first."""
    splits = [data[name] for name in data.whole_splits if "above" in data[name].arrays]
    return sum(int((chunk["above"] == 1).sum()) for split in splits for _, chunk in _chunks(split))


def _silent_on_filters(data: Prepared) -> bool:
    """Whether this is a log of lists that names no filters."""
    arrays = data["train"].arrays
    return "above" in arrays and "propensity" in arrays and "filter" not in arrays


def _count(data: Prepared, matches: Callable[[np.ndarray], np.ndarray]) -> int:
    """Number of events whose filter's number matches."""
    splits = [split for split in data.splits.values() if "filter" in split.arrays]
    return sum(int(matches(chunk["filter"]).sum()) for split in splits for _, chunk in _chunks(split))


def filter_notes(data: Prepared, split: str) -> list[str]:
    """Warnings about importance weights on this split, if the log does not state its filters."""
    if _silent_on_filters(data):
        return [
            "the log does not say which items its filters left out (no column 'filter'), so importance weights take it "
            "that every item could be shown: where some could not, values of policies are biased"
        ]
    arrays = data[split].arrays
    unknown = int((arrays["filter"] == UNKNOWN_FILTER).sum()) if "propensity" in arrays and "filter" in arrays else 0
    if not unknown:
        return []
    return [
        f"{unknown:,} of {data[split].events:,} events of the {split} split were shown under a filter whose items the "
        "log does not state (column 'filter_content'): they have no importance weight, and are left out of values"
    ]


def _overlapping(data: Prepared, name: str) -> int:
    training_ends = max(int(chunk["time"].max()) for _, chunk in _chunks(data["train"]))
    split = data[name]
    return int((split.arrays["time"][split.offsets[:-1]] <= training_ends).sum())


def _top_share(counts: np.ndarray, share: float) -> float:
    top = max(1, round(share * len(counts)))
    return float(np.sort(counts)[::-1][:top].sum() / counts.sum())


def histogram(values: np.ndarray) -> Histogram:
    """Number of values in 1, 2, 3-4, 5-8, …"""
    bins = np.ceil(np.log2(values)).astype(np.int64)
    counts: Histogram = {}
    for power, count in enumerate(np.bincount(bins)):
        low, high = 2 ** (power - 1) + 1 if power else 1, 2**power
        counts[str(high) if low >= high else f"{low}-{high}"] = int(count)
    return counts
