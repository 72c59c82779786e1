"""Ranks and distributions in one pass over the catalogue: numbers of items above the taken one and tied with it, the
best item, log Σ e^x, and Σ p·x for the entropy.

An item's own score may be rounded otherwise than those of its tile: scores within the bounds that the caller gives tie.
The taken item itself is known by its index, and counts neither above nor among the tied.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from localpolicy.kernels.tiles import SUMMED, VARYING, Tile, operands, padded, splits, tile
from localpolicy.logits import LinearLogits

LOG2E = tl.constexpr(1.4426950408889634)
NO_ITEM = tl.constexpr(2147483647)


class Ranked(NamedTuple):
    """Result of `ranked`, [N] each; None for a field that was not requested."""

    above: Tensor  # other items that score above
    tied: Tensor  # other items that score the same
    best: Tensor | None = None  # the first item with the largest score
    normaliser: Tensor | None = None  # log Σ_a e^{x_a}
    mean: Tensor | None = None  # Σ_a p_a x_a


@triton.jit(do_not_specialize=VARYING)
def _own(
    hidden, weight, bias, items, out, n_rows,
    D: tl.constexpr, DP: tl.constexpr, BIASED: tl.constexpr,
    ROWS: tl.constexpr, ITEMS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * ROWS
    step = tl.arange(0, ROWS)
    row = first + step
    d = tl.arange(0, DP)
    h = tl.load(hidden + row[:, None] * D + d[None], mask=(row < n_rows)[:, None] & (d < D)[None], other=0.0)
    score = tl.zeros((ROWS,), tl.float32)
    for start in range(0, ROWS, ITEMS):  # the items of a few of the rows at a time: only one of each row counts
        column = start + tl.arange(0, ITEMS)
        ok = (first + column < n_rows) & (column < ROWS)
        item = tl.load(items + first + column, mask=ok, other=0)
        w = tl.load(weight + item[:, None].to(tl.int64) * D + d[None], mask=ok[:, None] & (d < D)[None], other=0.0)
        x = tl.dot(h, tl.trans(w), input_precision=PRECISION)
        if BIASED:
            x += tl.load(bias + item, mask=ok, other=0.0).to(tl.float32)[None]
        score += tl.sum(tl.where(column[None] == step[:, None], x, 0.0), 1)
    tl.store(out + row, score, mask=row < n_rows)


@triton.jit(do_not_specialize=VARYING)
def _walk(
    hidden, weight, bias, items, lows, highs, aboves, tieds, tops, bearers, totals, weighteds, n_rows, n_items, part,
    D: tl.constexpr, DP: tl.constexpr, BIASED: tl.constexpr, ALL: tl.constexpr,
    ROWS: tl.constexpr, ITEMS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = row < n_rows
    cut = tl.program_id(1)
    d = tl.arange(0, DP)
    column = tl.arange(0, ITEMS)
    h = tl.load(hidden + row[:, None] * D + d[None], mask=here[:, None] & (d < D)[None], other=0.0)
    low = tl.load(lows + row, mask=here, other=0.0)
    high = tl.load(highs + row, mask=here, other=0.0)
    taken = tl.load(items + row, mask=here, other=-1).to(tl.int32)
    above = tl.zeros((ROWS,), tl.int32)
    equal = tl.zeros((ROWS,), tl.int32)
    first = cut * part
    last = tl.minimum(first + part, n_items)
    if ALL:
        top = tl.full((ROWS,), -float("inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        weighted = tl.zeros((ROWS,), tl.float32)
        best = tl.full((ROWS, ITEMS), -float("inf"), tl.float32)  # every lane keeps the best of its own column
        bearer = tl.zeros((ROWS, ITEMS), tl.int32) + first
    for start in range(first, last, ITEMS):
        item = start + column
        ok = item < last
        w = tl.load(weight + item[:, None].to(tl.int64) * D + d[None], mask=ok[:, None] & (d < D)[None], other=0.0)
        x = tl.dot(h, tl.trans(w), input_precision=PRECISION)
        if BIASED:
            x += tl.load(bias + item, mask=ok, other=0.0).to(tl.float32)[None]
        other = ok[None] & (item[None] != taken[:, None])
        higher = x > high[:, None]
        above += tl.sum((other & higher).to(tl.int32), 1)
        equal += tl.sum((other & (x >= low[:, None]) & (x <= high[:, None])).to(tl.int32), 1)
        if ALL:
            x = tl.where(ok[None], x, -float("inf"))
            better = x > best
            best = tl.where(better, x, best)
            bearer = tl.where(better, start, bearer)
            largest = tl.maximum(top, tl.max(x, 1))
            # A row of -inf so far: e^{-inf - -inf} would be NaN.
            shift = tl.where(largest == -float("inf"), 0.0, largest) * LOG2E
            scale = tl.exp2(top * LOG2E - shift)
            e = tl.exp2(x * LOG2E - shift[:, None])
            total = total * scale + tl.sum(e, 1)
            weighted = weighted * scale + tl.sum(tl.where(e > 0, e * x, 0.0), 1)  # 0 · -inf counts as 0
            top = largest
    at = cut * n_rows + row
    tl.store(aboves + at, above, mask=here)
    tl.store(tieds + at, equal, mask=here)
    if ALL:
        candidate = bearer + column[None]
        candidate = tl.where((best == top[:, None]) & (candidate < n_items), candidate, NO_ITEM)
        tl.store(tops + at, top, mask=here)
        tl.store(bearers + at, tl.min(candidate, 1), mask=here)
        tl.store(totals + at, total, mask=here)
        tl.store(weighteds + at, weighted, mask=here)


def _shape(rows: LinearLogits, precision: str) -> Tile:
    return tile(SUMMED, rows.hidden.shape[1], rows.hidden, precision)


def _depth(width: int) -> int:
    """Padded depth of a product, at least 32: one of depth 16 is rounded differently in `_own` and in `_walk`."""
    return max(32, padded(width))


def scores_at(rows: LinearLogits, items: Tensor, *, precision: str = "tf32x3") -> Tensor:
    """Logit of each position's item, rounded as in the tiles: [N]."""
    hidden, weight, bias = operands(rows)
    n, width = hidden.shape
    shape = _shape(rows, precision)
    own = hidden.new_empty((n,), dtype=torch.float32)
    if n:
        _own[(triton.cdiv(n, shape.positions),)](
            hidden, weight, bias, items, own, n, D=width, DP=_depth(width), BIASED=rows.head.bias is not None,
            ROWS=shape.positions, ITEMS=shape.items, PRECISION=precision, **shape.launch,
        )  # fmt: skip
    return own


