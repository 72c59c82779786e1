"""log softmax(row)[item] with gradients: one autograd function for every way of summing over the catalogue.

The gradient of Σ_n upstream_n · log p_n(item_n), with p = softmax(hidden @ weight.T + bias):

    hidden   upstream_n (weight[item_n] - Σ_a p_a weight_a)
    weight   Σ_n upstream_n (onehot_n - p_n) hidden_n
    bias     Σ_n upstream_n (onehot_n - p_n)

A `Softmax` forms these sums: over chunks (`chunks`), over tiles on a GPU (`fused`), over ranks (`sharded`).
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from localpolicy.logits import Head, LinearLogits, Logits, SoftmaxSums
from localpolicy.runtime.deferred_gradients import can_defer, defer
from localpolicy.runtime.graph_branch import GraphBranch

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]  # of hidden, weight and bias
Wanted = tuple[bool, bool, bool]


class Softmax(Protocol):
    """Sums over the catalogue for one call of `log_prob`, with anything that their gradient uses again."""

    apart: bool  # whether the gradient of hidden states needs no pass over the catalogue

    def sums(self, rows: LinearLogits, items: Tensor, values: Any, wanted: Wanted) -> SoftmaxSums:
        """Normalisers, log p of the items, and the mean of `values` if they are given: [N] each."""
        ...

    def gradient(
        self, rows: LinearLogits, items: Tensor, normaliser: Tensor, upstream: Tensor, wanted: Wanted
    ) -> Gradients:
        """Gradients of hidden states, weights and biases by the module's three formulas; None if not wanted."""
        ...


class _LogProb(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        items: Tensor,
        values: Logits | None,
        softmax: Softmax,
    ) -> tuple[Tensor, Tensor]:
        # A head may keep more precision than its products have; its gradient has the head's.
        rows = LinearLogits(hidden, Head(weight, bias).to(hidden.dtype))
        sums = softmax.sums(rows, items, values, ctx.needs_input_grad[:3])
        ctx.save_for_backward(hidden, *rows.head, items, sums.normaliser)
        ctx.softmax, ctx.tables = softmax, (weight, bias)
        expected = sums.normaliser.new_empty(0) if sums.mean is None else sums.mean
        ctx.mark_non_differentiable(expected)
        assert sums.log_p is not None
        return sums.log_p, expected

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, items, normaliser = ctx.saved_tensors
        rows = LinearLogits(hidden, Head(weight, bias))
        wanted = ctx.needs_input_grad[:3]
        if not (ctx.softmax.apart and any(wanted[1:]) and can_defer(*ctx.tables)):
            return *ctx.softmax.gradient(rows, items, normaliser, upstream, wanted), None, None, None
        branch = GraphBranch(hidden.device)
        for_hidden, *_ = ctx.softmax.gradient(rows, items, normaliser, upstream, (wanted[0], False, False))
        with branch.on_side_stream():  # the backbone's backward pass runs meanwhile
            _, *for_tables = ctx.softmax.gradient(rows, items, normaliser, upstream, (False, *wanted[1:]))
        for table, gradient in zip(ctx.tables, for_tables, strict=True):
            if gradient is not None:
                defer(table, gradient, branch, reads=(*ctx.saved_tensors, upstream))
        return for_hidden, None, None, None, None, None


def log_prob(hidden: Tensor, head: Head, items: Tensor, softmax: Softmax) -> Tensor:
    """log softmax(row)[item], summed over the catalogue by `softmax`."""
    return _LogProb.apply(hidden, *head, items, None, softmax)[0]  # type: ignore[no-untyped-call, no-any-return]


def log_prob_and_mean(
    hidden: Tensor, head: Head, items: Tensor, values: Logits, softmax: Softmax
) -> tuple[Tensor, Tensor]:
    """log softmax(row)[item], and Σ_a p_a value_a as a constant, in one pass."""
    return _LogProb.apply(hidden, *head, items, values, softmax)  # type: ignore[no-untyped-call, no-any-return]
