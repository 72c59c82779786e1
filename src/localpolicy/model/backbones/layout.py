"""Positions of a batch's flat tokens in its sequences, and the conversion to a padded block and back.

Linear layers run on flat tokens, so padding costs them nothing; only operations that mix steps need a block. Tokens are
left-aligned: padding comes after a sequence's end, where nothing causal can see it. It holds zeros, since a non-finite
number there would reach gradients even through a mask.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from localpolicy.types import Batch


class Layout(NamedTuple):
    """Positions of flat tokens: token m is step column[m] of sequence row[m]."""

    row: Tensor  # [M]
    column: Tensor  # [M]
    rows: int  # B
    columns: int  # T, the longest window of this batch
    wanted: Tensor | None = None  # tokens whose hidden states are read; None: all
    known: tuple[Tensor, Tensor] | None = None  # the bounds, if they were computed before

    @classmethod
    def of(cls, batch: Batch) -> Layout:
        """The layout of a batch."""
        if batch.block is not None:
            return cls(batch.row, batch.column, *batch.block, known=batch.bounds)
        columns = int(batch.column.max()) + 1 if len(batch.column) else 1
        return cls(batch.row, batch.column, batch.size, columns, batch.scored if batch.ends_only else None)

    @property
    def cell(self) -> Tensor:
        """Index of each token among the B x T of the block: [M]."""
        return self.row * self.columns + self.column

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """First and last index (exclusive) of each sequence's flat tokens, which are in sequence order: [B] each."""
        if self.known is not None:
            return self.known
        rows = torch.arange(self.rows, device=self.row.device)
        return torch.searchsorted(self.row, rows), torch.searchsorted(self.row, rows, right=True)

    def pad(self, flat: Tensor) -> Tensor:
        """[M, ...] -> [B, T, ...], zeros where there is no token."""
        shape = (self.rows, self.columns, *flat.shape[1:])
        if len(flat) == self.rows * self.columns:  # tokens are in sequence order: nothing is missing between them
            return flat.view(shape)
        # One index, each of its values once: neither direction has to sort, as indices by row and column would.
        return flat.new_zeros((self.rows * self.columns, *shape[2:])).index_copy_(0, self.cell, flat).view(shape)

    def flatten(self, block: Tensor) -> Tensor:
        """[B, T, ...] -> [M, ...]."""
        return block.flatten(0, 1).index_select(0, self.cell)
