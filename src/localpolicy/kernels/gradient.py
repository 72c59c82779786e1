"""Gradient of Σ_n upstream_n · log softmax(row_n)[item_n] in weights, biases and hidden states.

    weights  Σ_n upstream_n (onehot_n - p_n) hidden_n
    hidden   upstream_n (weight[item_n] - Σ_a p_a weight_a)

`_pull` forms -Σ_n upstream_n p_n hidden_n tile by tile: a program owns a few items and walks over all positions.
`_take` adds each position's own item, and computes the gradient of the hidden states.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from localpolicy.kernels.tiles import GRADIENT, operands, padded, splits, tile
from localpolicy.logits import LinearLogits, SoftmaxSums

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _pull(
    hidden, weight, bias, normaliser, upstream, closed, for_weight, for_bias, n_rows, n_items, part,
    D: tl.constexpr, DP: tl.constexpr, BIASED: tl.constexpr, WANTS_WEIGHT: tl.constexpr,
    WANTS_BIAS: tl.constexpr, ROWS: tl.constexpr, ITEMS: tl.constexpr, PRECISION: tl.constexpr,
    CLOSED: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    cut = tl.program_id(1)
    ok = item < n_items
    d = tl.arange(0, DP)
    step = tl.arange(0, ROWS)
    inside = ok[:, None] & (d < D)[None]
    block = item[:, None].to(tl.int64) * D + d[None]
    w = tl.load(weight + block, mask=inside, other=0.0)
    if BIASED:
        b = tl.load(bias + item, mask=ok, other=0.0).to(tl.float32) * LOG2E
    pulled = tl.zeros((ITEMS, DP), tl.float32)
    summed = tl.zeros((ITEMS,), tl.float32)
    first = cut * part
    last = tl.minimum(first + part, n_rows)
    for start in range(first, last, ROWS):
        row = start + step
        here = row < last
        h = tl.load(hidden + row[:, None] * D + d[None], mask=here[:, None] & (d < D)[None], other=0.0)
        shift = tl.load(normaliser + row, mask=here, other=float("inf")) * LOG2E  # beyond the end: p = 0
        up = tl.load(upstream + row, mask=here, other=0.0)
        x = tl.dot(w, tl.trans(h), input_precision=PRECISION) * LOG2E
        if BIASED:
            x += b[:, None]
        for number in range(CLOSED):
            shut = tl.load(closed + row * CLOSED + number, mask=here, other=-1)
            own = tl.program_id(0) * ITEMS
            if tl.max(((shut >= own) & (shut < own + ITEMS)).to(tl.int32), 0) > 0:
                x = tl.where(item[:, None] == shut[None], -float("inf"), x)
        g = tl.exp2(x - shift[None]) * up[None]
        if WANTS_BIAS:
            summed += tl.sum(g, 1)
        if WANTS_WEIGHT:
            pulled = tl.dot(g.to(h.dtype), h, pulled, input_precision=PRECISION)
    if WANTS_WEIGHT:
        tl.store(for_weight + cut.to(tl.int64) * n_items * D + block, -pulled, mask=inside)
    if WANTS_BIAS:
        tl.store(for_bias + cut * n_items + item, -summed, mask=ok)


@triton.jit
def _take(
    hidden, weight, items, present, upstream, pulled, local, normaliser, for_hidden, for_weight, for_bias, n_rows,
    D: tl.constexpr, DP: tl.constexpr, PART: tl.constexpr, HIDDEN: tl.constexpr, WEIGHT: tl.constexpr,
    BIAS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = row < n_rows
    d = tl.arange(0, DP)
    inside = here[:, None] & (d < D)[None]
    block = row[:, None] * D + d[None]
    item = tl.load(items + row, mask=here, other=0)
    up = tl.load(upstream + row, mask=here, other=0.0)
    entry = item[:, None].to(tl.int64) * D + d[None]
    owns = here  # positions whose item is among these rows
    if PART:
        owns = here & (tl.load(present + row, mask=here, other=0) != 0)
    taken = owns[:, None] & (d < D)[None]
    if HIDDEN:
        w = tl.load(weight + entry, mask=taken, other=0.0).to(tl.float32)
        mean = tl.load(pulled + block, mask=inside, other=0.0)
        if PART:  # Σ p·weight was divided by the sum over these rows alone
            less = tl.load(local + row, mask=here, other=0.0) - tl.load(normaliser + row, mask=here, other=0.0)
            mean *= tl.exp2(less * LOG2E)[:, None]
        tl.store(for_hidden + block, up[:, None] * (w - mean), mask=inside)
    if WEIGHT:
        h = tl.load(hidden + block, mask=taken, other=0.0).to(tl.float32)
        tl.atomic_add(for_weight + entry, up[:, None] * h, mask=taken, sem="relaxed")
    if BIAS:
        tl.atomic_add(for_bias + item, up, mask=owns, sem="relaxed")


def head_gradient(
    rows: LinearLogits,
    normaliser: Tensor,
    upstream: Tensor,
    *,
    closed: Tensor | None = None,
    wants_weight: bool = True,
    wants_bias: bool = True,
    precision: str = "tf32",
) -> tuple[Tensor | None, Tensor | None]:
    """-Σ_n upstream_n p_n hidden_n [V, D] and -Σ_n upstream_n p_n [V] in float32; None if not wanted.

    `closed` [N, C]: items whose p is 0 at a position.
    """
    hidden, weight, bias = operands(rows)
    (n, width), v = hidden.shape, len(weight)
    shape = tile(GRADIENT, width, hidden, precision)
    blocks = triton.cdiv(v, shape.items)
    cuts, part = splits(n, blocks, shape.positions, hidden.device, waves=1)
    for_weight = hidden.new_empty((cuts, v, width) if wants_weight else (1, 1), dtype=torch.float32)
    for_bias = hidden.new_empty((cuts, v) if wants_bias else (1, 1), dtype=torch.float32)
    _pull[(blocks, cuts)](
        hidden, weight, bias, normaliser, upstream, upstream if closed is None else closed, for_weight, for_bias,
        n, v, part,
        D=width, DP=padded(width), BIASED=rows.head.bias is not None, WANTS_WEIGHT=wants_weight, WANTS_BIAS=wants_bias,
        ROWS=shape.positions, ITEMS=shape.items, PRECISION=precision,
        CLOSED=0 if closed is None else closed.shape[1], **shape.launch,
    )  # fmt: skip

    def whole(parts: Tensor) -> Tensor:
        return parts[0] if cuts == 1 else parts.sum(0)

    return whole(for_weight) if wants_weight else None, whole(for_bias) if wants_bias else None


def taken_gradient(
    rows: LinearLogits,
    items: Tensor,
    upstream: Tensor,
    forward: SoftmaxSums,
    normaliser: Tensor,
    for_weight: Tensor | None,
    for_bias: Tensor | None,
    *,
    here: Tensor | None = None,
) -> Tensor | None:
    """Add each position's own item to the gradients of weights and biases; return that of the hidden states [N, D].

    `forward` holds the sums of the forward pass over these rows. If these rows are a part of the catalogue, `here` is a
    mask of the positions with their item in it, and `normaliser` is that of the whole catalogue.
    """
    hidden, weight, _ = operands(rows)
    n, width = hidden.shape
    if torch.are_deterministic_algorithms_enabled():
        # Atomic sums have no order; torch's own have one in deterministic mode.
        own = upstream if here is None else upstream * here
        if for_weight is not None:
            for_weight.index_add_(0, items, own[:, None] * hidden.float())
        if for_bias is not None:
            for_bias.index_add_(0, items, own)
        for_weight = for_bias = None
    for_hidden = None if forward.pulled is None else torch.empty_like(hidden)

    def given(tensor: Tensor | None) -> Tensor:
        return upstream if tensor is None else tensor

    if n and (for_hidden is not None or for_weight is not None or for_bias is not None):
        rows_each = 16
        _take[(triton.cdiv(n, rows_each),)](
            hidden, weight, items, upstream if here is None else here.view(torch.uint8), upstream,
            given(forward.pulled), forward.normaliser, normaliser, given(for_hidden), given(for_weight),
            given(for_bias), n, D=width, DP=padded(width), PART=here is not None, HIDDEN=for_hidden is not None,
            WEIGHT=for_weight is not None, BIAS=for_bias is not None, ROWS=rows_each, num_warps=4,
        )  # fmt: skip
    return for_hidden
