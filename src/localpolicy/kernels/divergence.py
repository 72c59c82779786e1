"""Σ_a [p softplus(d) + q softplus(-d)] and -Σ_a p d with d = log q - log p: the sums behind JS and KL.

Both distributions' tiles are formed together; their normalisers are known.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from localpolicy.kernels.tiles import VALUED, operands, padded, splits, tile
from localpolicy.logits import LinearLogits

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _tile(h, weight, bias, item, ok, d, D: tl.constexpr, BIASED: tl.constexpr, PRECISION: tl.constexpr):
    w = tl.load(weight + item[:, None].to(tl.int64) * D + d[None], mask=ok[:, None] & (d < D)[None], other=0.0)
    x = tl.dot(h, tl.trans(w), input_precision=PRECISION)
    if BIASED:
        x += tl.load(bias + item, mask=ok, other=0.0).to(tl.float32)[None]
    return x


@triton.jit
def _sums(
    hidden_p, weight_p, bias_p, normal_p, hidden_q, weight_q, bias_q, normal_q, mixeds, kls, n_rows, n_items, part,
    D_P: tl.constexpr, DP_P: tl.constexpr, BIASED_P: tl.constexpr,
    D_Q: tl.constexpr, DP_Q: tl.constexpr, BIASED_Q: tl.constexpr,
    ROWS: tl.constexpr, ITEMS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = row < n_rows
    cut = tl.program_id(1)
    d_p = tl.arange(0, DP_P)
    d_q = tl.arange(0, DP_Q)
    column = tl.arange(0, ITEMS)
    h_p = tl.load(hidden_p + row[:, None] * D_P + d_p[None], mask=here[:, None] & (d_p < D_P)[None], other=0.0)
    h_q = tl.load(hidden_q + row[:, None] * D_Q + d_q[None], mask=here[:, None] & (d_q < D_Q)[None], other=0.0)
    log_z_p = tl.load(normal_p + row, mask=here, other=0.0)
    log_z_q = tl.load(normal_q + row, mask=here, other=0.0)
    mixed = tl.zeros((ROWS,), tl.float32)
    kl = tl.zeros((ROWS,), tl.float32)
    first = cut * part
    last = tl.minimum(first + part, n_items)
    for start in range(first, last, ITEMS):
        item = start + column
        ok = item < last
        log_p = _tile(h_p, weight_p, bias_p, item, ok, d_p, D_P, BIASED_P, PRECISION) - log_z_p[:, None]
        log_q = _tile(h_q, weight_q, bias_q, item, ok, d_q, D_Q, BIASED_Q, PRECISION) - log_z_q[:, None]
        gap = log_q - log_p
        p = tl.where(ok[None], tl.exp2(log_p * LOG2E), 0.0)
        q = tl.where(ok[None], tl.exp2(log_q * LOG2E), 0.0)
        soft = tl.maximum(gap, 0.0) + LN2 * tl.log2(1.0 + tl.exp2(-tl.abs(gap) * LOG2E))
        mixed += tl.sum(p * soft + q * (soft - gap), 1)
        kl -= tl.sum(p * gap, 1)
    at = cut * n_rows + row
    tl.store(mixeds + at, mixed, mask=here)
    tl.store(kls + at, kl, mask=here)


def divergence_sums(
    p: LinearLogits, q: LinearLogits, normal_p: Tensor, normal_q: Tensor, *, precision: str = "tf32x3"
) -> tuple[Tensor, Tensor]:
    """Σ_a [p softplus(d) + q softplus(-d)] and -Σ_a p d, given the logarithms of both normalisers: [N] each."""
    (n, width_p), v, width_q = p.hidden.shape, len(p.head.weight), q.hidden.shape[1]
    shape = tile(VALUED, max(width_p, width_q), p.hidden, precision)
    blocks = triton.cdiv(n, shape.positions)
    cuts, part = splits(v, blocks, shape.items, p.hidden.device)
    mixed, kl = (p.hidden.new_empty((cuts, n), dtype=torch.float32) for _ in range(2))
    if n:
        _sums[(blocks, cuts)](
            *operands(p), normal_p, *operands(q), normal_q, mixed, kl, n, v, part,
            D_P=width_p, DP_P=padded(width_p), BIASED_P=p.head.bias is not None,
            D_Q=width_q, DP_Q=padded(width_q), BIASED_Q=q.head.bias is not None,
            ROWS=shape.positions, ITEMS=shape.items, PRECISION=precision, **shape.launch,
        )  # fmt: skip
    return mixed.sum(0), kl.sum(0)
