"""From an ordered stream of events to the store: sequences are kept whole across the batches' borders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from localpolicy.data.store import SPLITS
from localpolicy.data.store_writer import StoreWriter
from localpolicy.errors import DataError

Sizes = Sequence[int]  # how many sequences each split has; sequences are numbered through them


def write_events(
    store: StoreWriter,
    batches: Iterable[pa.RecordBatch],
    columns: Sequence[str],
    *,
    sizes: Sizes,
    rewards: Sequence[float],
    list_reward: str = "places",
) -> None:
    """Write events sorted by their sequence's number; a sequence that a batch breaks off waits for the next.

    `rewards` are those of the event codes, if the log does not state its own. If a list has one reward, it is written
    to the list's last row.
    """
    reward_of = np.array(rewards, dtype=np.float32)
    waiting: pa.Table | None = None
    for batch in batches:
        if not len(batch):
            continue
        rows = pa.Table.from_batches([batch])
        if waiting is not None:
            rows = pa.concat_tables([waiting, rows])
        changes = np.flatnonzero(np.diff(rows.column("sequence").to_numpy())) + 1
        starts = np.concatenate([np.zeros(1, dtype=np.int64), changes])
        last = int(starts[-1])
        _append(store, rows.slice(0, last), starts[:-1], columns, sizes, reward_of, list_reward)
        waiting = rows.slice(last)
    if waiting is not None:
        _append(store, waiting, np.zeros(1, dtype=np.int64), columns, sizes, reward_of, list_reward)


def _append(
    store: StoreWriter,
    rows: pa.Table,
    starts: np.ndarray,
    columns: Sequence[str],
    sizes: Sizes,
    reward_of: np.ndarray,
    list_reward: str,
) -> None:
    """Append whole sequences, which begin at the rows `starts`, to the splits that their numbers belong to."""
    numbers = rows.column("sequence").to_numpy()[starts]
    bounds = np.append(starts, rows.num_rows)
    borders = np.searchsorted(numbers, np.cumsum([0, *sizes]))
    for name, first, stop in zip(SPLITS, borders[:-1], borders[1:], strict=True):
        if first == stop:
            continue
        part = rows.slice(bounds[first], bounds[stop] - bounds[first])
        arrays = {column: part.column(column).to_numpy() for column in columns if column in part.column_names}
        if "reward" not in arrays:
            arrays["reward"] = reward_of[arrays["event"]]
        if "above" in columns:
            arrays["above"] = _above(part)
            if list_reward != "places":
                arrays["reward"] = _on_last_row(arrays["reward"], arrays["above"], part, list_reward)
        if "anew" in columns:
            arrays["anew"] = _begins_history(part)
            arrays["past_event"] = np.where(arrays["past_event"] < 0, arrays["event"], arrays["past_event"])
        store.splits[name].append(np.diff(bounds[first : stop + 1]), arrays)


def _above(part: pa.Table) -> np.ndarray:
    """Number of rows before each in the same list of the same sequence; lists lie together, after their history."""
    request, sequence = part.column("request").combine_chunks(), part.column("sequence").to_numpy()
    same = pc.equal(request[1:], request[:-1]).to_numpy(zero_copy_only=False)
    named = pc.not_equal(request[1:], "").to_numpy(zero_copy_only=False)
    shown = part.column("place").to_numpy()[:-1] >= 0
    goes_on = np.concatenate([[False], same & named & shown & (sequence[1:] == sequence[:-1])])
    row = np.arange(len(goes_on))
    return np.asarray(row - np.maximum.accumulate(np.where(goes_on, 0, row)))


def _on_last_row(reward: np.ndarray, above: np.ndarray, part: pa.Table, list_reward: str) -> np.ndarray:
    """Rewards [E] with the one reward of each list on its last row, and 0 on its other rows."""
    begins = np.flatnonzero(above == 0)
    ends = np.append(begins[1:], len(above)) - 1
    if list_reward == "repeated":
        list_of = np.cumsum(above == 0) - 1
        differ = np.flatnonzero(reward != reward[begins][list_of])
        if len(differ):
            name = part.column("request")[int(differ[0])].as_py()
            raise DataError(
                f"list_reward=repeated: expected one reward on all rows of a list, and request '{name}' states "
                f"{reward[begins][list_of][differ[0]]:g} and {reward[differ[0]]:g}. Where rows hold parts of it, "
                "use list_reward=sum."
            )
        total = reward[begins]
    else:
        total = np.add.reduceat(reward, begins) if len(begins) else reward
    moved = np.zeros_like(reward)
    moved[ends] = total
    return moved


def _begins_history(part: pa.Table) -> np.ndarray:
    """Mask of the rows where a sequence switches to another history: a new `context_id`; False at its first row."""
    context, sequence = part.column("context_id").combine_chunks(), part.column("sequence").to_numpy()
    other = pc.not_equal(context[1:], context[:-1]).to_numpy(zero_copy_only=False)
    named = pc.not_equal(context[1:], "").to_numpy(zero_copy_only=False)
    return np.concatenate([[False], other & named & (sequence[1:] == sequence[:-1])])


def write_ids(store: StoreWriter, batches: Iterable[pa.RecordBatch], *, sizes: Sizes) -> None:
    """Write the sequences' ids, sorted by number."""
    ends = np.cumsum(sizes)
    done = 0
    for batch in batches:
        ids = batch.column("sequence_id")
        for name, end in zip(SPLITS, ends, strict=True):
            count = int(np.clip(end - done, 0, len(ids)))
            store.splits[name].append_ids(ids.slice(0, count))
            ids, done = ids.slice(count), done + count
