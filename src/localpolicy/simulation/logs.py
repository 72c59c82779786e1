"""Log of a world as `events.parquet`, with the truth in the same folder, and the item table if the world has one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from localpolicy.runtime.folders import whole_folder
from localpolicy.simulation.events import LOGGING, Events, Progress, Tally, World
from localpolicy.simulation.truth import write_truth


def write_log(
    world: World,
    path: Path | str,
    *,
    sequences: int,
    seed: int = 0,
    interactions: bool = False,
    chunks: Iterable[Events] | None = None,
    policy: str = LOGGING,
    force: bool = False,
    progress: Progress | None = None,
) -> tuple[Tally, Tally]:
    """Write `events.parquet` and `truth/` into `path`; return counts of the shown and of the written rows.

    One row per event, sorted by sequence and time; an interaction log lacks `propensity` and `policy`. If the world has
    an item table, `items.parquet` is written, too. `chunks` replaces the logging policy's log by another one of this
    world, and `policy` names the policy that chose.
    """
    shown, written = Tally(world.events, world.n_items), Tally(world.events, world.n_items)
    schema = _schema(interactions)
    with whole_folder(Path(path), force=force) as folder:
        with pq.ParquetWriter(folder / "events.parquet", schema) as writer:
            for chunk in world.log(sequences, seed) if chunks is None else chunks:
                shown.add(chunk)
                kept = written.add(chunk.interactions(world.events) if interactions else chunk)
                writer.write_table(_table(kept, world.events, policy, schema))
                if progress is not None:
                    progress(len(chunk.sequence))
        if (items := world.item_table()) is not None:
            pq.write_table(items, folder / "items.parquet")
        log = {"sequences": sequences, "seed": seed, "interactions": interactions, "policy": policy}
        write_truth(world, folder / "truth", log=log)
    return shown, written


def _schema(interactions: bool) -> pa.Schema:
    logged = [] if interactions else [("propensity", pa.float64()), ("policy", pa.string())]
    columns = [("sequence_id", pa.int64()), ("item_id", pa.int64()), ("event", pa.string())]
    return pa.schema([*columns, ("timestamp", pa.int64()), ("reward", pa.float64()), *logged])


def _table(chunk: Events, names: list[str], policy: str, schema: pa.Schema) -> pa.Table:
    columns: dict[str, Any] = {
        "sequence_id": np.repeat(chunk.sequence, chunk.lengths),
        "item_id": chunk.item.astype(np.int64),
        "event": pa.DictionaryArray.from_arrays(chunk.event, names).cast(pa.string()),
        "timestamp": chunk.time,
        "reward": chunk.reward,
    }
    if "propensity" in schema.names:
        unknown = np.isnan(chunk.propensity)
        columns["propensity"] = pa.array(chunk.propensity, mask=unknown)
        columns["policy"] = pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(len(chunk), np.int8), mask=unknown), [policy]
        ).cast(pa.string())
    return pa.table(columns, schema=schema)
