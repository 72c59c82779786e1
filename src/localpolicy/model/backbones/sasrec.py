"""Self-attention over the history (Kang and McAuley 2018, "Self-Attentive Sequential Recommendation").

Departures: standard pre-norm blocks with a final norm (ports differ on the placement); GELU; positions are counted
from the window's start, since windows are left-aligned and every position is trained.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from localpolicy.catalogue import fused
from localpolicy.catalogue.logits import take
from localpolicy.model.backbones.layout import Layout


def _fits(steps: int, width: int) -> bool:
    """Whether a sequence's attention fits into one program on a GPU."""
    return steps <= 64 and width <= 128


class Block(nn.Module):
    """h + attention(norm(h)), then h + mlp(norm(h))."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.norm_attention = nn.LayerNorm(width)
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def _attend(self, flat: Tensor, layout: Layout) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        flat = self.project_in(flat)
        if flat.is_cuda and fused.missing() is None and _fits(layout.columns, flat.shape[1] // 3 // self.heads):
            from localpolicy.model.backbones.attention_kernel import short_attention

            mixed = short_attention(flat, *layout.bounds, columns=layout.columns, heads=self.heads, dropout=dropout)
            return self.project_out(mixed)  # type: ignore[no-any-return]
        block = layout.pad(flat)  # [B, T, 3D]
        query, key, value = block.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # each [B, heads, T, d]
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=dropout)
        return self.project_out(layout.flatten(mixed.transpose(1, 2).flatten(2)))  # type: ignore[no-any-return]

    def forward(self, hidden: Tensor, layout: Layout, *, last: bool = False) -> Tensor:
        """[M, D] -> [M, D]; of the last block, zeros at tokens that nobody will ask for."""
        mixed = self._attend(self.norm_attention(hidden), layout)
        if last and layout.wanted is not None:
            ends = self._with_mlp(hidden[layout.wanted], mixed[layout.wanted])
            return torch.zeros_like(hidden).index_copy(0, layout.wanted, ends)
        return self._with_mlp(hidden, mixed)

    def _with_mlp(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        hidden = hidden + functional.dropout(mixed, self.dropout, self.training)
        return hidden + functional.dropout(self.mlp(self.norm_mlp(hidden)), self.dropout, self.training)


class SASRec(nn.Module):
    """Position embeddings, causal blocks, a final norm."""

    def __init__(self, *, width: int, length: int, blocks: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.position = nn.Parameter(torch.randn(length, width) * width**-0.5)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)

    def forward(self, embedded: Tensor, layout: Layout) -> Tensor:
        """[M, D] -> [M, D]."""
        hidden = functional.dropout(embedded + take(self.position, layout.column), self.dropout, self.training)
        for number, block in enumerate(self.blocks, start=1):
            hidden = block(hidden, layout, last=number == len(self.blocks))
        return self.norm(hidden)  # type: ignore[no-any-return]
