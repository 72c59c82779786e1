"""Split of a prepared data set: flat arrays with offsets; and all splits as one table in the log's own ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class Split:
    """Sequences of one split: `offsets` [S+1] and flat arrays [E]."""

    name: str
    offsets: np.ndarray
    arrays: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """Arrays of one sequence."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"sequence {index} of {len(self)} in split '{self.name}'")
        index %= len(self)
        start, stop = self.offsets[index], self.offsets[index + 1]
        return {name: array[start:stop] for name, array in self.arrays.items()}

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return (self[index] for index in range(len(self)))

    @cached_property
    def histories(self) -> tuple[np.ndarray, np.ndarray]:
        """First row of each history (a sequence, or its rows of one context), then E [H + 1]; its sequence [H]."""
        sequence = np.arange(len(self))
        if "anew" not in self.arrays:
            return np.asarray(self.offsets), sequence
        starts = np.union1d(self.offsets[:-1], np.flatnonzero(self.arrays["anew"]))
        return np.append(starts, self.offsets[-1]), np.searchsorted(self.offsets, starts, side="right") - 1

    @property
    def sequence(self) -> np.ndarray:
        """The sequence of each row, counted from 0."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    @property
    def events(self) -> int:
        """Number of events in the split."""
        return int(self.offsets[-1])

    def chunks(self, events: int = 1 << 20) -> Iterator[tuple[int, int]]:
        """Ranges of whole sequences with about `events` events each."""
        first = 0
        while first < len(self):
            reach = self.offsets[first] + events
            stop = max(first + 1, int(np.searchsorted(self.offsets, reach, side="right")) - 1)
            yield first, stop
            first = stop

    def to_arrow(self) -> pa.Table:
        """One row per event, with the index of its sequence."""
        return pa.table({"sequence": self.sequence, **{name: np.asarray(array) for name, array in self.arrays.items()}})


def events_table(
    splits: Mapping[str, Split], items: pa.ChunkedArray, events: Sequence[str], policies: Sequence[str], *,
    ids: Callable[[str], pa.Array] | None, only_last: bool = False,
) -> pa.Table:  # fmt: skip
    """Table with split, sequence_id, item_id, event, reward, and timestamp, propensity, policy if the log has them.

    `ids` gives the sequence ids of a split; without it sequences are numbered over all splits. With `only_last` each
    held-out sequence has its last event alone: the events before it are those of the other splits.
    """
    names = pa.array(events), pa.array(policies, pa.string())
    tables = _chunks(splits, items.combine_chunks(), *names, ids)
    return pa.concat_tables(
        table.take(pa.array(ends)) if only_last and name != "train" else table for name, ends, table in tables
    )


def _chunks(
    splits: Mapping[str, Split], item_id: pa.Array, event_names: pa.Array, policies: pa.Array,
    ids: Callable[[str], pa.Array] | None,
) -> Iterator[tuple[str, np.ndarray, pa.Table]]:  # fmt: skip
    """The split, the last row of each sequence, and the rows, chunk by chunk."""
    before = 0  # sequences of the splits before, where they have no ids but their numbers
    for name, split in splits.items():
        whose = pa.array(np.arange(before, before + len(split))) if ids is None else ids(name)
        before += len(split)
        for first, stop in split.chunks():
            bounds = split.offsets[first : stop + 1]
            arrays = {key: np.asarray(array[bounds[0] : bounds[-1]]) for key, array in split.arrays.items()}
            sequence = np.repeat(np.arange(first, stop), np.diff(bounds))
            columns: dict[str, Any] = {
                "split": pa.repeat(name, len(sequence)),
                "sequence_id": whose.take(pa.array(sequence)),
                "item_id": item_id.take(pa.array(arrays["item"])),
                "event": event_names.take(pa.array(arrays["event"])),
                "reward": arrays["reward"],
            }
            if "time" in arrays:
                columns["timestamp"] = pa.array(arrays["time"]).cast(pa.timestamp("ms"))
            if "propensity" in arrays:
                columns["propensity"] = pa.array(arrays["propensity"], from_pandas=True)
            if "policy" in arrays:
                columns["policy"] = policies.take(pa.array(arrays["policy"], mask=arrays["policy"] < 0))
            yield name, bounds[1:] - bounds[0] - 1, pa.table(columns)
