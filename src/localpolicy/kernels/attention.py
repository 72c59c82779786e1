"""Causal attention over short histories, on flat tokens: one program per sequence and head.

A padded block would hold three times as many tokens as there are, and attention over it takes a dozen launches; here a
sequence's probabilities fit into registers, so both directions are one kernel each. Backward computes the probabilities
again and repeats the dropout: its mask follows from a seed that forward drew.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

COLUMNS = 64  # of a head at a time: 128 of queries, keys and values together would not fit into registers


@triton.jit
def _place(token, inside, head, start, ROW: tl.constexpr, WIDTH: tl.constexpr, DC: tl.constexpr):
    """Offsets of DC columns of a head in rows of ROW numbers, and a mask of those that exist: [TP, DC] each."""
    d = start + tl.arange(0, DC)
    return token[:, None] * ROW + head * WIDTH + d[None], inside[:, None] & (d < WIDTH)[None]


@triton.jit
def _scores(left, right, token, inside, head, LEFT: tl.constexpr, RIGHT: tl.constexpr, WIDTH: tl.constexpr,
            TP: tl.constexpr, DP: tl.constexpr, DC: tl.constexpr):  # fmt: skip
    """left · rightᵀ of a head: [TP, TP]."""
    scores = tl.zeros((TP, TP), tl.float32)
    for start in range(0, DP, DC):
        at, ok = _place(token, inside, head, start, LEFT, WIDTH, DC)
        a = tl.load(left + at, mask=ok, other=0.0).to(tl.float32)
        at, ok = _place(token, inside, head, start, RIGHT, WIDTH, DC)
        b = tl.load(right + at, mask=ok, other=0.0).to(tl.float32)
        scores += tl.dot(a, tl.trans(b), input_precision="tf32x3")
    return scores


@triton.jit
def _probabilities(
    scores, t, width, sequence, head, seed, site,
    RATE: tl.constexpr, HEADS: tl.constexpr, TP: tl.constexpr,
):  # fmt: skip
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
    DC: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    begin = tl.load(first + sequence)
    width = tl.load(stop + sequence) - begin
    t = tl.arange(0, TP)
    token = begin + t
    inside = t < width
    scores = _scores(qkv, qkv + D, token, inside, head, 3 * D, 3 * D, D // HEADS, TP, DP, DC) * SCALE
    p, kept = _probabilities(scores, t, width, sequence, head, seed, site, RATE, HEADS, TP)
    p = p * kept
    for start in range(0, DP, DC):
        at, ok = _place(token, inside, head, start, 3 * D, D // HEADS, DC)
        v = tl.load(qkv + 2 * D + at, mask=ok, other=0.0).to(tl.float32)
        at, ok = _place(token, inside, head, start, D, D // HEADS, DC)
        tl.store(out + at, tl.dot(p, v, input_precision="tf32x3"), mask=ok)


@triton.jit(do_not_specialize=["site"])
def _backward(
    qkv, first, stop, seed, upstream, for_qkv, site,
    D: tl.constexpr, HEADS: tl.constexpr, SCALE: tl.constexpr, RATE: tl.constexpr, TP: tl.constexpr, DP: tl.constexpr,
    DC: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    begin = tl.load(first + sequence)
    width = tl.load(stop + sequence) - begin
    t = tl.arange(0, TP)
    token = begin + t
    inside = t < width
    scores = _scores(qkv, qkv + D, token, inside, head, 3 * D, 3 * D, D // HEADS, TP, DP, DC) * SCALE
    p, kept = _probabilities(scores, t, width, sequence, head, seed, site, RATE, HEADS, TP)
    for_p = _scores(upstream, qkv + 2 * D, token, inside, head, D, 3 * D, D // HEADS, TP, DP, DC) * kept
    for_scores = p * (for_p - tl.sum(p * for_p, 1)[:, None]) * SCALE
    p = p * kept
    for start in range(0, DP, DC):
        at, ok = _place(token, inside, head, start, D, D // HEADS, DC)
        g = tl.load(upstream + at, mask=ok, other=0.0).to(tl.float32)
        at, ok = _place(token, inside, head, start, 3 * D, D // HEADS, DC)
        tl.store(for_qkv + 2 * D + at, tl.dot(tl.trans(p), g, input_precision="tf32x3"), mask=ok)
        k = tl.load(qkv + D + at, mask=ok, other=0.0).to(tl.float32)
        tl.store(for_qkv + at, tl.dot(for_scores, k, input_precision="tf32x3"), mask=ok)
        q = tl.load(qkv + at, mask=ok, other=0.0).to(tl.float32)
        tl.store(for_qkv + D + at, tl.dot(tl.trans(for_scores), q, input_precision="tf32x3"), mask=ok)


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
        ctx.launch["DC"] = min(COLUMNS, ctx.launch["DP"])
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

    Sequence r holds the tokens first[r] … stop[r] - 1, at most `columns`; every token belongs to one. The dropout mask
    follows from `seed` [1], which is read on the device, and from `site`, the number of the layer that uses it.
    """
    how = (columns, heads, site, dropout)
    return _ShortAttention.apply(qkv, first, stop, seed, how)  # type: ignore[no-any-return]
