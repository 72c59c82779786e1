"""Statistics over chunks of the catalogue, one after another, so that memory does not grow with N x V."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from localpolicy.catalogue import softmax
from localpolicy.catalogue.chunks import ChunkedSoftmax, chunks_of, like_of, sums_over_chunks
from localpolicy.catalogue.open_items import OpenItems, among
from localpolicy.catalogue.ties import tie_bounds
from localpolicy.logits import LinearLogits, Logits


def log_prob(rows: Logits, items: Tensor, open_items: OpenItems | None = None) -> Tensor:
    """log softmax(row)[item], among the open items if these are given."""
    if isinstance(rows, LinearLogits):
        return softmax.log_prob(*rows, items, _softmax(rows, open_items))
    return rows.at(items) - logsumexp(among(rows, open_items))


def log_prob_and_mean(
    rows: Logits, items: Tensor, values: LinearLogits, open_items: OpenItems | None = None
) -> tuple[Tensor, Tensor]:
    """log softmax(row)[item], and Σ_a softmax(row)_a value_a as a constant, in one pass."""
    if not isinstance(rows, LinearLogits):
        return log_prob(rows, items, open_items), mean(rows, values, open_items)
    return softmax.log_prob_and_mean(*rows, items, values.detach(), _softmax(rows, open_items))


def _softmax(rows: LinearLogits, open_items: OpenItems | None) -> ChunkedSoftmax:
    return ChunkedSoftmax(None if open_items is None else open_items.closed_pairs(0, rows.shape[1]))


@torch.no_grad()
def logsumexp(rows: Logits) -> Tensor:
    """log Σ_a exp(row_a)."""
    return sums_over_chunks(rows).normaliser


@torch.no_grad()
def mean(rows: Logits, values: Logits, open_items: OpenItems | None = None) -> Tensor:
    """Σ_a softmax(row)_a value_a, among the open items if these are given."""
    mean = sums_over_chunks(among(rows, open_items), values).mean
    assert mean is not None
    return mean


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
    above, tied = counts(rows, items, rows.at(items))
    return 1 + above + tied / 2


@torch.no_grad()
def counts(rows: Logits, items: Tensor, own: Tensor, *, here: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Numbers of items that score above `own`, and that tie with it (see `ties`), except the item itself.

    `here` [N] is a mask of the positions that have their item among these rows (default: all).
    """
    above = torch.zeros(rows.shape[0], dtype=torch.long, device=items.device)
    here = torch.ones_like(above, dtype=torch.bool) if here is None else here
    tied = -here.long()  # the item itself
    low, high = tie_bounds(rows, own)
    for start, stop, (chunk,) in chunks_of(like_of(rows), rows):
        # `at` and `chunk` may round differently by more than ties allow in half precision: the item ties with itself.
        position = (here & (items >= start) & (items < stop)).nonzero().squeeze(1)
        chunk[position, items[position] - start] = own[position]
        higher = (chunk > high[:, None]).sum(1)
        above += higher
        tied += (chunk >= low[:, None]).sum(1) - higher
    return above, tied


@torch.no_grad()
def divergence(p: Logits, q: Logits) -> tuple[Tensor, Tensor]:
    """JS(p, q) = ½ KL(p‖m) + ½ KL(q‖m), m = (p + q)/2; and KL(p‖q).

    Two passes: normalisers first, since the mixture needs both. With d = log q - log p,
    JS = log 2 - ½ Σ [p softplus(d) + q softplus(-d)].
    """
    return divergences(divergence_sums(p, q, logsumexp(p), logsumexp(q)))


def divergences(sums: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """JS and KL from `divergence_sums`, cut at 0: rounding alone could make them negative."""
    mixed, kl = sums
    return (math.log(2) - mixed / 2).clamp_(min=0.0), kl.clamp(min=0.0)


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
    sums = sums_over_chunks(rows, own_values=True)
    assert sums.mean is not None
    return sums.normaliser - sums.mean


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
