"""A policy measured on a log with other items, or other events, than it was made from: yesterday's on today's rows.

It is read as it would serve: what it does not know is left out of its histories, and is never shown before what it
knows. So an unknown item gets e times less probability than the least likely known one (finite, so that likelihoods
and divergences stay numbers), and a position at such an item counts against the policy, ranked last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from localpolicy.catalogue.blocks import part_of
from localpolicy.catalogue.logits import Logits
from localpolicy.data.store import Prepared
from localpolicy.errors import RunError
from localpolicy.measure.scorer import Deployable, device_of
from localpolicy.model.newer_catalogue import known_history, match_items
from localpolicy.model.policy import Origin
from localpolicy.types import Batch


@dataclass(frozen=True)
class Extended:
    """Rows over V items, of which `place` [V] says where the policy's own rows have them; -1: nowhere."""

    rows: Logits
    older_index: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """(N, V)."""
        return self.rows.shape[0], len(self.older_index)

    def chunk(self, start: int, stop: int, *, out: Tensor | None = None) -> Tensor:
        """Columns start:stop."""
        own = self.rows.chunk(0, self.rows.shape[1])
        positions = self.older_index[start:stop]
        chunk = own.index_select(1, positions.clamp(min=0))
        chunk = torch.where(positions >= 0, chunk, own.amin(1, keepdim=True) - 1.0)
        return chunk if out is None else out.copy_(chunk)

    def at(self, items: Tensor) -> Tensor:
        """Row n at item items[n]."""
        return self.chunk(0, len(self.older_index)).gather(1, items[:, None]).squeeze(1)

    def part(self, start: int, stop: int) -> Extended:
        """Rows start:stop."""
        return Extended(part_of(self.rows, start, stop), self.older_index)


class OnOtherData:
    """A policy as it would serve the people of another log."""

    def __init__(self, policy: Deployable, data: Prepared) -> None:
        self.policy = policy
        self.items: pa.Table = data.catalogue
        self.origin: Origin = policy.origin._replace(events=data.events)
        device = device_of(policy)
        self.older_index = torch.from_numpy(match_items(data.catalogue, policy.items)).to(device)
        if not bool((self.older_index >= 0).any()):
            raise RunError(f"a policy and {data.path} have no item in common (matched by id).")
        known = policy.origin.events
        self.event = torch.tensor([known.index(name) if name in known else 0 for name in data.events]).to(device)

    @property
    def unknown(self) -> np.ndarray:
        """[V] whether the policy has never met an item."""
        return np.asarray((self.older_index < 0).cpu().numpy())

    def logits(self, batch: Batch) -> Logits:
        """The policy's own rows, in the other log's order."""
        batch = replace(batch, previous_event=self.event[batch.previous_event])
        known, stands_for = known_history(batch, self.older_index)
        return Extended(self.policy.logits(replace(known, scored=stands_for[batch.scored])), self.older_index)


def on_data(policy: Deployable, data: Prepared) -> Deployable:
    """The policy itself where it knows just these items and events, else as it would serve these people."""
    same_items = policy.items["item_id"].equals(data.catalogue["item_id"])
    return policy if same_items and list(policy.origin.events) == data.events else OnOtherData(policy, data)
