"""The statistics in fused tiles on a GPU: nothing of size N x V leaves the registers. Kernels in `kernels/`.

Products take bf16 as it is and float32 as TF32 in training (three TF32 products, nearly float32, in evaluation);
sums are float32. What the kernels do not know (rows that are not linear, float64, D > 256) goes to `chunked`, as does
everything where there is no CUDA device or no Triton: `missing` says why.
"""

from __future__ import annotations

import math
import os
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from localpolicy.catalogue import chunked
from localpolicy.catalogue.logits import Head, LinearLogits, Logits

WIDEST = 256
WIDEST_EXACT = 128  # in evaluation: three products need the room of three
CAPABILITY = (8, 0)  # the first GPUs with TF32 and bf16 products
TRAINING, EXACT = "tf32", "tf32x3"


def interpreted() -> bool:
    """Whether Triton runs its kernels on the CPU, as tests ask it to."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def missing() -> str | None:
    """Why there are no fused kernels here; None where there are."""
    if find_spec("triton") is None:
        return "Triton is not installed (it comes with CUDA builds of torch)"
    if interpreted():
        return None
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    found = torch.cuda.get_device_capability()
    if found < CAPABILITY:
        return f"{torch.cuda.get_device_name()} has compute capability {found[0]}.{found[1]}, and 8.0 is needed"
    return None


def serves(rows: Logits) -> TypeGuard[LinearLogits]:
    """Whether the kernels know such rows."""
    return (
        isinstance(rows, LinearLogits)
        and rows.hidden.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and rows.head.weight.dtype in (rows.hidden.dtype, torch.float32)
        and rows.hidden.shape[1] <= WIDEST
        and rows.hidden.is_cuda != interpreted()
        and missing() is None
    )


def evaluates(rows: Logits) -> TypeGuard[LinearLogits]:
    """Whether the kernels know such rows with the precision that evaluation asks for."""
    return serves(rows) and rows.hidden.shape[1] <= WIDEST_EXACT


class _LogProb(torch.autograd.Function):
    """log softmax(hidden @ weight.T + bias)[item], and the mean of `values` as a constant."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        items: Tensor,
        values: LinearLogits | None,
    ) -> tuple[Tensor, Tensor]:
        from localpolicy.catalogue.kernels.softmax import softmax_sums

        # A head may keep more precision than its products have; its gradient has the head's.
        weight, bias = Head(weight, bias).to(hidden.dtype)
        rows = LinearLogits(hidden, Head(weight, bias))
        sums = softmax_sums(rows, values=values, pull=ctx.needs_input_grad[0], items=items, precision=TRAINING)
        ctx.save_for_backward(hidden, weight, bias, items, sums.normaliser, sums.pulled)
        expected = sums.normaliser.new_empty(0) if sums.mean is None else sums.mean
        ctx.mark_non_differentiable(expected)
        assert sums.taken is not None
        return sums.taken, expected

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        from localpolicy.catalogue.kernels.gradient import taken_gradient, weight_gradient

        hidden, weight, bias, items, normaliser, pulled = ctx.saved_tensors
        _, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        upstream = upstream.float().contiguous()
        rows = LinearLogits(hidden, Head(weight, bias))
        for_weight = for_bias = None
        if wants_weight or wants_bias:
            biased = wants_bias and bias is not None
            for_weight, for_bias = weight_gradient(rows, normaliser, upstream, biased=biased, precision=TRAINING)
        for_hidden = taken_gradient(rows, items, upstream, pulled, for_weight, for_bias)
        return for_hidden, for_weight if wants_weight else None, for_bias, None, None


def log_prob(rows: Logits, items: Tensor) -> Tensor:
    """log softmax(row)[item]."""
    if not serves(rows):
        return chunked.log_prob(rows, items)
    return _LogProb.apply(rows.hidden, *rows.head, items, None)[0]  # type: ignore[no-untyped-call, no-any-return]


def log_prob_and_mean(rows: LinearLogits, items: Tensor, values: LinearLogits) -> tuple[Tensor, Tensor]:
    """log softmax(row)[item], and Σ_a softmax(row)_a value_a as a constant, in one pass."""
    if not (serves(rows) and serves(values)):
        return chunked.log_prob_and_mean(rows, items, values)
    return _LogProb.apply(rows.hidden, *rows.head, items, values.detach())  # type: ignore[no-untyped-call, no-any-return]


@torch.no_grad()
def logsumexp(rows: Logits) -> Tensor:
    """log Σ_a exp(row_a)."""
    if not evaluates(rows):
        return chunked.logsumexp(rows)
    from localpolicy.catalogue.kernels.softmax import softmax_sums

    return softmax_sums(rows, precision=EXACT).normaliser


@torch.no_grad()
def mean(rows: Logits, values: Logits) -> Tensor:
    """Σ_a softmax(row)_a value_a."""
    if not (serves(rows) and serves(values)):
        return chunked.mean(rows, values)
    from localpolicy.catalogue.kernels.softmax import softmax_sums

    found = softmax_sums(rows, values=values, precision=TRAINING).mean
    assert found is not None
    return found


@torch.no_grad()
def maximum(rows: Logits) -> tuple[Tensor, Tensor]:
    """max_a row_a, and the first item that has it."""
    if not serves(rows):
        return chunked.maximum(rows)
    from localpolicy.catalogue.kernels.largest import largest

    return largest(rows, precision=TRAINING)


@torch.no_grad()
def entropy(rows: Logits) -> Tensor:
    """-Σ_a p_a log p_a = log Σ e^{row} - Σ p row."""
    if not evaluates(rows):
        return chunked.entropy(rows)
    from localpolicy.catalogue.kernels.softmax import softmax_sums

    sums = softmax_sums(rows, own_values=True, precision=EXACT)
    assert sums.mean is not None
    return sums.normaliser - sums.mean


@torch.no_grad()
def rank(rows: Logits, items: Tensor) -> Tensor:
    """1 + items strictly above + half of the others tied."""
    if not evaluates(rows):
        return chunked.rank(rows, items)
    from localpolicy.catalogue.kernels.ranking import counts, scores_at

    above, tied = counts(rows, items, scores_at(rows, items, precision=EXACT), precision=EXACT)
    return 1 + above + tied / 2


@torch.no_grad()
def divergence(p: Logits, q: Logits) -> tuple[Tensor, Tensor]:
    """JS(p, q) = ½ KL(p‖m) + ½ KL(q‖m), m = (p + q)/2; and KL(p‖q)."""
    if not (evaluates(p) and evaluates(q)):
        return chunked.divergence(p, q)
    from localpolicy.catalogue.kernels.divergence import divergence_sums

    mixed, kl = divergence_sums(p, q, logsumexp(p), logsumexp(q), precision=EXACT)
    return (math.log(2) - mixed / 2).clamp_(min=0.0), kl


@torch.no_grad()
def top(rows: Logits, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values and their items, in falling order."""
    return chunked.top(rows, k)
