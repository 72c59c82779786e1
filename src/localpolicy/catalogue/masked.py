"""Logits of which some items may not be shown: those of a history, say."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from localpolicy.logits import Logits


class MaskedLogits:
    """Logits with some items forbidden: they get -inf, so no probability."""

    def __init__(self, rows: Logits, row: Tensor, item: Tensor) -> None:
        self.rows = rows
        self.row, self.item = row, item  # [P] pairs

    @classmethod
    def of_lists(cls, rows: Logits, forbidden: Sequence[Sequence[int]]) -> MaskedLogits:
        """Of each row its own list."""
        pairs = [(row, item) for row, items in enumerate(forbidden) for item in items]
        row, item = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T
        return cls(rows, row, item)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, V)."""
        return self.rows.shape

    @property
    def most_forbidden(self) -> int:
        """At most so many items of a row are forbidden."""
        return int(self.row.bincount().max()) if len(self.row) else 0

    def chunk(self, start: int, stop: int, *, out: Tensor | None = None) -> Tensor:
        """Columns start:stop."""
        chunk = changeable(self.rows.chunk(start, stop, out=out), out)
        here = (self.item >= start) & (self.item < stop)
        return chunk.index_put_((self.row[here], self.item[here] - start), chunk.new_tensor(-torch.inf))

    def at(self, items: Tensor) -> Tensor:
        """Row n at item items[n]; only asked for items that are allowed."""
        return self.rows.at(items)

    def forbids(self, items: Tensor) -> Tensor:
        """Which of each row's items [N, K] are forbidden."""
        row, item = self.row.to(items.device), self.item.to(items.device)
        pair, place = (items[row] == item[:, None]).nonzero(as_tuple=True)
        return torch.zeros_like(items, dtype=torch.bool).index_put_(
            (row[pair], place), torch.tensor(True).to(items.device)
        )


def changeable(chunk: Tensor, out: Tensor | None) -> Tensor:
    """A chunk that may be changed: rows that were formed already hand out a view of themselves."""
    return chunk if chunk is out else chunk.clone()
