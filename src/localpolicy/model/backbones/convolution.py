"""Dilated causal convolutions (Yuan et al. 2019, "A Simple Convolutional Generative Network", NextItNet).

Departures: one block is a pair of convolutions of width 3 with dilations 1 and 2, four times as wide in each further
block;
pre-norm as in our other backbones.
"""

from __future__ import annotations

from itertools import chain

from torch import Tensor, nn
from torch.nn import functional

from localpolicy.model.backbones.layout import Layout

KERNEL = 3


class Causal(nn.Module):
    """h + conv(relu(norm(h))), on this and earlier steps alone."""

    def __init__(self, width: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.convolution = nn.Conv1d(width, width, KERNEL, dilation=dilation)
        self.reach = (KERNEL - 1) * dilation
        self.dropout = dropout

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states [B, T, D] of hidden states [B, T, D]."""
        inner = functional.relu(self.norm(hidden)).transpose(1, 2)
        inner = self.convolution(functional.pad(inner, (self.reach, 0))).transpose(1, 2)
        return hidden + functional.dropout(inner, self.dropout, self.training)


class Convolution(nn.Module):
    """Residual pairs of dilated causal convolutions and a norm. `heads` has no meaning here and is ignored."""

    def __init__(self, *, width: int, length: int, blocks: int, heads: int, dropout: float) -> None:
        super().__init__()
        dilations = chain.from_iterable((4**block, 2 * 4**block) for block in range(blocks))
        self.layers = nn.Sequential(*(Causal(width, dilation, dropout) for dilation in dilations))
        self.norm = nn.LayerNorm(width)

    def forward(self, embedded: Tensor, layout: Layout) -> Tensor:
        """Hidden states [M, D] of embedded tokens [M, D]."""
        return self.norm(layout.flatten(self.layers(layout.pad(embedded))))  # type: ignore[no-any-return]
