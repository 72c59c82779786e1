"""An older policy over a newer catalogue: items it never saw have probability 0, and are left out of its histories.

That is what such a policy does when it serves: it shows what it knows, and `Policy.batch` skips unknown items of a
history. So its rows over the newer catalogue are its own rows, put in the newer order, with -inf at items that came
later; and its hidden state after an unknown item is that before it. Where a window is cut off and begins with unknown
items, the known ones before the window are out of sight, and the context counts as empty.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from localpolicy.catalogue.logits import AnyHead, Head, Logits
from localpolicy.errors import RunError
from localpolicy.model.policy import Policy
from localpolicy.types import START, Batch


def match_items(newer: pa.Table, older: pa.Table) -> np.ndarray:
    """For each item of the newer catalogue, its index in the older one, or -1: matched by id, in any order."""
    ids, known = newer["item_id"].combine_chunks(), older["item_id"].combine_chunks()
    if ids.type != known.type:
        try:
            known = known.cast(ids.type)
        except pa.ArrowInvalid:
            raise RunError(f"item ids are {ids.type} here and {known.type} there: they cannot be matched.") from None
    index = pc.fill_null(pc.index_in(ids, value_set=known), -1)
    return np.asarray(index.to_numpy(zero_copy_only=False), np.int64)


class OverNewerCatalogue(Policy):
    """μ̂'s rows over `items`, of which `policy` knows some; its own network is read as it is.

    `absent` is what it has at the others. A divergence needs a finite number there: 0 · ∞ would be NaN.
    """

    def __init__(self, policy: Policy, items: pa.Table, *, absent: float = -torch.inf) -> None:
        super().__init__(policy.network, policy.origin, items)
        device = policy.network.embedding.device
        self.older_index = torch.from_numpy(match_items(items, policy.items)).to(device)
        base, values = policy.network.parts()
        self._base = self._extended(base, unknown=absent)
        self._values = None if values is None else self._extended(values, unknown=0.0)

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
    """The batch without tokens whose item is unknown, in the older catalogue's indices; and for each token of the old
    batch [M] the token of the new one that stands for its context.
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
