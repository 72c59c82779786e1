"""The statistics over a catalogue whose rows are split over ranks, so that it can outgrow one device.

Each rank holds its share of the items and its own positions. Hidden states [N, D] travel to all ranks, each one sums
over its own items for the positions of all, and what travels back is one number per position: softmax sums combine by
m = max m_r, s = Σ s_r e^{m_r - m}, as those of chunks do (`chunks`). The same numbers as one process, up to rounding.

Every function is a collective: all ranks call it, in the same order, with as many positions as each has (none, too).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from localpolicy.catalogue import chunked
from localpolicy.catalogue.chunks import RunningSum, chunks_of, softmax_pull, summed
from localpolicy.catalogue.logits import Head, LinearLogits
from localpolicy.catalogue.shards import Shard, ShardedHead, ShardedLogits, own_items
from localpolicy.runtime.ranks import Ranks


def _combine(running: RunningSum, ranks: Ranks) -> RunningSum:
    """The sums over the items of all ranks."""
    mine = running.top
    running.top = ranks.extreme_(mine.clone(), largest=True)
    shift = torch.where(running.top.isfinite(), running.top, torch.zeros_like(mine))
    running.sums *= torch.exp(mine - shift)
    ranks.sum_(running.sums)
    return running


def _gathered(rows: ShardedLogits) -> tuple[LinearLogits, slice]:
    """The positions of all ranks over the items of this one, and which positions are mine."""
    every, mine = rows.head.shard.ranks.all_gather(rows.hidden)
    return LinearLogits(every, rows.head.here), mine


class _LogProb(torch.autograd.Function):
    """As `chunked`'s, with sums over ranks; a rank's rows get their whole gradient here, hidden states their sum."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        items: Tensor,
        values: ShardedLogits | None,
        shard: Shard,
    ) -> tuple[Tensor, Tensor]:
        rows, mine = _gathered(ShardedLogits(hidden, ShardedHead(weight, bias, shard)))
        here, row = shard.local(shard.ranks.all_gather(items)[0])
        others = None if values is None else _gathered(values)[0]
        running, ctx.kept = summed(rows, others, keep=any(ctx.needs_input_grad))
        normaliser = _combine(running, shard.ranks).log()
        ctx.save_for_backward(rows.hidden, weight, bias, here, row, normaliser)
        ctx.shard, ctx.mine = shard, mine
        expected = running.mean()[mine] if values is not None else normaliser.new_empty(0)
        ctx.mark_non_differentiable(expected)
        return (own_items(rows, here, row, shard) - normaliser)[mine], expected

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, here, row, normaliser = ctx.saved_tensors
        ranks = ctx.shard.ranks
        upstream, _ = ranks.all_gather(upstream.to(hidden.dtype))
        rows = LinearLogits(hidden, Head(weight, bias))
        for_hidden, for_weight, for_bias = softmax_pull(ctx.kept, rows, normaliser, upstream, ctx.needs_input_grad[:3])
        ctx.kept = None
        own = torch.where(here, upstream, 0.0)
        if for_hidden is not None:
            for_hidden = own[:, None] * functional.embedding(row, weight) - upstream[:, None] * for_hidden
            for_hidden = ranks.sum_(for_hidden)[ctx.mine].clone()
        if for_weight is not None:
            for_weight.neg_().index_add_(0, row, own[:, None] * hidden)
        if for_bias is not None:
            for_bias.neg_().index_add_(0, row, own)
        return for_hidden, for_weight, for_bias, None, None, None


def log_prob(rows: ShardedLogits, items: Tensor) -> Tensor:
    """log softmax(row)[item]."""
    return _LogProb.apply(rows.hidden, *rows.head.here, items, None, rows.head.shard)[0]  # type: ignore[no-untyped-call, no-any-return]


def log_prob_and_mean(rows: ShardedLogits, items: Tensor, values: ShardedLogits) -> tuple[Tensor, Tensor]:
    """log softmax(row)[item], and Σ_a softmax(row)_a value_a as a constant, in one pass."""
    values = ShardedLogits(values.hidden.detach(), values.head.detach())
    return _LogProb.apply(rows.hidden, *rows.head.here, items, values, rows.head.shard)  # type: ignore[no-untyped-call, no-any-return]


