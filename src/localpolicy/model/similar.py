"""Item embeddings of a policy: similar items, and a table for a vector store."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from localpolicy.errors import ConfigError, DataError, nearest
from localpolicy.model.histories import index_of
from localpolicy.model.lists import names_of
from localpolicy.model.policy import Policy
from localpolicy.runtime.files import whole_file
from localpolicy.runtime.frames import to_frame


def _ids(items: Any) -> list[Any]:
    """The ids as a list, from any kind of list or from a single id."""
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        return [items]
    return list(items.tolist() if hasattr(items, "tolist") else items)


def similar_items(policy: Policy, items: Iterable[Hashable] | Hashable, k: int = 10) -> Any:
    """The k items of the largest cosine with each of `items`: a frame, nearest first."""
    index, table = index_of(policy.items), policy.network.embedding.detach()
    if not isinstance(k, int) or not 1 <= k < len(table):
        raise ConfigError(f"k must be a whole number from 1 to {len(table) - 1:,}, the number of other items; got {k}.")
    asked = _ids(items)
    for item in asked:
        if not isinstance(item, Hashable) or item not in index:
            one = next(iter(index))
            like = f": ids are of type {type(one).__name__}, such as {one!r}"
            same = isinstance(item, type(one))
            raise DataError(f"no item {item!r}{nearest(str(item), map(str, list(index)[:10_000])) if same else like}")
    unit = torch.nn.functional.normalize(table, dim=1)
    rows = torch.tensor([index[item] for item in asked], dtype=torch.long, device=table.device)
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


def embedding_table(policy: Policy, out: Path | str | None = None) -> Any:
    """Frame of item_id, name if there is one, and embedding; with `out` as a Parquet file too."""
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
