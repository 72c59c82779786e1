"""h + dropout(x) and its layer norm in one kernel, and the gradients of both in another; column sums for biases.

At the sizes of this field a step is bound by the number of its kernels, and these steps of a block are a third of them.
The dropout mask follows from a seed that the caller drew and from the layer's number in the network: backward drops the
same numbers again.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from localpolicy.runtime.deferred_gradients import compute_on_branch

TOKENS = 16  # of a program
EPSILON = tl.constexpr(1e-5)  # as nn.LayerNorm has it


@triton.jit
def _kept(seed, site, at, RATE: tl.constexpr):
    """Dropout factor: 1 / (1 - rate), or 0 at a dropped number."""
    return tl.where(tl.rand(tl.load(seed) + site, at) >= RATE, 1.0 / (1.0 - RATE), 0.0)


@triton.jit(do_not_specialize=["n", "site"])
def _forward(
    hidden, branch, seed, gain, shift, summed, normed, n, site,
    D: tl.constexpr, DP: tl.constexpr, ADDS: tl.constexpr, RATE: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    d = tl.arange(0, DP)
    inside = (token < n)[:, None] & (d < D)[None]
    at = token[:, None] * D + d[None]
    x = tl.load(branch + at, mask=inside, other=0.0)
    if RATE > 0:
        x *= _kept(seed, site, at, RATE)
    if ADDS:
        x += tl.load(hidden + at, mask=inside, other=0.0)
    tl.store(summed + at, x, mask=inside)
    centred = tl.where(inside, x - (tl.sum(x, 1) / D)[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / D + EPSILON)
    g = tl.load(gain + d, mask=d < D, other=0.0)
    b = tl.load(shift + d, mask=d < D, other=0.0)
    tl.store(normed + at, centred * scale[:, None] * g[None] + b[None], mask=inside)


@triton.jit(do_not_specialize=["n", "site"])
def _backward(
    summed, seed, gain, for_summed, for_normed, for_hidden, for_branch, for_norms, n, site,
    D: tl.constexpr, DP: tl.constexpr, SUMMED: tl.constexpr, ADDS: tl.constexpr, RATE: tl.constexpr,
    TOKENS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    d = tl.arange(0, DP)
    inside = (token < n)[:, None] & (d < D)[None]
    at = token[:, None] * D + d[None]
    x = tl.load(summed + at, mask=inside, other=0.0)
    up = tl.load(for_normed + at, mask=inside, other=0.0)
    g = tl.load(gain + d, mask=d < D, other=0.0)
    centred = tl.where(inside, x - (tl.sum(x, 1) / D)[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / D + EPSILON)
    z = centred * scale[:, None]
    row = tl.program_id(0) * 2 * D + d  # this program's part of the gain's and of the shift's gradient
    tl.store(for_norms + row, tl.sum(up * z, 0), mask=d < D)
    tl.store(for_norms + row + D, tl.sum(up, 0), mask=d < D)
    up *= g[None]
    for_x = scale[:, None] * (up - (tl.sum(up, 1) / D)[:, None] - z * (tl.sum(up * z, 1) / D)[:, None])
    if SUMMED:
        for_x += tl.load(for_summed + at, mask=inside, other=0.0)
    if ADDS:
        tl.store(for_hidden + at, for_x, mask=inside)
    if RATE > 0:
        for_x *= _kept(seed, site, at, RATE)
    tl.store(for_branch + at, for_x, mask=inside)


@triton.jit(do_not_specialize=["n"])
def _add_rows(values, out, n, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, n, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < n)[:, None] & (column < width)[None]
        total += tl.load(values + row[:, None] * width + column[None], mask=inside, other=0.0)
    tl.store(out + column, tl.sum(total, 0), mask=column < width)


def column_sums(values: Tensor) -> Tensor:
    """Σ over rows, always in the same order: [n, width] -> [width]."""
    values = values.contiguous()
    out = values.new_empty(values.shape[1])
    columns = 16
    _add_rows[(triton.cdiv(values.shape[1], columns),)](
        values, out, *values.shape, ROWS=128, COLUMNS=columns, num_warps=4
    )
    return out


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.tables = weight, bias
        return functional.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        for_x = upstream @ weight if ctx.needs_input_grad[0] else None
        return for_x, *compute_on_branch(
            ctx.tables, lambda: (upstream.T @ x, column_sums(upstream)), reads=(x, upstream)
        )


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """x Wᵀ + b."""
    return _Linear.apply(x, layer.weight, layer.bias)  # type: ignore[no-any-return]


class _AddAndNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor | None,
        branch: Tensor,
        gain: Tensor,
        shift: Tensor,
        seed: Tensor,
        how: tuple[int, float],
    ) -> tuple[Tensor, Tensor]:
        site, rate = how
        branch = branch.contiguous()
        n, width = branch.shape
        ctx.launch = {
            "D": width, "DP": max(16, triton.next_power_of_2(width)), "ADDS": hidden is not None, "RATE": rate,
            "TOKENS": TOKENS, "num_warps": 4,
        }  # fmt: skip
        ctx.site = site
        summed, normed = torch.empty_like(branch), torch.empty_like(branch)
        if n:
            _forward[(triton.cdiv(n, TOKENS),)](
                branch if hidden is None else hidden.contiguous(), branch, seed, gain, shift, summed, normed, n, site,
                **ctx.launch,
            )  # fmt: skip
        ctx.save_for_backward(summed, seed, gain)
        ctx.tables = gain, shift
        ctx.set_materialize_grads(False)
        return summed, normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, for_summed: Tensor | None, for_normed: Tensor | None) -> tuple[Tensor | None, ...]:
        summed, seed, gain = ctx.saved_tensors
        n, width = summed.shape
        up = torch.zeros_like(summed) if for_normed is None else for_normed.contiguous()
        programs = max(1, triton.cdiv(n, TOKENS))
        parts = summed.new_empty((programs, 2 * width))
        for_branch = torch.empty_like(summed)
        for_hidden = torch.empty_like(summed) if ctx.launch["ADDS"] and ctx.launch["RATE"] > 0 else for_branch
        if n:
            _backward[(programs,)](
                summed, seed, gain, up if for_summed is None else for_summed.contiguous(), up, for_hidden, for_branch,
                parts, n, ctx.site, SUMMED=for_summed is not None, **ctx.launch,
            )  # fmt: skip
        else:
            parts.zero_()
        for_norm = compute_on_branch(ctx.tables, lambda: (*column_sums(parts).view(2, width),), reads=(parts,))
        return (for_hidden if ctx.launch["ADDS"] else None), for_branch, *for_norm, None, None


def add_and_norm(
    hidden: Tensor | None, branch: Tensor, norm: nn.LayerNorm, *, seed: Tensor, site: int, dropout: float
) -> tuple[Tensor, Tensor]:
    """s = hidden + dropout(branch), and norm(s): [M, D] each; s = dropout(branch) without `hidden`.

    `site` is the number of the layer, since layers of a step share a seed; steps of one run never share one.
    """
    return _AddAndNorm.apply(hidden, branch, norm.weight, norm.bias, seed, (site, dropout))  # type: ignore[no-any-return]
