"""One step's losses and weights, added to the epoch's log in one kernel where plain operations would launch twenty.

One program does all of it, in order, in float64: equal steps give equal sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
LOG10_OF_2 = tl.constexpr(0.3010299956639812)


@triton.jit
def _enter(
    losses, weight, clipped, counted, sums, moments, histogram, n,
    LOSSES: tl.constexpr, CLIPPED: tl.constexpr, COUNTED: tl.constexpr,
    BINS: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, BLOCK)
    for number in tl.static_range(LOSSES):
        summed = tl.zeros((BLOCK,), tl.float64)
        for start in range(0, n, BLOCK):
            at = start + lane
            here = at < n
            if COUNTED:
                here = here & (tl.load(counted + at, mask=here, other=0) != 0)
            summed += tl.load(losses + number * n + at, mask=here, other=0.0).to(tl.float64)
        tl.store(sums + number, tl.load(sums + number) + tl.sum(summed, 0))
    first = tl.zeros((BLOCK,), tl.float64)
    second = tl.zeros((BLOCK,), tl.float64)
    largest = tl.zeros((BLOCK,), tl.float64)
    caps = tl.zeros((BLOCK,), tl.int64)
    count = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, n, BLOCK):
        at = start + lane
        here = at < n
        if COUNTED:
            here = here & (tl.load(counted + at, mask=here, other=0) != 0)
        w = tl.load(weight + at, mask=here, other=0.0).to(tl.float32)
        first += w.to(tl.float64)
        second += w.to(tl.float64) * w.to(tl.float64)
        largest = tl.maximum(largest, w.to(tl.float64))
        count += here.to(tl.int64)
        if CLIPPED:
            caps += tl.load(clipped + at, mask=here, other=0).to(tl.int64)
        slot = ((tl.log2(tl.maximum(w, 1e-8)) * LOG10_OF_2 - LOW) * (BINS / (HIGH - LOW))).to(tl.int32)
        slot = tl.minimum(tl.maximum(slot, 0), BINS - 1)
        tl.atomic_add(histogram + slot, here.to(tl.int64), mask=here, sem="relaxed")
    tl.store(moments, tl.load(moments) + tl.sum(first, 0))
    tl.store(moments + 1, tl.load(moments + 1) + tl.sum(second, 0))
    tl.store(moments + 2, tl.maximum(tl.load(moments + 2), tl.max(largest, 0)))
    tl.store(moments + 3, tl.load(moments + 3) + tl.sum(caps, 0).to(tl.float64))
    tl.store(moments + 4, tl.load(moments + 4) + tl.sum(count, 0).to(tl.float64))


def enter(
    losses: Sequence[Tensor],
    weight: Tensor,
    clipped: Tensor | None,
    counted: Tensor | None,
    *,
    sums: Tensor,
    moments: Tensor,
    histogram: Tensor,
    low: float,
    high: float,
) -> None:
    """Add the losses to `sums`, in their order, and statistics of the weights to `moments` and `histogram`.

    Positions that are not `counted` add nothing.
    """
    stacked = torch.stack(list(losses)) if len(losses) > 1 else losses[0].contiguous()
    _enter[(1,)](
        stacked, weight.contiguous(), weight if clipped is None else clipped.view(torch.uint8),
        weight if counted is None else counted.view(torch.uint8), sums, moments, histogram, len(weight),
        LOSSES=len(losses), CLIPPED=clipped is not None, COUNTED=counted is not None,
        BINS=len(histogram), LOW=low, HIGH=high, BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip
