"""What a data set holds, and what a log says, in the same plain terms: readings that share nothing with `prepare`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from small_logs import lot

from localpolicy.data.store import Prepared

Events = dict[str, list[tuple[Any, ...]]]  # sequence -> (time in ms, event, item), in order


def stored(data: Prepared, *, timed: bool = True) -> Events:
    """The events of a data set; without times where it has none."""
    items, found = data.catalogue["item_id"].to_pylist(), {}
    for name, split in data.splits.items():
        for number, who in enumerate(data.sequence_ids(name).to_pylist()):
            rows = slice(*split.offsets[number : number + 2])
            wanted = ("time", "event", "item") if timed else ("event", "item")
            columns = (split.arrays[column][rows].tolist() for column in wanted)
            found[str(who)] = [(*t, data.events[e], str(items[i])) for *t, e, i in zip(*columns, strict=True)]
    return found


def in_order(
    rows: Iterable[tuple[str, str, str, int]], *, numbers: bool, events: tuple[str, ...], persons: bool = False
) -> Events:
    """Rows (sequence, item, event, ms) by sequence and time; of equal times `events` in order, then at random.

    `numbers` and `persons`: whether items, and sequences, are whole numbers.
    """
    found: Events = {}
    for who, what, event, time in rows:
        found.setdefault(who, []).append((time, event, what))

    def place(who: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
        item = int(row[2]) if numbers else row[2]
        return (row[0], events.index(row[1]), lot(int(who) if persons and numbers else who, item, row[0]), item)

    return {who: sorted(each, key=partial(place, who)) for who, each in found.items()}
