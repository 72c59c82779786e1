"""Statistics in fused tiles on a GPU: nothing of size N x V leaves the registers. Kernels in `kernels/`.

Products take bf16 as it is and float32 as TF32 in training (three TF32 products, nearly float32, in evaluation); sums
are float32. Logits that the kernels do not support (not linear, float64, D > 256) are computed by `chunked`, as is
everything without a CUDA device or without Triton: `missing` returns the reason.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from typing import TypeGuard

import torch
from torch import Tensor

from localpolicy.catalogue import chunked, softmax
from localpolicy.catalogue.chunks import ChunkedSoftmax, sums_over_chunks
from localpolicy.catalogue.masked import MaskedLogits
from localpolicy.catalogue.open_items import ClosedPairs, OpenItems
from localpolicy.catalogue.softmax import Gradients, Wanted
from localpolicy.catalogue.ties import tie_bounds
from localpolicy.logits import LinearLogits, Logits, SoftmaxSums

WIDEST = 256
WIDEST_EXACT = 128  # in evaluation: three products need the room of three
CAPABILITY = (8, 0)  # the first GPUs with TF32 and bf16 products
TRAINING, EXACT = "tf32", "tf32x3"
MOST_CLOSED = 64  # closed items of one position: a tile looks for each of them


def interpreted() -> bool:
    """Whether Triton runs its kernels on the CPU, as in tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def missing() -> str | None:
    """Reason why fused kernels cannot run here, or None if they can."""
    if find_spec("triton") is None:
        return "Triton is not installed (it comes with CUDA builds of torch)"
    if interpreted():
        return None
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    major, minor = torch.cuda.get_device_capability()
    if (major, minor) < CAPABILITY:
        return f"{torch.cuda.get_device_name()} has compute capability {major}.{minor}, and 8.0 is needed"
    return None


def serves(rows: Logits) -> TypeGuard[LinearLogits]:
    """Whether the kernels support these logits."""
    return (
        isinstance(rows, LinearLogits)
        and rows.hidden.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and rows.head.weight.dtype in (rows.hidden.dtype, torch.float32)
        and rows.hidden.shape[1] <= WIDEST
        and rows.hidden.is_cuda != interpreted()
        and missing() is None
    )


def evaluates(rows: Logits) -> TypeGuard[LinearLogits]:
    """Whether the kernels support these logits with the precision that evaluation needs."""
    return serves(rows) and rows.hidden.shape[1] <= WIDEST_EXACT


class FusedSoftmax:
    """Sums of `softmax` over tiles, without the closed items; Σ p·weight is kept for the hidden states' gradient."""

    apart = True

    def __init__(self, closed: Tensor | None = None) -> None:
        self.kept: SoftmaxSums | None = None
        self.closed = closed  # [N, C] items

    def sums(self, rows: LinearLogits, items: Tensor, values: LinearLogits | None, wanted: Wanted) -> SoftmaxSums:
        """Normalisers, log p of the items, and the mean of `values`: [N] each."""
        from localpolicy.kernels.softmax import softmax_sums

        sums = softmax_sums(rows, values=values, pull=wanted[0], items=items, closed=self.closed, precision=TRAINING)
        # Not the results themselves: they lead to the autograd graph, which leads here, and would keep each other.
        self.kept = SoftmaxSums(sums.normaliser, pulled=sums.pulled)
        return sums

    def gradient(
        self,
        rows: LinearLogits,
        items: Tensor,
        normaliser: Tensor,
        upstream: Tensor,
        wanted: Wanted,
        *,
        here: Tensor | None = None,
    ) -> Gradients:
        """Gradients of `softmax`; `here` is a mask of the positions with their item among these rows (default: all)."""
        from localpolicy.kernels.gradient import head_gradient, taken_gradient

        assert self.kept is not None, "sums come before gradients"
        upstream = upstream.float().contiguous()
        for_weight = for_bias = None
        wants_weight, wants_bias = wanted[1], wanted[2] and rows.head.bias is not None
        if wants_weight or wants_bias:
            for_weight, for_bias = head_gradient(
                rows, normaliser, upstream, closed=self.closed, wants_weight=wants_weight, wants_bias=wants_bias,
                precision=TRAINING,
            )  # fmt: skip
        forward = self.kept if wanted[0] else self.kept._replace(pulled=None)
        for_hidden = taken_gradient(rows, items, upstream, forward, normaliser, for_weight, for_bias, here=here)
        return for_hidden, for_weight, for_bias


def softmax_over(rows: LinearLogits, closed: ClosedPairs | None) -> FusedSoftmax | ChunkedSoftmax:
    """Softmax over tiles if the kernels support these logits and closed items, else over chunks."""
    if not serves(rows):
        return ChunkedSoftmax(closed)
    if closed is None:
        return FusedSoftmax()
    table = closed.table(most=MOST_CLOSED)
    return ChunkedSoftmax(closed) if table is None else FusedSoftmax(table)


def log_prob(rows: Logits, items: Tensor, open_items: OpenItems | None = None) -> Tensor:
    """log softmax(row)[item], among the open items if these are given."""
    if not serves(rows):
        return chunked.log_prob(rows, items, open_items)
    return softmax.log_prob(*rows, items, softmax_over(rows, _closed(rows, open_items)))


def log_prob_and_mean(
    rows: LinearLogits, items: Tensor, values: LinearLogits, open_items: OpenItems | None = None
) -> tuple[Tensor, Tensor]:
    """log softmax(row)[item], and Σ_a softmax(row)_a value_a as a constant, in one pass."""
    if not (serves(rows) and serves(values)):
        return chunked.log_prob_and_mean(rows, items, values, open_items)
    return softmax.log_prob_and_mean(*rows, items, values.detach(), softmax_over(rows, _closed(rows, open_items)))


