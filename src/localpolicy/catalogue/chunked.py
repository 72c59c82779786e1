"""The statistics over chunks of the catalogue, one after another, so that memory does not grow with N x V."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from localpolicy.catalogue.chunks import RunningSum, chunks_of, like_of, softmax_pull, summed, summing_type
from localpolicy.catalogue.logits import Head, LinearLogits, Logits


class _LogProb(torch.autograd.Function):
    """log softmax(hidden @ weight.T + bias)[item]; the gradient of row n is onehot(item) - softmax(row)."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        items: Tensor,
        values: LinearLogits | None,
    ) -> tuple[Tensor, Tensor]:
        # A head may keep more precision than its products have; its gradient has the head's.
        weight, bias = Head(weight, bias).to(hidden.dtype)
        rows = LinearLogits(hidden, Head(weight, bias))
        running, kept = summed(rows, values, keep=any(ctx.needs_input_grad))
        normaliser = running.log()
        ctx.save_for_backward(hidden, weight, bias, items, normaliser)
        ctx.kept = kept
        expected = running.mean() if values is not None else normaliser.new_empty(0)
        ctx.mark_non_differentiable(expected)
        return rows.at(items) - normaliser, expected

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, items, normaliser = ctx.saved_tensors
        upstream = upstream.to(hidden.dtype)
        rows = LinearLogits(hidden, Head(weight, bias))
        for_hidden, for_weight, for_bias = softmax_pull(ctx.kept, rows, normaliser, upstream, ctx.needs_input_grad[:3])
        ctx.kept = None  # a second backward forms the chunks anew
        # So far the softmax's part, without its sign; what is left is each position's own item.
        if for_hidden is not None:
            for_hidden = upstream[:, None] * (functional.embedding(items, weight) - for_hidden)
        if for_weight is not None:
            # A popular item is added hundreds of times: in half precision the sum would stop growing.
            for_weight = for_weight.to(summing_type(hidden)).neg_()
            for_weight.index_add_(0, items, (upstream[:, None] * hidden).to(for_weight.dtype))
        if for_bias is not None:
            for_bias = for_bias.to(summing_type(hidden)).neg_()
            for_bias.index_add_(0, items, upstream.to(for_bias.dtype))
        return for_hidden, for_weight, for_bias, None, None


def log_prob(rows: Logits, items: Tensor) -> Tensor:
    """log softmax(row)[item]."""
    if isinstance(rows, LinearLogits):
        return _LogProb.apply(rows.hidden, *rows.head, items, None)[0]  # type: ignore[no-untyped-call, no-any-return]
    return rows.at(items) - logsumexp(rows)


def log_prob_and_mean(rows: Logits, items: Tensor, values: LinearLogits) -> tuple[Tensor, Tensor]:
    """log softmax(row)[item], and Σ_a softmax(row)_a value_a as a constant, in one pass."""
    if not isinstance(rows, LinearLogits):
        return log_prob(rows, items), mean(rows, values)
    return _LogProb.apply(rows.hidden, *rows.head, items, values.detach())  # type: ignore[no-untyped-call, no-any-return]


@torch.no_grad()
def logsumexp(rows: Logits) -> Tensor:
    """log Σ_a exp(row_a)."""
    like = like_of(rows)
    running = RunningSum(like, rows.shape[0])
    for _, _, (chunk,) in chunks_of(like, rows):
        running.add(chunk)
    return running.log()


@torch.no_grad()
def mean(rows: Logits, values: Logits) -> Tensor:
    """Σ_a softmax(row)_a value_a."""
    like = like_of(rows)
    running = RunningSum(like, rows.shape[0], weighted=1)
    for _, _, (chunk, value) in chunks_of(like, rows, values):
        running.add(chunk, value)
    return running.mean()


@torch.no_grad()
def maximum(rows: Logits) -> tuple[Tensor, Tensor]:
    """max_a row_a, and the first item that has it."""
    best, item = None, None
    for start, _, (chunk,) in chunks_of(like_of(rows), rows):
        value, index = chunk.max(1)
        if best is None or item is None:
            best, item = value, index
        else:
            better = value > best
            best, item = torch.where(better, value, best), torch.where(better, index + start, item)
    assert best is not None and item is not None, "a catalogue has at least one item"
    return best, item


@torch.no_grad()
def rank(rows: Logits, items: Tensor) -> Tensor:
    """1 + items strictly above + half of the others tied."""
    own = rows.at(items)[:, None]
    above = torch.zeros(rows.shape[0], dtype=torch.long, device=items.device)
    tied = torch.full_like(above, -1)  # the item itself
    for start, stop, (chunk,) in chunks_of(like_of(rows), rows):
        # `at` and `chunk` may round differently: the item must tie with itself, exactly.
        here = ((items >= start) & (items < stop)).nonzero().squeeze(1)
        chunk[here, items[here] - start] = own[here, 0]
        above += (chunk > own).sum(1)
        tied += (chunk == own).sum(1)
    return 1 + above + tied / 2


@torch.no_grad()
def divergence(p: Logits, q: Logits) -> tuple[Tensor, Tensor]:
    """JS(p, q) = ½ KL(p‖m) + ½ KL(q‖m), m = (p + q)/2; and KL(p‖q).

    Two passes: normalisers first, since the mixture needs both. With d = log q - log p,
    JS = log 2 - ½ Σ [p softplus(d) + q softplus(-d)].
    """
    mixed, kl = divergence_sums(p, q, logsumexp(p), logsumexp(q))
    return (math.log(2) - mixed / 2).clamp_(min=0.0), kl


def divergence_sums(p: Logits, q: Logits, normal_p: Tensor, normal_q: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_a [p softplus(d) + q softplus(-d)], and -Σ_a p d, given the logarithms of both normalisers."""
    mixed, kl = torch.zeros_like(normal_p), torch.zeros_like(normal_p)
    for _, _, (log_p, log_q) in chunks_of(like_of(p), p, q):
        log_p.sub_(normal_p[:, None])
        log_q.sub_(normal_q[:, None])
        gap = log_q - log_p
        log_p.exp_()
        log_q.exp_()
        kl -= torch.linalg.vecdot(log_p, gap)
        soft = functional.softplus(gap, threshold=40.0)  # exact in float64 too
        mixed += torch.linalg.vecdot(log_p, soft) + torch.linalg.vecdot(log_q, soft.sub_(gap))
    return mixed, kl


@torch.no_grad()
def entropy(rows: Logits) -> Tensor:
    """-Σ_a p_a log p_a = log Σ e^{row} - Σ p row."""
    like = like_of(rows)
    running = RunningSum(like, rows.shape[0], weighted=1)
    for _, _, (chunk,) in chunks_of(like, rows):
        running.add(chunk, chunk.clone())
    return running.log() - running.mean()


@torch.no_grad()
def top(rows: Logits, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values and their items, in falling order."""
    k = min(k, rows.shape[1])
    best: Tensor | None = None
    items: Tensor | None = None
    for start, stop, (chunk,) in chunks_of(like_of(rows), rows):
        value, index = chunk.topk(min(k, stop - start), dim=1)
        index = index + start
        if best is not None and items is not None:
            value, index = torch.cat([best, value], 1), torch.cat([items, index], 1)
        best, order = value.topk(min(k, value.shape[1]), dim=1)
        items = index.gather(1, order)
    assert best is not None and items is not None, "a catalogue has at least one item"
    return best, items
