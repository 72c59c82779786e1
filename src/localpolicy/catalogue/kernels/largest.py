"""max_a row_a and the first item that has it.

Every lane keeps the best of its own column of tiles, so that a tile costs a comparison and two selections an element;
lanes meet once, at the end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from localpolicy.catalogue.kernels.tiles import LARGEST, operands, padded, splits, tile
from localpolicy.catalogue.logits import LinearLogits

NO_ITEM = tl.constexpr(2147483647)


@triton.jit
def _partial(
    hidden, weight, bias, bests, bearers, n_rows, n_items, part,
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
    best = tl.full((ROWS, ITEMS), -float("inf"), tl.float32)
    bearer = tl.zeros((ROWS, ITEMS), tl.int32) + first
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
        better = x > best
        best = tl.where(better, x, best)
        bearer = tl.where(better, start, bearer)
    top = tl.max(best, 1)
    candidate = tl.where((best == top[:, None]) & (bearer + column[None] < n_items), bearer + column[None], NO_ITEM)
    tl.store(bests + cut * n_rows + row, top, mask=here)
    tl.store(bearers + cut * n_rows + row, tl.min(candidate, 1), mask=here)


@triton.jit
def _combine(bests, bearers, best, bearer, n_rows, cuts, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = row < n_rows
    top = tl.load(bests + row, mask=here, other=0.0)
    item = tl.load(bearers + row, mask=here, other=0)
    for cut in range(1, cuts):
        other = tl.load(bests + cut * n_rows + row, mask=here, other=0.0)
        better = other > top  # a tie keeps the earlier item
        item = tl.where(better, tl.load(bearers + cut * n_rows + row, mask=here, other=0), item)
        top = tl.where(better, other, top)
    tl.store(best + row, top, mask=here)
    tl.store(bearer + row, item.to(tl.int64), mask=here)


def largest(rows: LinearLogits, *, precision: str = "tf32") -> tuple[Tensor, Tensor]:
    """max_a row_a [N], and its first item [N]."""
    hidden, weight, bias = operands(rows)
    (n, width), v = hidden.shape, len(weight)
    best = hidden.new_empty((n,), dtype=torch.float32)
    bearer = hidden.new_empty((n,), dtype=torch.long)
    if n == 0:
        return best, bearer
    shape = tile(LARGEST, width, hidden, precision)
    blocks = triton.cdiv(n, shape.positions)
    cuts, part = splits(v, blocks, shape.items, hidden.device)
    bests = hidden.new_empty((cuts, n), dtype=torch.float32)
    bearers = hidden.new_empty((cuts, n), dtype=torch.int32)
    _partial[(blocks, cuts)](
        hidden, weight, bias, bests, bearers, n, v, part,
        D=width, DP=padded(width), BIASED=rows.head.bias is not None, ROWS=shape.positions, ITEMS=shape.items,
        PRECISION=precision, **shape.launch,
    )  # fmt: skip
    _combine[(triton.cdiv(n, 128),)](bests, bearers, best, bearer, n, cuts, ROWS=128, num_warps=4)
    return best, bearer