def _closed(rows: Logits, open_items: OpenItems | None) -> ClosedPairs | None:
    return None if open_items is None else open_items.closed_pairs(0, rows.shape[1])


def sums(
    rows: Logits, values: Logits | None = None, *, own_values: bool = False, precision: str = EXACT
) -> SoftmaxSums:
    """log Σ_a e^{row_a}, and Σ_a p_a value_a if there are values. `own_values`: the logits are the values."""
    known = serves if precision == TRAINING else evaluates
    if not known(rows) or (values is not None and not known(values)):
        return sums_over_chunks(rows, values, own_values=own_values)
    from localpolicy.kernels.softmax import softmax_sums

    return softmax_sums(rows, values=values, own_values=own_values, precision=precision)


@torch.no_grad()
def logsumexp(rows: Logits) -> Tensor:
    """log Σ_a exp(row_a)."""
    return sums(rows).normaliser


@torch.no_grad()
def mean(rows: Logits, values: Logits, open_items: OpenItems | None = None) -> Tensor:
    """Σ_a softmax(row)_a value_a, among the open items if these are given."""
    if open_items is not None:
        return chunked.mean(rows, values, open_items)
    mean = sums(rows, values, precision=TRAINING).mean
    assert mean is not None
    return mean


@torch.no_grad()
def maximum(rows: Logits) -> tuple[Tensor, Tensor]:
    """max_a row_a, and the first item that has it."""
    if not serves(rows):
        return chunked.maximum(rows)
    from localpolicy.kernels.argmax import argmax

    return argmax(rows, precision=TRAINING)


@torch.no_grad()
def entropy(rows: Logits) -> Tensor:
    """-Σ_a p_a log p_a = log Σ e^{row} - Σ p row."""
    normaliser, mean, *_ = sums(rows, own_values=True)
    assert mean is not None
    return normaliser - mean


@torch.no_grad()
def rank(rows: Logits, items: Tensor) -> Tensor:
    """1 + items strictly above + half of the others tied."""
    above, tied = counts(rows, items, at(rows, items))
    return 1 + above + tied / 2


def gather_logits(rows: Logits, items: Tensor) -> Tensor:
    """Logit of each position's item [N], with gradients; in one kernel if it supports these logits."""
    if not serves(rows):
        return rows.at(items)
    from localpolicy.kernels import gather

    return gather.gather_logits(rows, items)


def at(rows: Logits, items: Tensor) -> Tensor:
    """Logit of each position's item [N], rounded as `counts` rounds it."""
    if not evaluates(rows):
        return rows.at(items)
    from localpolicy.kernels.ranking import scores_at

    return scores_at(rows, items, precision=EXACT)


@torch.no_grad()
def counts(rows: Logits, items: Tensor, own: Tensor, *, here: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Numbers of items that score above `own`, and that tie with it, except the item itself: see `chunked.counts`."""
    if not evaluates(rows):
        return chunked.counts(rows, items, own, here=here)
    from localpolicy.kernels import ranking

    known = items if here is None else torch.where(here, items, -1)
    above, tied, *_ = ranking.ranked(rows, known, tie_bounds(rows, own), precision=EXACT)
    return above, tied


@torch.no_grad()
def divergence(p: Logits, q: Logits) -> tuple[Tensor, Tensor]:
    """JS(p, q) = ½ KL(p‖m) + ½ KL(q‖m), m = (p + q)/2; and KL(p‖q)."""
    return chunked.divergences(divergence_sums(p, q, logsumexp(p), logsumexp(q)))


def divergence_sums(p: Logits, q: Logits, normal_p: Tensor, normal_q: Tensor) -> tuple[Tensor, Tensor]:
    """Sums behind JS and KL, given the logarithms of both normalisers: see `chunked.divergence_sums`."""
    if not (evaluates(p) and evaluates(q)):
        return chunked.divergence_sums(p, q, normal_p, normal_q)
    from localpolicy.kernels import divergence

    return divergence.divergence_sums(p, q, normal_p, normal_q, precision=EXACT)


@torch.no_grad()
def top(rows: Logits, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values and their items, in falling order; of equal values the lower index comes first."""
    if isinstance(rows, MaskedLogits):
        return _top_masked(rows, k)
    k = min(k, rows.shape[1])
    if not lists(rows, k):
        return chunked.top(rows, k)
    from localpolicy.kernels.top_k import top_k

    return top_k(rows, k, precision=EXACT)


def lists(rows: Logits, k: int) -> TypeGuard[LinearLogits]:
    """Whether the kernels find the k best of these logits, and faster than chunks do."""
    if not serves(rows):
        return False
    from localpolicy.kernels.top_k import LARGEST_GROUP, LONGEST

    return k <= LONGEST and 2 * k * LARGEST_GROUP <= rows.shape[1]


def _top_masked(rows: MaskedLogits, k: int) -> tuple[Tensor, Tensor]:
    """Top k allowed items, found among the top k + f if f items are forbidden."""
    wide = min(k + rows.most_forbidden, rows.shape[1])
    if not lists(rows.rows, wide):
        return chunked.top(rows, k)
    value, item = top(rows.rows, wide)
    forbidden = rows.forbids(item)
    order = forbidden.byte().argsort(dim=1, stable=True)[:, :k]  # the allowed ones first, in their order
    return value.masked_fill(forbidden, -torch.inf).gather(1, order), item.gather(1, order)
