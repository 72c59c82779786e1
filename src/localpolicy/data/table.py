"""A prepared data set's events as one table again, in the log's own ids: what `prepare` would read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from localpolicy.data.store import Prepared


def events_table(data: Prepared) -> pa.Table:
    """split, sequence_id, item_id, event, reward, and timestamp, propensity, policy where the log has them."""
    return pa.concat_tables(_chunks(data))


def _chunks(data: Prepared) -> Iterator[pa.Table]:
    item_id = data.catalogue.column("item_id").combine_chunks()
    event_names = pa.array(data.events, pa.string())
    policies = pa.array(data.manifest.get("policies", []), pa.string())
    before = 0  # sequences of the splits before, where they have no ids but their numbers
    for name, split in data.splits.items():
        ids = data.sequence_ids(name) if data.has_sequence_ids else pa.array(np.arange(before, before + len(split)))
        before += len(split)
        for first, stop in split.chunks():
            bounds = split.offsets[first : stop + 1]
            arrays = {key: np.asarray(array[bounds[0] : bounds[-1]]) for key, array in split.arrays.items()}
            sequence = np.repeat(np.arange(first, stop), np.diff(bounds))
            columns: dict[str, Any] = {
                "split": pa.repeat(name, len(sequence)),
                "sequence_id": ids.take(pa.array(sequence)),
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
            yield pa.table(columns)
