"""Logits that are equal at every position but for a few items: of neighbours, recorded lists, popularity."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from localpolicy.types import Batch


class SparseLogits(NamedTuple):
    """base[a], and `value` at the (row, item) pairs. Pairs are sorted by row, and none occurs twice."""

    base: Tensor  # [V]
    rows: int  # N
    row: Tensor  # [P]
    item: Tensor  # [P]
    value: Tensor  # [P]

    @property
    def shape(self) -> tuple[int, int]:
        """(N, V): numbers of positions and items."""
        return self.rows, len(self.base)

    def chunk(self, start: int, stop: int, *, out: Tensor | None = None) -> Tensor:
        """Logits of items start:stop: [N, stop - start]."""
        common = self.base[start:stop].expand(self.rows, -1)
        chunk = common.clone() if out is None else out.copy_(common)
        here = (self.item >= start) & (self.item < stop)
        chunk[self.row[here], self.item[here] - start] = self.value[here]
        return chunk

    def at(self, items: Tensor) -> Tensor:
        """Logit of item items[n] at each position n: [N]."""
        logits = self.base[items].clone()
        mine = self.item == items[self.row]
        logits[self.row[mine]] = self.value[mine]
        return logits

    def part(self, start: int, stop: int) -> SparseLogits:
        """Logits of positions start:stop."""
        first, last = torch.searchsorted(self.row, torch.tensor([start, stop], device=self.row.device)).tolist()
        return SparseLogits(
            self.base, stop - start, self.row[first:last] - start, self.item[first:last], self.value[first:last]
        )

    @classmethod
    def constant(cls, base: Tensor, batch: Batch) -> SparseLogits:
        """Equal logits at every position of a batch."""
        base = base.to(batch.row.device)
        none = torch.empty(0, dtype=torch.long, device=base.device)
        return cls(base, len(batch.scored), none, none, base.new_empty(0))