def ranked(
    rows: LinearLogits,
    items: Tensor,
    bounds: tuple[Tensor, Tensor],
    *,
    everything: bool = False,
    precision: str = "tf32x3",
) -> Ranked:
    """Count the other items above and within `bounds` (low, high) [N]; with `everything` fill all of `Ranked`.

    An item below 0 is not among these rows.
    """
    hidden, weight, bias = operands(rows)
    (n, width), v = hidden.shape, len(weight)
    shape = _shape(rows, precision)
    blocks = triton.cdiv(n, shape.positions)
    cuts, part = splits(v, blocks, shape.items, hidden.device)

    def room(kind: torch.dtype, *, wanted: bool = True) -> Tensor:
        return torch.empty((cuts, n) if wanted else (1,), dtype=kind, device=hidden.device)

    low, high = (bound.contiguous() for bound in bounds)
    above, tied = room(torch.int32), room(torch.int32)
    tops, totals, weighteds = (room(torch.float32, wanted=everything) for _ in range(3))
    bearers = room(torch.int32, wanted=everything)
    if n:
        _walk[(blocks, cuts)](
            hidden, weight, bias, items, low, high, above, tied, tops, bearers, totals, weighteds, n, v, part,
            D=width, DP=_depth(width), BIASED=rows.head.bias is not None, ALL=everything,
            ROWS=shape.positions, ITEMS=shape.items, PRECISION=precision, **shape.launch,
        )  # fmt: skip
    counted = Ranked(above.sum(0), tied.sum(0))
    if not everything:
        return counted
    top = tops.amax(0)
    share = torch.exp(tops - top.where(top > -torch.inf, 0.0))
    total = (totals * share).sum(0)
    best = bearers.where(tops == top, NO_ITEM.value).amin(0)
    return counted._replace(best=best.long(), normaliser=top + total.log(), mean=(weighteds * share).sum(0) / total)
