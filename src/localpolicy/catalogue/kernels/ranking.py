"""The rank of each position's item: how many items score above it, and how many tie.

The item's own score must come from the same tiles as the others: another order of the same sum rounds differently, and
items that tie would no longer. `scores_at` therefore reads it off a tile.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from localpolicy.catalogue.kernels.tiles import SUMMED, operands, padded, splits, tile
from localpolicy.catalogue.logits import LinearLogits


@triton.jit
def _walk(
    hidden, weight, bias, items, own, out, tied, n_rows, n_items, part,
    D: tl.constexpr, DP: tl.constexpr, BIASED: tl.constexpr, READ: tl.constexpr,
    ROWS: tl.constexpr, ITEMS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = row < n_rows
    cut = tl.program_id(1)
    d = tl.arange(0, DP)
    column = tl.arange(0, ITEMS)
    h = tl.load(hidden + row[:, None] * D + d[None], mask=here[:, None] & (d < D)[None], other=0.0)
    taken = tl.load(items + row, mask=here, other=-1).to(tl.int32)
    if READ:
        score = tl.zeros((ROWS,), tl.float32)
    else:
        mark = tl.load(own + row, mask=here, other=0.0)
        above = tl.zeros((ROWS,), tl.int32)
        equal = tl.zeros((ROWS,), tl.int32)
    first = cut * part
    last = tl.minimum(first + part, n_items)
    for start in range(first, last, ITEMS):
        item = start + column
        ok = item < last
        w = tl.load(weight + item[:, None].to(tl.int64) * D + d[None], mask=ok[:, None] & (d < D)[None], other=0.0)
        x = tl.dot(h, tl.trans(w), input_precision=PRECISION)
        if BIASED:
            x += tl.load(bias + item, mask=ok, other=0.0).to(tl.float32)[None]
        if READ:
            score += tl.sum(tl.where(item[None] == taken[:, None], x, 0.0), 1)
        else:
            above += tl.sum((ok[None] & (x > mark[:, None])).to(tl.int32), 1)
            equal += tl.sum((ok[None] & (x == mark[:, None])).to(tl.int32), 1)
    at = cut * n_rows + row
    if READ:
        # One program has the item; the others must not write.
        tl.store(out + row, score, mask=here & (taken >= first) & (taken < last))
    else:
        tl.store(out + at, above, mask=here)
        tl.store(tied + at, equal, mask=here)


def _launch(rows: LinearLogits, items: Tensor, own: Tensor | None, precision: str) -> tuple[Tensor, Tensor]:
    hidden, weight, bias = operands(rows)
    (n, width), v = hidden.shape, len(weight)
    shape = tile(SUMMED, width, hidden, precision)
    blocks = triton.cdiv(n, shape.positions)
    cuts, part = splits(v, blocks, shape.items, hidden.device)
    if own is None:
        out = tied = hidden.new_empty((n,), dtype=torch.float32)
    else:
        out, tied = (torch.empty((cuts, n), dtype=torch.int32, device=hidden.device) for _ in range(2))
    if n:
        _walk[(blocks, cuts)](
            hidden, weight, bias, items, hidden if own is None else own, out, tied,
            n, v, part, D=width, DP=padded(width), BIASED=rows.head.bias is not None, READ=own is None,
            ROWS=shape.positions, ITEMS=shape.items, PRECISION=precision, **shape.launch,
        )  # fmt: skip
    return out, tied


def scores_at(rows: LinearLogits, items: Tensor, *, precision: str = "tf32x3") -> Tensor:
    """Row n at its item, as the tiles compute it: [N]."""
    return _launch(rows, items, None, precision)[0]


def counts(rows: LinearLogits, items: Tensor, own: Tensor, *, precision: str = "tf32x3") -> tuple[Tensor, Tensor]:
    """How many items score above `own`, and how many tie with it, the item itself included: [N] each."""
    above, tied = _launch(rows, items, own, precision)
    return above.sum(0), tied.sum(0)
