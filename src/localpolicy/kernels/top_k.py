"""The k largest scores of each row and their items, in falling order; of equal scores the lower index comes first.

The k best items lie in the k groups of neighbours whose maxima are largest, where of equal maxima the earlier group
counts as larger: a number outside them stands behind the k items that have those maxima. So tiles keep one maximum per
group; groups of groups are narrowed down in the same way; and only the items of the last k groups are scored again,
which is done in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from localpolicy.kernels.tiles import LARGEST, Tile, operands, padded, splits, tile
from localpolicy.logits import LinearLogits

LARGEST_GROUP = 128  # items of a group: those of a tile
FOLD = 8  # groups of a group of groups
CANDIDATES = 4096  # numbers from which one program chooses
LONGEST = CANDIDATES // FOLD  # the largest k: the groups of k groups are candidates of one program
ROOM = 1 << 26  # maxima that exist at a time: 256 MiB
DEPTH = 128  # of three TF32 products at a time: beyond that their halves do not fit into shared memory

GONE = tl.constexpr(-(1 << 63))
LAST = tl.constexpr((1 << 31) - 1)


@triton.jit
def _maxima(
    hidden, weight, bias, maxima, n_rows, n_items, n_groups, part,
    D: tl.constexpr, DP: tl.constexpr, PIECES: tl.constexpr, BIASED: tl.constexpr,
    ROWS: tl.constexpr, GROUP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = row < n_rows
    d = tl.arange(0, DP)
    column = tl.arange(0, GROUP)
    h = tl.load(hidden + row[:, None] * D + d[None], mask=here[:, None] & (d < D)[None], other=0.0)
    first = tl.program_id(1) * part
    for group in range(first, tl.minimum(first + part, n_groups)):
        item = group * GROUP + column
        ok = item < n_items
        at = weight + item[:, None].to(tl.int64) * D + d[None]
        w = tl.load(at, mask=ok[:, None] & (d < D)[None], other=0.0)
        x = tl.dot(h, tl.trans(w), input_precision=PRECISION)
        for piece in tl.static_range(1, PIECES):  # widths whose tiles do not fit at once
            inside = piece * DP + d < D
            more = hidden + row[:, None] * D + piece * DP + d[None]
            more_h = tl.load(more, mask=here[:, None] & inside[None], other=0.0)
            more_w = tl.load(at + piece * DP, mask=ok[:, None] & inside[None], other=0.0)
            x = tl.dot(more_h, tl.trans(more_w), x, input_precision=PRECISION)
        if BIASED:
            x += tl.load(bias + item, mask=ok, other=-float("inf")).to(tl.float32)[None]
        else:
            x = tl.where(ok[None], x, -float("inf"))
        tl.store(maxima + group * n_rows + row, tl.max(x, 1), mask=here)


@triton.jit
def _scores(
    hidden, weight, bias, groups, scores, n_rows, n_items, k,
    D: tl.constexpr, DP: tl.constexpr, BIASED: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, GROUP)
    d = tl.arange(0, DP)
    item = tl.load(groups + row * k + tl.program_id(1)).to(tl.int64) * GROUP + column
    ok = item < n_items
    h = tl.load(hidden + row * D + d, mask=d < D, other=0.0).to(tl.float32)
    w = tl.load(weight + item[:, None] * D + d[None], mask=ok[:, None] & (d < D)[None], other=0.0).to(tl.float32)
    x = tl.sum(w * h[None], 1)
    if BIASED:
        x += tl.load(bias + item, mask=ok, other=0.0).to(tl.float32)
    at = (tl.program_id(1) * GROUP + column).to(tl.int64) * n_rows + row
    tl.store(scores + at, tl.where(ok, x, -float("inf")))


@triton.jit
def _fold(values, maxima, n_rows, n_columns, FOLD: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * FOLD + tl.arange(0, FOLD)
    inside = (row < n_rows)[None] & (column < n_columns)[:, None]
    x = tl.load(values + column[:, None].to(tl.int64) * n_rows + row[None], mask=inside, other=-float("inf"))
    tl.store(maxima + tl.program_id(1) * n_rows + row, tl.max(x, 0), mask=row < n_rows)


@triton.jit
def _choose(
    values, groups, chosen, best, n_rows, n_columns, n_candidates, k,
    FOLD: tl.constexpr, GROUPED: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    candidate = tl.arange(0, CANDIDATES)
    ok = candidate < n_candidates
    column = candidate
    if GROUPED:  # the members of the chosen groups alone
        column = tl.load(groups + row * k + candidate // FOLD, mask=ok, other=0) * FOLD + candidate % FOLD
        ok = ok & (column < n_columns)
    x = tl.load(values + column.to(tl.int64) * n_rows + row, mask=ok, other=0.0)
    # One number that orders by value, then by falling index. Zero has two signs, which must tie.
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    order = bits ^ ((bits >> 31) & LAST)
    key = tl.where(ok, (order.to(tl.int64) << 32) | (column ^ LAST).to(tl.int64), GONE)
    for place in range(k):
        top = tl.max(key, 0)
        top_order = (top >> 32).to(tl.int32)
        value = top_order ^ ((top_order >> 31) & LAST)
        tl.store(chosen + row * k + place, (top & LAST).to(tl.int32) ^ LAST)
        tl.store(best + row * k + place, value.to(tl.float32, bitcast=True))
        key = tl.where(key == top, GONE, key)


def largest_columns(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each of n rows, and their columns as int32: [n, k] both. `values` are [columns, n]."""
    columns, n = values.shape
    groups, candidates = None, columns
    if columns > CANDIDATES:
        maxima = values.new_empty((triton.cdiv(columns, FOLD), n))
        _fold[(triton.cdiv(n, 256), len(maxima))](values, maxima, n, columns, FOLD=FOLD, ROWS=256, num_warps=4)
        groups, candidates = largest_columns(maxima, k)[1], k * FOLD
    best = values.new_empty((n, k))
    chosen = torch.empty((n, k), dtype=torch.int32, device=values.device)
    room = max(16, triton.next_power_of_2(candidates))
    _choose[(n,)](
        values, chosen if groups is None else groups, chosen, best, n, columns, candidates, k,
        FOLD=FOLD, GROUPED=groups is not None, CANDIDATES=room, num_warps=max(1, min(8, room // 512)),
    )  # fmt: skip
    return best, chosen


def top_k(rows: LinearLogits, k: int, *, precision: str = "tf32x3") -> tuple[Tensor, Tensor]:
    """The k largest of each row and their items: [N, k] both, in falling order."""
    assert 1 <= k <= min(LONGEST, rows.shape[1])
    hidden, weight, bias = operands(rows)
    n, v = rows.shape
    shape = tile(LARGEST, hidden.shape[1], hidden, precision)
    at_once = max(1, ROOM // max(triton.cdiv(v, shape.items), k * shape.items))
    best = hidden.new_empty((n, k), dtype=torch.float32)
    items = torch.empty((n, k), dtype=torch.long, device=hidden.device)
    for start in range(0, n, at_once):
        part = slice(start, start + at_once)
        best[part], items[part] = _top_k(hidden[part], weight, bias, k, rows.head.bias is not None, shape, precision)
    return best, items


def _top_k(
    hidden: Tensor, weight: Tensor, bias: Tensor, k: int, biased: bool, shape: Tile, precision: str
) -> tuple[Tensor, Tensor]:
    (n, width), v, group = hidden.shape, len(weight), shape.items
    groups = triton.cdiv(v, group)
    depth = padded(width) if hidden.dtype.itemsize == 2 else min(DEPTH, padded(width))
    pieces = triton.cdiv(width, depth)
    shape = shape if pieces == 1 else shape._replace(stages=1)
    blocks = triton.cdiv(n, shape.positions)
    cuts, part = splits(groups, blocks, 1, hidden.device, waves=shape.waves, most=shape.most)
    maxima = hidden.new_empty((groups, n), dtype=torch.float32)
    _maxima[(blocks, cuts)](
        hidden, weight, bias, maxima, n, v, groups, part, D=width, DP=depth, PIECES=pieces, BIASED=biased,
        ROWS=shape.positions, GROUP=group, PRECISION=precision, **shape.launch,
    )  # fmt: skip
    kept = min(k, groups)
    # In the order of the catalogue, so that of equal scores the lower index comes first again.
    chosen = largest_columns(maxima, kept)[1].sort(dim=1).values
    scores = hidden.new_empty((kept * group, n), dtype=torch.float32)
    _scores[(n, kept)](
        hidden, weight, bias, chosen, scores, n, v, kept,
        D=width, DP=padded(width), BIASED=biased, GROUP=group, num_warps=4,
    )  # fmt: skip
    best, column = largest_columns(scores, k)
    return best, chosen.gather(1, (column // group).long()) * group + column % group
