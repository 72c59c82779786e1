"""Where the flat tokens of a batch stand, and the way to a padded block and back.

Linear layers run on flat tokens, so padding costs them nothing; only what mixes steps needs a block. Tokens are
left-aligned: padding comes after a sequence's end, where nothing causal can see it. It holds zeros, since a
non-finite number there would reach gradients even through a mask.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from localpolicy.types import Batch


class Layout(NamedTuple):
    """Token m is step column[m] of sequence row[m]."""

    row: Tensor  # [M]
    column: Tensor  # [M]
    rows: int  # B
    columns: int  # T, the longest window of this batch

    @classmethod
    def of(cls, batch: Batch) -> Layout:
        """The layout of a batch."""
        return cls(batch.row, batch.column, batch.size, int(batch.column.max()) + 1 if len(batch.column) else 1)

    def pad(self, flat: Tensor) -> Tensor:
        """[M, ...] -> [B, T, ...], zeros where there is no token."""
        block = flat.new_zeros((self.rows, self.columns, *flat.shape[1:]))
        return block.index_put((self.row, self.column), flat)

    def flatten(self, block: Tensor) -> Tensor:
        """[B, T, ...] -> [M, ...]."""
        return block[self.row, self.column]
