"""max_a row_a and the first item that has it.

A tile gives one maximum for each position, so that it costs an addition and a comparison an element. Which tile had the
largest is kept; at the end its items are scored again to find the item.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from localpolicy.kernels.tiles import LARGEST, operands, padded, splits, tile
from localpolicy.logits import LinearLogits

NO_ITEM = tl.constexpr(2147483647)


@triton.jit
def _partial(
    hidden, weight, bias, bests, starts, n_rows, n_items, part,
    D: tl.constexpr, DP: tl.constexpr, BIASED: tl.constexpr, ROWS: tl.constexpr, ITEMS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = row < n_rows
    cut = tl.program_id(1)
    d = tl.arange(0, DP)
    column = tl.arange(0, ITEMS)
    h = tl.load(hidden + row[:, None] * D + d[None], mask=here[:, None] & (d < D)[None], other=0.0)
    first = cut * part
    last = tl.minimum(first + part, n_items)
    best = tl.full((ROWS,), -float("inf"), tl.float32)
    best_start = tl.zeros((ROWS,), tl.int32) + first
    for start in range(first, last, ITEMS):
        item = start + column
        ok = item < last
        w = tl.load(
            weight + item[:, None].to(tl.int64) * D + d[None],
            mask=ok[:, None] & (d < D)[None],
            other=0.0,
        )
        x = tl.dot(h, tl.trans(w), input_precision=PRECISION)
        if BIASED:
            x += tl.load(bias + item, mask=ok, other=-float("inf")).to(tl.float32)[None]
        else:
            x = tl.where(ok[None], x, -float("inf"))
        top = tl.max(x, 1)
        best_start = tl.where(top > best, start, best_start)  # a tie keeps the earlier tile
        best = tl.maximum(best, top)
    tl.store(bests + cut * n_rows + row, best, mask=here)
    tl.store(starts + cut * n_rows + row, best_start, mask=here)


@triton.jit
def _combine(
    hidden, weight, bias, bests, starts, best, bearer, n_rows, n_items, cuts,
    D: tl.constexpr, DP: tl.constexpr, BIASED: tl.constexpr, ITEMS: tl.constexpr, CUTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    cut = tl.arange(0, CUTS)
    d = tl.arange(0, DP)
    tops = tl.load(bests + cut * n_rows + row, mask=cut < cuts, other=-float("inf"))
    top = tl.max(tops, 0)
    earliest = tl.min(tl.where((tops == top) & (cut < cuts), cut, CUTS - 1), 0)
    item = tl.load(starts + earliest * n_rows + row) + tl.arange(0, ITEMS)
    ok = item < n_items
    h = tl.load(hidden + row * D + d, mask=d < D, other=0.0).to(tl.float32)
    entry = item[:, None].to(tl.int64) * D + d[None]
    w = tl.load(weight + entry, mask=ok[:, None] & (d < D)[None], other=0.0).to(tl.float32)
    x = tl.sum(w * h[None], 1)
    if BIASED:
        x += tl.load(bias + item, mask=ok, other=0.0).to(tl.float32)
    x = tl.where(ok, x, -float("inf"))
    tl.store(best + row, top)
    tl.store(bearer + row, tl.min(tl.where(ok & (x == tl.max(x, 0)), item, NO_ITEM), 0).to(tl.int64))


def argmax(rows: LinearLogits, *, precision: str = "tf32") -> tuple[Tensor, Tensor]:
    """(max_a row_a, the first item that has it): [N] each."""
    hidden, weight, bias = operands(rows)
    (n, width), v = hidden.shape, len(weight)
    best = hidden.new_empty((n,), dtype=torch.float32)
    bearer = hidden.new_empty((n,), dtype=torch.long)
    if n == 0:
        return best, bearer
    shape = tile(LARGEST, width, hidden, precision)
    blocks = triton.cdiv(n, shape.positions)
    cuts, part = splits(v, blocks, shape.items, hidden.device, waves=shape.waves, most=shape.most)
    bests = hidden.new_empty((cuts, n), dtype=torch.float32)
    starts = hidden.new_empty((cuts, n), dtype=torch.int32)
    head = {"D": width, "DP": padded(width), "BIASED": rows.head.bias is not None, "ITEMS": shape.items}
    _partial[(blocks, cuts)](
        hidden,
        weight,
        bias,
        bests,
        starts,
        n,
        v,
        part,
        ROWS=shape.positions,
        PRECISION=precision,
        **head,
        **shape.launch,
    )
    _combine[(n,)](
        hidden, weight, bias, bests, starts, best, bearer, n, v, cuts,
        CUTS=triton.next_power_of_2(cuts), num_warps=4, **head,
    )  # fmt: skip
    return best, bearer
