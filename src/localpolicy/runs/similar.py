"""What a run's item rows say by themselves: items like an item, and the rows for a vector store."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from localpolicy.errors import ConfigError, DataError, nearest
from localpolicy.model.histories import index_of
from localpolicy.model.lists import names_of
from localpolicy.model.policy import Policy
from localpolicy.runs.run import Run
from localpolicy.runtime.files import whole_file
from localpolicy.runtime.frames import to_frame


def _policy(run: Run | Policy | Path | str) -> Policy:
    if isinstance(run, Policy):
        return run
    return (run if isinstance(run, Run) else Run(run)).policy()


def similar(run: Run | Policy | Path | str, items: Sequence[Hashable], k: int = 10) -> Any:
    """The k items whose rows point most nearly the same way (cosine), for each of `items`: a frame, nearest first."""
    policy = _policy(run)
    if isinstance(items, str | bytes) or not isinstance(items, Sequence | np.ndarray | pa.Array):
        items = [items]
    index, table = index_of(policy.items), policy.network.embedding.detach()
    if not 1 <= k < len(table):
        raise ConfigError(f"k must be from 1 to {len(table) - 1:,}, the number of other items; got {k}.")
    asked = list(items)
    for item in asked:
        if item not in index:
            raise DataError(f"no item {item!r}{nearest(str(item), map(str, list(index)[:10_000]))}")
    unit = torch.nn.functional.normalize(table, dim=1)
    rows = torch.tensor([index[item] for item in asked], device=table.device)
    cosine = unit[rows] @ unit.T
    cosine[torch.arange(len(rows)), rows] = -torch.inf
    best = cosine.topk(k, dim=1)
    ids, names = policy.items["item_id"].to_pylist(), names_of(policy.items)
    near = best.indices.flatten().tolist()
    columns: dict[str, Any] = {
        "item_id": [item for item in asked for _ in range(k)],
        "place": [place for _ in asked for place in range(1, k + 1)],
        "similar": [ids[number] for number in near],
        "similarity": best.values.flatten().tolist(),
    }
    if names is not None:
        columns["name"] = [names[number] for number in near]
    return to_frame(pa.table(columns))


def embeddings(run: Run | Policy | Path | str, out: Path | str | None = None) -> Any:
    """The items' rows: a frame of item_id (and name) and embedding; written as Parquet where `out` says so."""
    policy = _policy(run)
    rows = policy.network.embedding.detach().cpu().numpy()
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel(), pa.float32()), rows.shape[1])
    columns: dict[str, Any] = {"item_id": policy.items["item_id"].combine_chunks()}
    if (names := names_of(policy.items)) is not None:
        columns["name"] = pa.array(names)
    table = pa.table({**columns, "embedding": vectors})
    if out is not None:
        with whole_file(Path(out)) as partial:
            pq.write_table(table, partial)
    return to_frame(table)
