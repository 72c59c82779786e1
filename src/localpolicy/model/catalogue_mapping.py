"""Policies read through another catalogue: items they never saw have probability 0 and are left out of histories.

So does such a policy when it serves: it shows items it knows, and `Policy.batch` skips unknown items of a history. Its
logits over the newer catalogue are its own, in the newer order, with -inf at items that came later; and its hidden
state after an unknown item is the one before it. If a window is cut off and begins with unknown items, the known ones
before the window are out of sight, and the context counts as empty.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from localpolicy.catalogue.blocks import part_of
from localpolicy.data.store import Prepared
from localpolicy.errors import RunError
from localpolicy.logits import AnyHead, Head, Logits
from localpolicy.model.deployable import Deployable, Origin
from localpolicy.model.histories import LONGEST
from localpolicy.model.policy import Policy
from localpolicy.model.towers import Towers
from localpolicy.types import START, Batch

NOWHERE = 1e4  # -logit of an item that is never shown, where ∞ cannot stand


def match_items(newer: pa.Table, older: pa.Table) -> np.ndarray:
    """Index in the older catalogue of each item of the newer one, or -1: matched by id, in any order."""
    ids, known = newer["item_id"].combine_chunks(), older["item_id"].combine_chunks()
    if ids.type != known.type:
        try:
            known = known.cast(ids.type)
        except pa.ArrowInvalid:
            raise RunError(f"item ids are {ids.type} here and {known.type} there: they cannot be matched.") from None
    index = pc.fill_null(pc.index_in(ids, value_set=known), -1)
    return np.asarray(index.to_numpy(zero_copy_only=False), np.int64)


class RemappedLoggingPolicy(Policy):
    """Logits of μ̂ over the catalogue `items`, some of which `policy` knows; its network is read as it is.

    `absent` is the logit of the other items. A divergence needs a finite number there: 0 · ∞ would be NaN.
    """

    def __init__(self, policy: Policy, items: pa.Table, *, absent: float = -torch.inf) -> None:
        super().__init__(policy.network, policy.origin, items)
        device = policy.network.embedding.device
        self.older_index = torch.from_numpy(match_items(items, policy.items)).to(device)
        base, values = policy.network.parts()
        ends = isinstance(policy.network, Towers) and policy.network.ends
        absent = max(absent, -NOWHERE) if ends else absent  # the dial multiplies both logits: ∞ would become NaN
        self._base = self._extended(base, unknown=absent)
        self._values = None if values is None else self._extended(values, unknown=absent if ends else 0.0)

    def _extended(self, head: AnyHead, *, unknown: float) -> Head:
        weight, bias, known = head.weight.detach(), head.bias, self.older_index >= 0
        extended = weight.new_zeros(len(known), weight.shape[1])
        extended[known] = weight[self.older_index[known]]
        constant = weight.new_full((len(known),), unknown)
        constant[known] = 0.0 if bias is None else bias.detach()[self.older_index[known]]
        return Head(extended, constant)

    @torch.no_grad()
    def rows_at(self, batch: Batch, tokens: Tensor) -> Logits:
        """Unnormalised log μ̂(·|x) over the newer catalogue at these tokens."""
        known, before = known_history(batch, self.older_index)
        tokens = tokens if batch.context is None else batch.context[tokens]
        hidden = self.network.hidden_without_dropout(known)[before[tokens]]
        values = None if self._values is None else self._values.to(hidden.dtype)
        return self.network.policy(hidden, parts=(self._base.to(hidden.dtype), values))


def known_history(batch: Batch, older_index: Tensor) -> tuple[Batch, Tensor]:
    """Batch without unknown items, in the older catalogue's indices; and new token indices by old ones.

    The second result [M] has, for each token of the old batch, the token of the new one with its context.
    """
    first = batch.column == 0
    begins = batch.previous_item == START
    older = older_index[batch.previous_item.clamp(min=0)]
    unknown = ~begins & (older < 0)
    kept = ~unknown | first  # a sequence without any token has no context: its first one becomes the empty one
    number = kept.long().cumsum(0) - 1  # the last kept token at or before each
    at = kept.nonzero().squeeze(1)
    row = batch.row[at]
    begin_of_row = number[first]
    known = replace(
        batch,
        row=row,
        column=torch.arange(len(at), device=row.device) - begin_of_row[row],
        previous_item=torch.where(begins | unknown, START, older)[at],
        previous_event=torch.where(unknown, 0, batch.previous_event)[at],
        item=batch.item[at],
        event=batch.event[at],
        reward=batch.reward[at],
        history=batch.history[at],
        scored=at[:0],
        propensity=None,
        list_reward=None,
        context=None,
        filter=None,
        ends_only=False,
    )
    return known, number


# ---------------------------------------------------------------------- on another log


@dataclass(frozen=True)
class Extended:
    """Logits over V items, mapped from a policy's own by `older_index` [V]; -1 for items that it lacks."""

    rows: Logits
    older_index: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """(N, V): numbers of positions and items."""
        return self.rows.shape[0], len(self.older_index)

    def chunk(self, start: int, stop: int, *, out: Tensor | None = None) -> Tensor:
        """Logits of items start:stop: [N, stop - start]."""
        own = self.rows.chunk(0, self.rows.shape[1])
        positions = self.older_index[start:stop]
        chunk = own.index_select(1, positions.clamp(min=0))
        chunk = torch.where(positions >= 0, chunk, own.amin(1, keepdim=True) - 1.0)
        return chunk if out is None else out.copy_(chunk)

    def at(self, items: Tensor) -> Tensor:
        """Logit of item items[n] at each position n: [N]."""
        return self.chunk(0, len(self.older_index)).gather(1, items[:, None]).squeeze(1)

    def part(self, start: int, stop: int) -> Extended:
        """Logits of positions start:stop."""
        return Extended(part_of(self.rows, start, stop), self.older_index)


class RemappedPolicy:
    """A policy for the people, items and events of another log."""

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
        """Mask of the items that the policy has never met: [V]."""
        return np.asarray((self.older_index < 0).cpu().numpy())

    def logits(self, batch: Batch) -> Logits:
        """The policy's own logits, in the other log's order."""
        batch = replace(batch, previous_event=self.event[batch.previous_event])
        known, stands_for = known_history(batch, self.older_index)
        tokens = batch.scored if batch.context is None else batch.context[batch.scored]
        return Extended(self.policy.logits(replace(known, scored=stands_for[tokens])), self.older_index)


def remap(policy: Deployable, data: Prepared) -> Deployable:
    """Policy for another log: itself if items and events are equal, else mapped to the log's."""
    same_items = policy.items["item_id"].equals(data.catalogue["item_id"])
    return policy if same_items and list(policy.origin.events) == data.events else RemappedPolicy(policy, data)


def context_length(policy: Deployable) -> int:
    """Length of the longest context that this policy reads, in actions."""
    inner = getattr(policy, "policy", policy)  # one that is read through another's catalogue
    return inner.network.length if isinstance(inner, Policy) else LONGEST


def device_of(*policies: Deployable) -> torch.device:
    """Device of the first network among these policies; the CPU if none has a network."""
    inner = (getattr(policy, "policy", policy) for policy in policies)  # one that is read through another's catalogue
    devices = (policy.network.embedding.device for policy in inner if isinstance(policy, Policy))
    return next(devices, torch.device("cpu"))