@torch.no_grad()
def logsumexp(rows: ShardedLogits) -> Tensor:
    """log Σ_a exp(row_a)."""
    every, mine = _gathered(rows)
    return _combine(summed(every, None, keep=False)[0], rows.head.shard.ranks).log()[mine]


@torch.no_grad()
def mean(rows: ShardedLogits, values: ShardedLogits) -> Tensor:
    """Σ_a softmax(row)_a value_a."""
    every, mine = _gathered(rows)
    running, _ = summed(every, _gathered(values)[0], keep=False)
    return _combine(running, rows.head.shard.ranks).mean()[mine]


@torch.no_grad()
def maximum(rows: ShardedLogits) -> tuple[Tensor, Tensor]:
    """max_a row_a, and the first item that has it."""
    (every, mine), shard = _gathered(rows), rows.head.shard
    value, item = chunked.maximum(every)
    best = shard.ranks.extreme_(value.clone(), largest=True)
    item = torch.where(value == best, item + shard.own.start, shard.n_items)
    return best[mine], shard.ranks.extreme_(item, largest=False)[mine]


@torch.no_grad()
def rank(rows: ShardedLogits, items: Tensor) -> Tensor:
    """1 + items strictly above + half of the others tied."""
    (every, mine), shard = _gathered(rows), rows.head.shard
    here, row = shard.local(shard.ranks.all_gather(items)[0])
    own = own_items(every, here, row, shard)[:, None]
    counts = torch.zeros(2, len(own), dtype=torch.long, device=items.device)  # above, tied
    for start, stop, (chunk,) in chunks_of(every.hidden, every):
        # `at` and `chunk` may round differently: the item must tie with itself, exactly.
        at = (here & (row >= start) & (row < stop)).nonzero().squeeze(1)
        chunk[at, row[at] - start] = own[at, 0]
        counts[0] += (chunk > own).sum(1)
        counts[1] += (chunk == own).sum(1)
    above, tied = shard.ranks.sum_(counts)
    found: Tensor = 1 + above + (tied - 1) / 2
    return found[mine]


@torch.no_grad()
def divergence(p: ShardedLogits, q: ShardedLogits) -> tuple[Tensor, Tensor]:
    """JS(p, q) and KL(p‖q), in nats; see `chunked.divergence`."""
    (every_p, mine), (every_q, _), ranks = _gathered(p), _gathered(q), p.head.shard.ranks
    normal_p, normal_q = (_combine(summed(one, None, keep=False)[0], ranks).log() for one in (every_p, every_q))
    mixed, kl = chunked.divergence_sums(every_p, every_q, normal_p, normal_q)
    sums = ranks.sum_(torch.stack([mixed, kl]))[:, mine]
    return (math.log(2) - sums[0] / 2).clamp_(min=0.0), sums[1]


@torch.no_grad()
def entropy(rows: ShardedLogits) -> Tensor:
    """-Σ_a p_a log p_a = log Σ e^{row} - Σ p row."""
    every, mine = _gathered(rows)
    running = RunningSum(every.hidden, len(every.hidden), weighted=1)
    for _, _, (chunk,) in chunks_of(every.hidden, every):
        running.add(chunk, chunk.clone())
    _combine(running, rows.head.shard.ranks)
    return (running.log() - running.mean())[mine]


@torch.no_grad()
def top(rows: ShardedLogits, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values and their items, in falling order."""
    (every, mine), shard = _gathered(rows), rows.head.shard
    value, item = chunked.top(every, k)
    # Shards may hold fewer than k items: columns are gathered as rows.
    values, _ = shard.ranks.all_gather(value.T.contiguous())
    items, _ = shard.ranks.all_gather((item + shard.own.start).T.contiguous())
    best, order = values.T[mine].topk(min(k, shard.n_items), dim=1)
    return best, items.T[mine].gather(1, order)


def catalogue_statistics(rows: ShardedLogits, items: Tensor) -> dict[str, Tensor]:
    """What validation asks of a policy: see `localpolicy.catalogue.statistics`."""
    first = maximum(rows)[1]
    return {
        "rank": rank(rows, items),
        "top": first,
        "lists": first[:, None],
        "logp": log_prob(ShardedLogits(rows.hidden, rows.head.detach()), items),
        "entropy": entropy(rows),
    }
