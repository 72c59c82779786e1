"""Tables over the catalogue that are split over ranks: the items of each rank, and the lookup of their rows.

A gradient takes the way of its number back: the gradients of one rank's positions in another rank's rows are summed on
that other rank.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from localpolicy.logits import Head, LinearLogits
from localpolicy.runtime.ranks import Ranks


class Shard(NamedTuple):
    """Range of items that this rank holds: an even cut of 0 … V - 1, in order."""

    ranks: Ranks
    n_items: int  # V, of all ranks together

    @property
    def own(self) -> slice:
        """Slice of this rank's items."""
        rank, total = self.ranks.rank, self.ranks.total
        return slice(self.n_items * rank // total, self.n_items * (rank + 1) // total)

    def local(self, items: Tensor) -> tuple[Tensor, Tensor]:
        """Mask of the items that are on this rank, and their rows here (0 for the others)."""
        here = (items >= self.own.start) & (items < self.own.stop)
        return here, torch.where(here, items - self.own.start, 0)


class ShardedHead(NamedTuple):
    """A rank's rows of a head."""

    weight: Tensor  # [V_r, D]
    bias: Tensor | None
    shard: Shard

    @property
    def here(self) -> Head:
        """This rank's rows as a head."""
        return Head(self.weight, self.bias)

    def detach(self) -> ShardedHead:
        """Copy of the head without gradients."""
        return ShardedHead(*self.here.detach(), self.shard)

    def to(self, dtype: torch.dtype) -> ShardedHead:
        """The head in another type, with gradients."""
        return ShardedHead(*self.here.to(dtype), self.shard)

    def logits(self, hidden: Tensor) -> ShardedLogits:
        """Logits of this rank's hidden states [N, D] over the items of all ranks."""
        return ShardedLogits(hidden, self)

    def replaced(self, weight: Tensor, bias: Tensor | None) -> ShardedHead:
        """Head with another weight and bias for the same rows of this rank."""
        return ShardedHead(weight, bias, self.shard)


class ShardedLogits(NamedTuple):
    """hidden @ weight.T + bias for this rank's hidden states and the items of all ranks."""

    hidden: Tensor  # [N, D]
    head: ShardedHead

    @property
    def shape(self) -> tuple[int, int]:
        """(N, V): numbers of positions and items."""
        return self.hidden.shape[0], self.head.shard.n_items

    def at(self, items: Tensor) -> Tensor:
        """Logit of item items[n] at each position n, with gradients: [N]."""
        return _At.apply(self.hidden, *self.head.here, items, self.head.shard)  # type: ignore[no-untyped-call, no-any-return]

    @torch.no_grad()
    def chunk(self, start: int, stop: int, *, out: Tensor | None = None) -> Tensor:
        """Logits of items start:stop, equal on all ranks: the head's rows travel. For small catalogues and tests."""
        shard, head = self.head.shard, self.head.here
        part = slice(*(min(max(edge - shard.own.start, 0), len(head.weight)) for edge in (start, stop)))
        weight, _ = shard.ranks.all_gather(head.weight[part])
        bias = None if head.bias is None else shard.ranks.all_gather(head.bias[part])[0]
        return LinearLogits(self.hidden, Head(weight, bias)).chunk(0, stop - start, out=out)


def lookup(weight: Tensor, items: Tensor, shard: Shard) -> Tensor:
    """Rows of a sharded table, weight[items]: [M, D], with gradients."""
    return _Lookup.apply(weight, items, shard)  # type: ignore[no-untyped-call, no-any-return]


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, items: Tensor, shard: Shard) -> Tensor:
        every, mine = shard.ranks.all_gather(items)
        here, row = shard.local(every)
        ctx.save_for_backward(here, row)
        ctx.shard, ctx.rows = shard, len(weight)
        vectors = functional.embedding(row, weight) * here[:, None]
        return shard.ranks.sum_(vectors)[mine].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        here, row = ctx.saved_tensors
        every, _ = ctx.shard.ranks.all_gather(upstream)
        for_weight = every.new_zeros(ctx.rows, every.shape[1])
        for_weight.index_add_(0, row[here], every[here])
        return for_weight, None, None


class _At(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, items: Tensor, shard: Shard) -> Tensor:
        every, mine = shard.ranks.all_gather(hidden)
        here, row = shard.local(shard.ranks.all_gather(items)[0])
        ctx.save_for_backward(every, weight, here, row)
        ctx.shard, ctx.mine, ctx.biased = shard, mine, bias is not None
        scores = torch.where(here, LinearLogits(every, Head(weight, bias)).at(row), 0.0)  # its rank knows the item
        return shard.ranks.sum_(scores)[mine].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, here, row = ctx.saved_tensors
        upstream = torch.where(here, ctx.shard.ranks.all_gather(upstream)[0], 0.0)
        for_hidden = for_weight = for_bias = None
        if ctx.needs_input_grad[0]:
            for_hidden = upstream[:, None] * functional.embedding(row, weight)
            for_hidden = ctx.shard.ranks.sum_(for_hidden)[ctx.mine].clone()
        if ctx.needs_input_grad[1]:
            for_weight = torch.zeros_like(weight).index_add_(0, row, upstream[:, None] * hidden)
        if ctx.biased and ctx.needs_input_grad[2]:
            for_bias = weight.new_zeros(len(weight)).index_add_(0, row, upstream)
        return for_hidden, for_weight, for_bias, None, None
