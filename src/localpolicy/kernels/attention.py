"""Causal attention over short histories, on flat tokens: one program per sequence and head.

A padded block would hold three times as many tokens as there are, and attention over it takes a dozen launches; here a
sequence's queries, keys and values fit into registers, so both directions are one kernel each. Backward forms the
probabilities again, and drops the same ones: what is dropped follows from a seed that forward drew.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable


@triton.jit
def _probabilities(
    q,
    k,
    t,
    width,
    sequence,
    head,
    seed,
    site,
    SCALE: tl.constexpr,
    RATE: tl.constexpr,
    HEADS: tl.constexpr,
    TP: tl.constexpr,
):
    scores = tl.dot(q, tl.trans(k), input_precision="tf32x3") * SCALE
    seen = (t[None] <= t[:, None]) & (t[None] < width)
    scores = tl.where(seen, scores, -1e30)
    e = tl.exp(scores - tl.max(scores, 1)[:, None])
    p = e / tl.sum(e, 1)[:, None]
    kept = tl.full((TP, TP), 1.0, tl.float32)
    if RATE > 0:
        offset = (sequence * HEADS + head) * TP * TP + t[:, None] * TP + t[None]
        kept = tl.where(tl.rand(tl.load(seed) + site, offset) >= RATE, 1.0 / (1.0 - RATE), 0.0)
    return p, kept


@triton.jit(do_not_specialize=["site"])
def _forward(
    qkv, first, stop, seed, out, site,
    D: tl.constexpr, HEADS: tl.constexpr, SCALE: tl.constexpr, RATE: tl.constexpr, TP: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    begin = tl.load(first + sequence)
    width = tl.load(stop + sequence) - begin
    t = tl.arange(0, TP)
    d = tl.arange(0, DP)
    inside = (t < width)[:, None] & (d < D // HEADS)[None]
    token = (begin + t)[:, None]
    at = token * (3 * D) + head * (D // HEADS) + d[None]
    q = tl.load(qkv + at, mask=inside, other=0.0).to(tl.float32)
    k = tl.load(qkv + at + D, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(qkv + at + 2 * D, mask=inside, other=0.0).to(tl.float32)
    p, kept = _probabilities(q, k, t, width, sequence, head, seed, site, SCALE, RATE, HEADS, TP)
    mixed = tl.dot(p * kept, v, input_precision="tf32x3")
    tl.store(out + token * D + head * (D // HEADS) + d[None], mixed, mask=inside)


@triton.jit(do_not_specialize=["site"])
def _backward(
    qkv, first, stop, seed, upstream, for_qkv, site,
    D: tl.constexpr, HEADS: tl.constexpr, SCALE: tl.constexpr, RATE: tl.constexpr, TP: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    begin = tl.load(first + sequence)
    width = tl.load(stop + sequence) - begin
    t = tl.arange(0, TP)
    d = tl.arange(0, DP)
    inside = (t < width)[:, None] & (d < D // HEADS)[None]
    token = (begin + t)[:, None]
    at = token * (3 * D) + head * (D // HEADS) + d[None]
    q = tl.load(qkv + at, mask=inside, other=0.0).to(tl.float32)
    k = tl.load(qkv + at + D, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(qkv + at + 2 * D, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(upstream + token * D + head * (D // HEADS) + d[None], mask=inside, other=0.0).to(tl.float32)
    p, kept = _probabilities(q, k, t, width, sequence, head, seed, site, SCALE, RATE, HEADS, TP)
    for_v = tl.dot(tl.trans(p * kept), g, input_precision="tf32x3")
    for_p = tl.dot(g, tl.trans(v), input_precision="tf32x3") * kept
    for_scores = p * (for_p - tl.sum(p * for_p, 1)[:, None]) * SCALE
    for_q = tl.dot(for_scores, k, input_precision="tf32x3")
    for_k = tl.dot(tl.trans(for_scores), q, input_precision="tf32x3")
    tl.store(for_qkv + at, for_q, mask=inside)
    tl.store(for_qkv + at + D, for_k, mask=inside)
    tl.store(for_qkv + at + 2 * D, for_v, mask=inside)


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, first: Tensor, stop: Tensor, seed: Tensor, how: tuple[int, int, int, float]
    ) -> Tensor:
        columns, heads, ctx.site, rate = how
        qkv = qkv.contiguous()
        width = qkv.shape[1] // 3
        ctx.launch = {
            "D": width, "HEADS": heads, "SCALE": (width // heads) ** -0.5, "RATE": rate,
            "TP": max(16, triton.next_power_of_2(columns)), "DP": max(16, triton.next_power_of_2(width // heads)),
            "num_warps": 4,
        }  # fmt: skip
        out = qkv.new_empty((len(qkv), width))
        if len(qkv):
            _forward[(len(first), heads)](qkv, first, stop, seed, out, ctx.site, **ctx.launch)
        ctx.save_for_backward(qkv, first, stop, seed)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        qkv, first, stop, seed = ctx.saved_tensors
        for_qkv = torch.empty_like(qkv)
        if len(qkv):
            grid = (len(first), ctx.launch["HEADS"])
            _backward[grid](qkv, first, stop, seed, upstream.contiguous(), for_qkv, ctx.site, **ctx.launch)
        return for_qkv, None, None, None, None


def short_attention(
    qkv: Tensor, first: Tensor, stop: Tensor, *, columns: int, heads: int, dropout: float, seed: Tensor, site: int = 0
) -> Tensor:
    """softmax(q kᵀ / √d) v within each sequence, causal: [M, 3D] -> [M, D].

    Sequence r holds the tokens first[r] … stop[r] - 1, at most `columns`; every token belongs to one. What is dropped
    follows from `seed` [1], which is read on the device, and from the `site`, which tells places apart that share it.
    """
    how = (columns, heads, site, dropout)
    return _ShortAttention.apply(qkv, first, stop, seed, how)  # type: ignore[no-any-return]
