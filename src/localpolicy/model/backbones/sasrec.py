"""Self-attention over the history (Kang and McAuley 2018, "Self-Attentive Sequential Recommendation").

Departures: standard pre-norm blocks with a final norm (ports differ on the placement); GELU; positions are counted
from the window's start, since windows are left-aligned and every position is trained.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from localpolicy.catalogue import fused
from localpolicy.model.backbones.init import normal
from localpolicy.model.backbones.layout import Layout
from localpolicy.runtime.deferred_gradients import take

WIDEST = 256  # numbers of a row that one program of a GPU holds


def _fits(steps: int, width: int) -> bool:
    """Whether a sequence's attention fits into one program on a GPU."""
    return steps <= 64 and width <= 256


def attend(flat: Tensor, layout: Layout, *, heads: int, dropout: float) -> Tensor:
    """Causal attention within each sequence, of concatenated queries, keys and values: [M, 3D] -> [M, D]."""
    block = layout.pad(flat)  # [B, T, 3D]
    query, key, value = block.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)  # each [B, heads, T, d]
    mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=dropout)
    return layout.flatten(mixed.transpose(1, 2).flatten(2))


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
        return attend(flat, layout, heads=self.heads, dropout=self.dropout if self.training else 0.0)

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        """Apply the transformer block: attention and MLP with residuals, [M, D] -> [M, D]."""
        return self._with_mlp(
            hidden, self.project_out(self._attend(self.project_in(self.norm_attention(hidden)), layout))
        )

    def at_ends(self, hidden: Tensor, layout: Layout, ends: Tensor) -> Tensor:
        """The block's output at each sequence's last token alone: [M, D] -> [B, D].

        One query needs no keys and values of its own for every token: q·(K n) = (Kᵀ q)·n, and Σ p (V n) = V Σ p n. The
        bias of the keys adds the same to all scores of a query, so it changes nothing.
        """
        normed = self.norm_attention(hidden)
        of_query, of_key, of_value = self.project_in.weight.unflatten(0, (3, self.heads, -1))  # each [heads, d, D]
        query_bias, _, value_bias = self.project_in.bias.unflatten(0, (3, self.heads, -1))
        query = torch.einsum("bD,hdD->bhd", normed[ends], of_query) + query_bias
        asked = torch.einsum("bhd,hdD->bhD", query, of_key) * query.shape[2] ** -0.5
        block = layout.pad(normed)  # [B, T, D]
        beyond = torch.arange(layout.columns, device=hidden.device) > layout.column[ends, None]
        share = torch.softmax((asked @ block.mT).masked_fill(beyond[:, None], -torch.inf), dim=2)  # [B, heads, T]
        mixed = torch.einsum("bhD,hdD->bhd", share @ block, of_value) + value_bias
        return self._with_mlp(hidden[ends], self.project_out(mixed.flatten(1)))

    def _with_mlp(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        hidden = hidden + functional.dropout(mixed, self.dropout, self.training)
        return hidden + functional.dropout(self.mlp(self.norm_mlp(hidden)), self.dropout, self.training)

    def fused(
        self, hidden: Tensor, normed: Tensor, layout: Layout, following: nn.LayerNorm, *, seed: Tensor, site: int
    ) -> tuple[Tensor, Tensor]:
        """The block in few kernels: hidden states and their norm, to new hidden states and the `following` norm of
        them.
        """
        from localpolicy.kernels.attention import short_attention
        from localpolicy.kernels.residual import add_and_norm, linear

        dropout = self.dropout if self.training else 0.0
        flat = linear(self.project_in, normed)
        if _fits(layout.columns, flat.shape[1] // 3 // self.heads):
            mixed = short_attention(
                flat, *layout.bounds, columns=layout.columns, heads=self.heads, dropout=dropout, seed=seed, site=site
            )
        else:
            mixed = self._attend(flat, layout)
        mixed = linear(self.project_out, mixed)
        hidden, normed = add_and_norm(hidden, mixed, self.norm_mlp, seed=seed, site=site + 1, dropout=dropout)
        wide, activation, narrow = self.mlp
        assert isinstance(wide, nn.Linear) and isinstance(narrow, nn.Linear)
        out = linear(narrow, activation(linear(wide, normed)))
        return add_and_norm(hidden, out, following, seed=seed, site=site + 2, dropout=dropout)


class SASRec(nn.Module):
    """Position embeddings, causal blocks, a final norm."""

    def __init__(self, *, width: int, length: int, blocks: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.position = nn.Parameter(normal(length, width, scale=width**-0.5))
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)

    def forward(self, embedded: Tensor, layout: Layout) -> Tensor:
        """Hidden states [M, D] of embedded tokens [M, D]; zeros at tokens that nobody reads."""
        hidden = embedded + take(self.position, layout.column)
        if hidden.is_cuda and hidden.dtype == torch.float32 and hidden.shape[1] <= WIDEST and fused.missing() is None:
            return self._fused(hidden, layout)
        hidden = functional.dropout(hidden, self.dropout, self.training)
        before, last = self.blocks[:-1], self.blocks[-1]
        assert isinstance(last, Block)
        for block in before:
            hidden = block(hidden, layout)
        if layout.wanted is None or self.training:
            return self.norm(last(hidden, layout))  # type: ignore[no-any-return]
        ends = self.norm(last.at_ends(hidden, layout, layout.wanted))
        return torch.zeros_like(hidden).index_copy_(0, layout.wanted, ends)

    def _fused(self, embedded: Tensor, layout: Layout) -> Tensor:
        from localpolicy.kernels.residual import add_and_norm

        dropout = self.dropout if self.training else 0.0
        seed = torch.randint(1 << 31, (1,), device=embedded.device) if dropout > 0 else layout.column
        blocks: list[Block] = list(self.blocks)  # type: ignore[arg-type]
        norms = [*(block.norm_attention for block in blocks), self.norm]
        hidden, normed = add_and_norm(None, embedded, norms[0], seed=seed, site=0, dropout=dropout)
        for number, block in enumerate(blocks):
            hidden, normed = block.fused(hidden, normed, layout, norms[number + 1], seed=seed, site=3 * number + 1)
        return normed
