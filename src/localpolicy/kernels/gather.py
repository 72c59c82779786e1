"""hidden_n · weight[item_n] + bias[item_n] of every position n in one kernel; the gradients in another."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from localpolicy.kernels.tiles import padded
from localpolicy.logits import LinearLogits
from localpolicy.runtime.deferred_gradients import rows_gradient

ROWS = 16  # of a program


@triton.jit
def _forward(
    hidden, weight, bias, items, out, n_rows,
    D: tl.constexpr, DP: tl.constexpr, BIASED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = row < n_rows
    d = tl.arange(0, DP)
    inside = here[:, None] & (d < D)[None]
    item = tl.load(items + row, mask=here, other=0).to(tl.int64)
    h = tl.load(hidden + row[:, None] * D + d[None], mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + item[:, None] * D + d[None], mask=inside, other=0.0).to(tl.float32)
    score = tl.sum(h * w, 1)
    if BIASED:
        score += tl.load(bias + item, mask=here, other=0.0).to(tl.float32)
    tl.store(out + row, score, mask=here)


@triton.jit
def _backward(
    hidden, weight, items, upstream, for_hidden, for_rows, n_rows,
    D: tl.constexpr, DP: tl.constexpr, HIDDEN: tl.constexpr, WEIGHT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = row < n_rows
    d = tl.arange(0, DP)
    inside = here[:, None] & (d < D)[None]
    at = row[:, None] * D + d[None]
    up = tl.load(upstream + row, mask=here, other=0.0)
    if HIDDEN:
        item = tl.load(items + row, mask=here, other=0).to(tl.int64)
        w = tl.load(weight + item[:, None] * D + d[None], mask=inside, other=0.0).to(tl.float32)
        tl.store(for_hidden + at, up[:, None] * w, mask=inside)
    if WEIGHT:
        h = tl.load(hidden + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(for_rows + at, up[:, None] * h, mask=inside)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, items: Tensor) -> Tensor:
        hidden = hidden.contiguous()
        n, width = hidden.shape
        ctx.launch = {"D": width, "DP": padded(width), "ROWS": ROWS, "num_warps": 4}
        ctx.tables = weight, bias
        ctx.save_for_backward(hidden, items)
        out = hidden.new_empty((n,), dtype=torch.float32)
        if n:
            _forward[(triton.cdiv(n, ROWS),)](
                hidden, weight, hidden if bias is None else bias, items, out, n, BIASED=bias is not None, **ctx.launch
            )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        hidden, items = ctx.saved_tensors
        weight, bias = ctx.tables
        n = len(hidden)
        upstream = upstream.contiguous()
        for_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        for_rows = hidden.new_empty(hidden.shape, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        if n and (for_hidden is not None or for_rows is not None):
            _backward[(triton.cdiv(n, ROWS),)](
                hidden, weight, items, upstream, upstream if for_hidden is None else for_hidden,
                upstream if for_rows is None else for_rows, n, HIDDEN=for_hidden is not None,
                WEIGHT=for_rows is not None, **ctx.launch,
            )  # fmt: skip
        for_bias = rows_gradient(bias, items, upstream) if ctx.needs_input_grad[2] else None
        return for_hidden, None if for_rows is None else rows_gradient(weight, items, for_rows), for_bias, None


def gather_logits(rows: LinearLogits, items: Tensor) -> Tensor:
    """Logit of each position's item, with gradients: [N] in float32. The head keeps its own precision."""
    weight, bias = rows.head
    return _Gather.apply(rows.hidden, weight.contiguous(), bias, items)  # type: ignore[no-any-return]
