"""New items for a policy without training: old items keep their rows, new ones are mixtures of similar ones.

Together new items have at most `model.new_items` times the mass of the others, in every context (see
`data.item_mixtures`). That holds for a trained policy, for μ̂ and for a tilt by a critic. If a tilt is capped, the cap
of its neighbours does not bind a new item, so that it may exceed the bound by what the cap took from these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from localpolicy.data.item_features import ItemFeatures, kinds_of, learnt_columns
from localpolicy.data.item_mixtures import Mixtures, by_frequency, ceilings, mixtures
from localpolicy.data.item_table import read_item_table, refuse_other_lengths
from localpolicy.errors import DataError, RunError
from localpolicy.model.heads import SOFTMAX_HEADS
from localpolicy.model.item_embeddings import mixed
from localpolicy.model.network import Network
from localpolicy.model.towers import Towers


class Extension:
    """Extension of a policy with the catalogue `items` and this network by the new items of a table."""

    def __init__(self, items: pa.Table, network: Network | Towers, given: Any) -> None:
        kinds, names = kinds_of(items), [name for name in network.config.features if name in kinds_of(items)]
        if not names:
            if columns := learnt_columns(items):
                why = "does not use the columns of its item table"
                remedy = f"Train with --set 'model.features={json.dumps(columns)}'"
            else:
                why, remedy = "was trained without what is known of items", "Prepare its log with --items, train"
            raise RunError(
                f"this policy {why}, so it cannot say what a new item is like. {remedy}, and extend that run."
            )
        if network.config.shuffle_features is not None:
            raise RunError(
                "this policy was trained on a shuffled item table (model.shuffle_features), as a control: extend a run "
                "that was trained on the table as it is."
            )
        ids = items["item_id"].combine_chunks()
        table, label = read_item_table(
            given, kinds=kinds, id_column=None, integer_ids=pa.types.is_integer(ids.type), partly=True
        )
        refuse_other_lengths(items, table, label)
        new = table.filter(pa.compute.invert(pa.compute.is_in(table["item_id"].combine_chunks().cast(ids.type), ids)))
        self.known_already = len(table) - len(new)
        if not len(new):
            raise DataError(f"all {len(table):,} items of the table are in the policy's catalogue already.")
        self.items = _appended(items, new, kinds)
        self.n_new = len(new)
        counts = self.items["count"].to_numpy()
        fitted = ItemFeatures.fit(items, names, counts[: len(items)] > 0)
        encoded = fitted.encode(self.items)
        known = by_frequency(counts, counts > 0)
        self.made: Mixtures = mixtures(encoded, np.arange(len(items), len(self.items)), known)
        self.ceilings = ceilings(self.made, len(items), bound=network.config.new_items)

    def state(self, network: Network | Towers, learnt: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights of the extended network; `learnt` holds the saved weights of features."""
        state = dict(network.state_dict())
        critics = [f"critics.{number}." for number in range(len(network.towers) - 1)]
        prefixes = [""] if isinstance(network, Network) else ["logging.", *critics]
        near = torch.from_numpy(self.made.near)
        for prefix, tower in zip(prefixes, network.towers, strict=True):
            rise = float(learnt[f"{prefix}features.rise"]) if f"{prefix}features.rise" in learnt else 0.0
            log_weight = torch.from_numpy(np.minimum(self.ceilings, rise))
            rows: dict[int, Tensor] = {}  # a tied head is the embedding, and stays it
            for name in sorted(tower.tables):
                table = state[f"{prefix}{name}"].cpu()
                if table.data_ptr() not in rows:
                    wide = table if table.ndim == 2 else table[:, None]
                    added = mixed(wide, near, torch.from_numpy(self.made.share).to(wide))
                    added = added if table.ndim == 2 else added.squeeze(1)
                    if name.endswith(".bias") and name.split(".")[1] in SOFTMAX_HEADS:
                        added = added + log_weight.to(added)
                    rows[table.data_ptr()] = torch.cat([table, added])
                state[f"{prefix}{name}"] = rows[table.data_ptr()]
        return state

    def described(self, made: Mapping[str, Any]) -> dict[str, Any]:
        """Description of the extended network, for `build`."""
        wider = {**made, "items": len(self.items)}
        if "critics" in made:
            wider["critics"] = [{**critic, "items": len(self.items)} for critic in made["critics"]]
        return wider


def _appended(items: pa.Table, new: pa.Table, kinds: Mapping[str, str]) -> pa.Table:
    """Catalogue with the new items appended, which have no events."""
    columns = {
        "index": pa.array(np.arange(len(items), len(items) + len(new)), items.schema.field("index").type),
        "item_id": new["item_id"].combine_chunks().cast(items.schema.field("item_id").type),
        "count": pa.array(np.zeros(len(new)), items.schema.field("count").type),
    }
    for name in kinds:
        kind = items.schema.field(name).type
        columns[name] = new[name].combine_chunks().cast(kind) if name in new.column_names else pa.nulls(len(new), kind)
    rows = pa.table([columns[field.name] for field in items.schema], schema=items.schema)
    return pa.concat_tables([items, rows])
