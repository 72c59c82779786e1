"""Logits with some items forbidden, such as those of a history."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from localpolicy.logits import Logits


class MaskedLogits:
    """Logits with -inf at forbidden items, which so have no probability."""

    def __init__(self, rows: Logits, row: Tensor, item: Tensor) -> None:
        self.rows = rows
        self.row, self.item = row, item  # [P] pairs

    @classmethod
    def of_lists(cls, rows: Logits, forbidden: Sequence[Sequence[int]]) -> MaskedLogits:
        """Build from one list of forbidden items per row."""
        pairs = [(row, item) for row, items in enumerate(forbidden) for item in items]
        row, item = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T
        return cls(rows, row, item)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, V): numbers of positions and items."""
        return self.rows.shape

    @property
    def most_forbidden(self) -> int:
        """Largest number of forbidden items in a row."""
        return int(self.row.bincount().max()) if len(self.row) else 0

    def chunk(self, start: int, stop: int, *, out: Tensor | None = None) -> Tensor:
        """Logits of items start:stop: [N, stop - start]."""
        chunk = changeable(self.rows.chunk(start, stop, out=out), out)
        here = (self.item >= start) & (self.item < stop)
        return chunk.index_put_((self.row[here], self.item[here] - start), chunk.new_tensor(-torch.inf))

    def at(self, items: Tensor) -> Tensor:
        """Logit of item items[n] at each position n: [N]. Callers pass allowed items only."""
        return self.rows.at(items)

    def forbids(self, items: Tensor) -> Tensor:
        """Mask of the forbidden ones among each row's items: [N, K]."""
        row, item = self.row.to(items.device), self.item.to(items.device)
        pair, place = (items[row] == item[:, None]).nonzero(as_tuple=True)
        return torch.zeros_like(items, dtype=torch.bool).index_put_(
            (row[pair], place), torch.tensor(True).to(items.device)
        )


def changeable(chunk: Tensor, out: Tensor | None) -> Tensor:
    """A chunk of logits that may be written to: `out` itself, else a copy."""
    return chunk if chunk is out else chunk.clone()
