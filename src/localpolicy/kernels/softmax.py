"""Softmax sums over the catalogue in one pass: log Σ e^x, Σ p·value, and Σ p·weight for the hidden states' gradient.

A tile x = hidden @ weightᵀ + bias adds e^x to sums, which is exact while these stay far from the ends of float32's
range, as those of trained policies do. Programs whose sums do not are run again, with sums relative to a running
maximum (Milakov and Gimelshein 2018). Σ_a p_a weight_a is attention with the table as keys and values (Dao et al.
2022), so backward needs no second pass for hidden states. The catalogue is cut over programs; `_combine` adds their
parts in order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from localpolicy.kernels.tiles import BOTH, PULLED, SUMMED, VALUED, VARYING, operands, padded, splits, tile
from localpolicy.logits import LinearLogits, SoftmaxSums

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)

# Sums of plain exponentials that are as exact as shifted ones; in float16 the exponentials themselves must fit.
PLAIN = {torch.float32: (1e-30, 1e30), torch.bfloat16: (1e-30, 1e30), torch.float16: (1.0, 6e4)}


@triton.jit
def _partial(
    hidden, weight, bias, value_hidden, value_weight, value_bias, closed,
    tops, totals, weighteds, pulleds, n_rows, n_items, part,
    D: tl.constexpr, DP: tl.constexpr, VALUE_D: tl.constexpr, VALUE_DP: tl.constexpr,
    BIASED: tl.constexpr, VALUE_BIASED: tl.constexpr, VALUES: tl.constexpr, OWN_VALUES: tl.constexpr,
    PULL: tl.constexpr, ROWS: tl.constexpr, ITEMS: tl.constexpr, PRECISION: tl.constexpr, RUNNING: tl.constexpr,
    LEAST: tl.constexpr, MOST: tl.constexpr, CLOSED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = row < n_rows
    cut = tl.program_id(1)
    at = cut * n_rows + row
    if RUNNING:
        plain = tl.load(totals + at, mask=here, other=1.0)
        if (tl.max(plain, 0) < MOST) & (tl.min(plain, 0) > LEAST):
            return
    d = tl.arange(0, DP)
    column = tl.arange(0, ITEMS)
    h = tl.load(hidden + row[:, None] * D + d[None], mask=here[:, None] & (d < D)[None], other=0.0)
    if VALUES:
        value_d = tl.arange(0, VALUE_DP)
        value_h = tl.load(
            value_hidden + row[:, None] * VALUE_D + value_d[None],
            mask=here[:, None] & (value_d < VALUE_D)[None],
            other=0.0,
        )
    top = tl.full((ROWS,), -float("inf") if RUNNING else 0.0, tl.float32)  # as a power of two
    total = tl.zeros((ROWS,), tl.float32)
    weighted = tl.zeros((ROWS,), tl.float32)
    pulled = tl.zeros((ROWS, DP), tl.float32)
    first = cut * part
    last = tl.minimum(first + part, n_items)
    for start in range(first, last, ITEMS):
        item = start + column
        ok = item < last
        w = tl.load(
            weight + item[:, None].to(tl.int64) * D + d[None],
            mask=ok[:, None] & (d < D)[None],
            other=0.0,
        )
        x = tl.dot(h, tl.trans(w), input_precision=PRECISION)
        if VALUES:
            value_w = tl.load(
                value_weight + item[:, None].to(tl.int64) * VALUE_D + value_d[None],
                mask=ok[:, None] & (value_d < VALUE_D)[None],
                other=0.0,
            )
            value = tl.dot(value_h, tl.trans(value_w), input_precision=PRECISION)
        if VALUES and VALUE_BIASED:
            value += tl.load(value_bias + item, mask=ok, other=0.0).to(tl.float32)[None]
        x *= LOG2E
        if BIASED:  # items beyond the end get -inf from here, at no cost
            x += (tl.load(bias + item, mask=ok, other=-float("inf")).to(tl.float32) * LOG2E)[None]
        else:
            x = tl.where(ok[None], x, -float("inf"))
        for number in range(CLOSED):
            shut = tl.load(closed + row * CLOSED + number, mask=here, other=-1)
            if tl.max(((shut >= start) & (shut < start + ITEMS)).to(tl.int32), 0) > 0:
                x = tl.where(item[None] == shut[:, None], -float("inf"), x)
        shifted = x
        if RUNNING:
            largest = tl.maximum(top, tl.max(x, 1))
            shift = tl.where(largest == -float("inf"), 0.0, largest)  # of -inf so far: -inf - -inf would be NaN
            scale = tl.exp2(top - shift)
            total = total * scale
            weighted = weighted * scale
            pulled = pulled * scale[:, None]
            top = largest
            shifted = x - shift[:, None]
        e = tl.exp2(shifted)
        total += tl.sum(e, 1)
        if VALUES:
            weighted += tl.sum(e * value, 1)
        if OWN_VALUES:  # Σ p·x, where 0 · -inf counts as 0
            weighted += tl.sum(tl.where(e > 0, e * x, 0.0), 1)
        if PULL:
            pulled = tl.dot(e.to(w.dtype), w, pulled, input_precision=PRECISION)
    tl.store(tops + at, top, mask=here)
    tl.store(totals + at, total, mask=here)
    if VALUES:
        tl.store(weighteds + at, weighted, mask=here)
    if OWN_VALUES:
        tl.store(weighteds + at, weighted * LN2, mask=here)
    if PULL:
        tl.store(pulleds + at[:, None].to(tl.int64) * D + d[None], pulled, mask=here[:, None] & (d < D)[None])


@triton.jit(do_not_specialize=VARYING)
def _combine(
    tops, totals, weighteds, pulleds, hidden, weight, bias, items,
    normaliser, mean, pulled_mean, log_p, n_rows, cuts,
    D: tl.constexpr, DP: tl.constexpr, BIASED: tl.constexpr, VALUES: tl.constexpr, PULL: tl.constexpr,
    TAKEN: tl.constexpr, CUTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    cut = tl.arange(0, CUTS)
    here = cut < cuts
    d = tl.arange(0, DP)
    inside = d < D
    at = cut * n_rows + row
    top = tl.load(tops + at, mask=here, other=-float("inf"))
    largest = tl.max(top, 0)
    shift = tl.where(largest == -float("inf"), 0.0, largest)
    share = tl.exp2(top - shift)
    total = tl.sum(tl.load(totals + at, mask=here, other=0.0) * share, 0)
    logarithm = (largest + tl.log2(total)) * LN2
    tl.store(normaliser + row, logarithm)
    if VALUES:
        tl.store(mean + row, tl.sum(tl.load(weighteds + at, mask=here, other=0.0) * share, 0) / total)
    if PULL:
        part = tl.load(pulleds + at[:, None].to(tl.int64) * D + d[None], mask=here[:, None] & inside[None], other=0.0)
        tl.store(pulled_mean + row * D + d, tl.sum(part * share[:, None], 0) / total, mask=inside)
    if TAKEN:
        item = tl.load(items + row).to(tl.int64)
        h = tl.load(hidden + row * D + d, mask=inside, other=0.0).to(tl.float32)
        w = tl.load(weight + item * D + d, mask=inside, other=0.0).to(tl.float32)
        own = tl.sum(h * w, 0)
        if BIASED:
            own += tl.load(bias + item).to(tl.float32)
        tl.store(log_p + row, own - logarithm)


def softmax_sums(
    rows: LinearLogits,
    *,
    values: LinearLogits | None = None,
    own_values: bool = False,
    pull: bool = False,
    items: Tensor | None = None,
    closed: Tensor | None = None,
    precision: str = "tf32",
) -> SoftmaxSums:
    """Sums of the softmax in one pass: the normaliser, and the means and log p that are requested.

    `own_values`: the logits are the values; `items`: log p of each position's item, too. `closed` [N, C] are items that
    are left out of a position's sums; -1 is none.
    """
    hidden, weight, bias = operands(rows)
    (n, width), v = hidden.shape, len(weight)
    other = rows if values is None else values
    value_hidden, value_weight, value_bias = (hidden, weight, bias) if values is None else operands(values)
    value_width = value_weight.shape[1]
    table = (PULLED if values is None else BOTH) if pull else (SUMMED if values is None else VALUED)
    shape = tile(table, max(width, value_width), hidden, precision)
    blocks = triton.cdiv(n, shape.positions)
    cuts, part = splits(v, blocks, shape.items, hidden.device, waves=shape.waves, most=shape.most)
    weigh = values is not None or own_values

    def room(wanted: bool, *size: int) -> Tensor:
        return hidden.new_empty(size if wanted else (1,), dtype=torch.float32)

    tops, totals = room(True, cuts, n), room(True, cuts, n)
    weighteds, pulleds = room(weigh, cuts, n), room(pull, cuts, n, width)
    normaliser, mean, pulled = room(True, n), room(weigh, n), room(pull, n, width)
    log_p = room(items is not None, n)
    sums = SoftmaxSums(
        normaliser, mean if weigh else None, log_p if items is not None else None, pulled if pull else None
    )
    if n == 0:
        return sums
    for running in (False, True):
        _partial[(blocks, cuts)](
            hidden, weight, bias, value_hidden, value_weight, value_bias, tops if closed is None else closed,
            tops, totals, weighteds, pulleds, n, v, part,
            D=width, DP=padded(width), VALUE_D=value_width, VALUE_DP=padded(value_width),
            BIASED=rows.head.bias is not None, VALUE_BIASED=other.head.bias is not None, VALUES=values is not None,
            OWN_VALUES=own_values, PULL=pull, ROWS=shape.positions, ITEMS=shape.items, PRECISION=precision,
            RUNNING=running, LEAST=PLAIN[hidden.dtype][0], MOST=PLAIN[hidden.dtype][1],
            CLOSED=0 if closed is None else closed.shape[1], **shape.launch,
        )  # fmt: skip
    _combine[(n,)](
        tops, totals, weighteds, pulleds, hidden, weight, bias, tops if items is None else items,
        normaliser, mean, pulled, log_p, n, cuts,
        D=width, DP=padded(width), BIASED=rows.head.bias is not None, VALUES=weigh, PULL=pull, TAKEN=items is not None,
        CUTS=triton.next_power_of_2(cuts), num_warps=2 if pull else 1,
    )  # fmt: skip
    return sums
