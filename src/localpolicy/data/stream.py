"""From an ordered stream of events to the store: sequences are cut whole, whatever the batches' borders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from localpolicy.data.store import SPLITS, StoreWriter


def write_sequences(
    store: StoreWriter, batches: Iterable[pa.RecordBatch], columns: Sequence[str], *, rewards: Sequence[float]
) -> None:
    """Write events sorted by split, then sequence; a sequence that a batch breaks off waits for the next.

    `rewards` are those of the event codes, where the log does not state its own.
    """
    worth = np.array(rewards, dtype=np.float32)
    waiting: pa.Table | None = None
    for batch in batches:
        if not len(batch):
            continue
        piece = pa.Table.from_batches([batch])
        if waiting is not None:
            piece = pa.concat_tables([waiting, piece])
        starts = _starts(piece.column("sequence_id"))
        last = int(starts[-1])
        _append(store, piece.slice(0, last), starts[:-1], columns, worth)
        waiting = piece.slice(last)
    if waiting is not None:
        _append(store, waiting, np.zeros(1, dtype=np.int64), columns, worth)


def _starts(ids: pa.ChunkedArray) -> np.ndarray:
    """Where a new sequence begins."""
    ids = ids.combine_chunks()
    changes = pc.not_equal(ids.slice(1), ids.slice(0, len(ids) - 1)).to_numpy(zero_copy_only=False)
    return np.concatenate([np.zeros(1, dtype=np.int64), np.flatnonzero(changes) + 1])


def _append(store: StoreWriter, piece: pa.Table, starts: np.ndarray, columns: Sequence[str], worth: np.ndarray) -> None:
    """Hand whole sequences to their splits."""
    if not len(starts):
        return
    split = piece.column("split").to_numpy()[starts]
    bounds = np.append(starts, piece.num_rows)
    for number, name in enumerate(SPLITS):
        first, stop = np.searchsorted(split, [number, number + 1])
        if first == stop:
            continue
        part = piece.slice(bounds[first], bounds[stop] - bounds[first])
        arrays = {column: part.column(column).to_numpy() for column in columns if column in part.column_names}
        if "reward" not in arrays:
            arrays["reward"] = worth[arrays["event"]]
        ids = part.column("sequence_id").combine_chunks().take(pa.array(bounds[first:stop] - bounds[first]))
        store.splits[name].append(np.diff(bounds[first : stop + 1]), arrays, sequence_id=ids)
