"""Batches of a fixed size, cut in one kernel where `Planner.cut` would launch thirty.

A program makes a few tokens. It walks over the sequences' widths to find the sequence of each token.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from localpolicy.types import START

TOKENS, SEQUENCES = 64, 256  # of a program: its tokens, and the sequences it looks at together


@triton.jit
def _cut(
    sequences, offsets, items, events, rewards, propensities,
    row_out, column_out, before_item, before_event, item_out, event_out, reward_out, history_out,
    propensity_out, real_out, first_out, stop_out, n_tokens, length, rows, spare,
    PROPENSITY: tl.constexpr, START: tl.constexpr, TOKENS: tl.constexpr, SEQUENCES: tl.constexpr,
    SPARE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    inside = token < n_tokens
    row = tl.zeros((TOKENS,), tl.int32)
    first = tl.zeros((TOKENS,), tl.int32)  # tokens before this one's sequence
    total = 0
    for block in range(0, rows, SEQUENCES):
        number = block + tl.arange(0, SEQUENCES)
        sequence = tl.load(sequences + number, mask=number < rows, other=-1)
        there = sequence >= 0
        start = tl.load(offsets + sequence, mask=there, other=0)
        stop = tl.load(offsets + sequence + 1, mask=there, other=0)
        width = tl.minimum(stop - start, length).to(tl.int32)
        ends = total + tl.cumsum(width, 0)
        passed = (ends[None] <= token[:, None]) & (number < rows)[None]
        row += tl.sum(passed.to(tl.int32), 1)
        first += tl.sum(tl.where(passed, width[None], 0), 1)
        if tl.program_id(0) == 0:  # where each sequence's tokens begin and end
            tl.store(first_out + number, (ends - width).to(tl.int64), mask=number < rows)
            tl.store(stop_out + number, ends.to(tl.int64), mask=number < rows)
        total += tl.sum(width, 0)
    if tl.program_id(0) == 0:
        number = tl.arange(0, SPARE)
        begin = tl.minimum(total + number * length, n_tokens).to(tl.int64)
        tl.store(first_out + rows + number, begin, mask=number < spare)
        tl.store(stop_out + rows + number, tl.minimum(begin + length, n_tokens), mask=number < spare)
    real = (row < rows) & inside
    filler = tl.maximum(token - total, 0)
    sequence = tl.load(sequences + row, mask=real, other=0)
    start = tl.load(offsets + sequence, mask=real, other=0)
    stop = tl.load(offsets + sequence + 1, mask=real, other=0)
    width = tl.minimum(stop - start, length)
    column = tl.where(real, token - first, filler % length)
    index = tl.where(real, stop - width + column, 0)
    begins = (index == start) | (real == 0)
    before = tl.where(begins, index, index - 1)
    tl.store(row_out + token, tl.where(real, row, rows + filler // length).to(tl.int64), mask=inside)
    tl.store(column_out + token, column.to(tl.int64), mask=inside)
    tl.store(history_out + token, index - start, mask=inside)
    earlier = tl.load(items + before, mask=inside, other=0).to(tl.int64)
    tl.store(before_item + token, tl.where(begins, START, earlier), mask=inside)
    earlier = tl.load(events + before, mask=inside, other=0).to(tl.int64)
    tl.store(before_event + token, tl.where(begins, 0, earlier), mask=inside)
    tl.store(item_out + token, tl.load(items + index, mask=inside, other=0).to(tl.int64), mask=inside)
    tl.store(event_out + token, tl.load(events + index, mask=inside, other=0).to(tl.int64), mask=inside)
    tl.store(reward_out + token, tl.load(rewards + index, mask=real, other=0.0), mask=inside)
    if PROPENSITY:
        tl.store(propensity_out + token, tl.load(propensities + index, mask=real, other=1.0), mask=inside)
    tl.store(real_out + token, real, mask=inside)


def cut(
    sequences: Tensor, offsets: Tensor, arrays: dict[str, Tensor], tokens: int, *, length: int, spare: int
) -> dict[str, Tensor]:
    """Cut every column of a batch's tokens, and `real`, a mask of the tokens that are not filler.

    Row r has the tokens first[r] … stop[r] - 1; the last `spare` rows hold the filler.
    """
    device = sequences.device
    names = ("row", "column", "previous_item", "previous_event", "item", "event", "history")
    columns = dict(zip(names, torch.empty((len(names), tokens), dtype=torch.long, device=device).unbind(), strict=True))
    columns["reward"] = torch.empty(tokens, dtype=arrays["reward"].dtype, device=device)
    columns["real"] = torch.empty(tokens, dtype=torch.bool, device=device)
    rows = len(sequences)
    columns["first"], columns["stop"] = torch.empty((2, rows + spare), dtype=torch.long, device=device).unbind()
    propensity = arrays.get("propensity")
    if propensity is not None:
        columns["propensity"] = torch.empty(tokens, dtype=propensity.dtype, device=device)
    _cut[(triton.cdiv(tokens, TOKENS),)](
        sequences, offsets, arrays["item"], arrays["event"], arrays["reward"],
        arrays["reward"] if propensity is None else propensity,
        columns["row"], columns["column"], columns["previous_item"], columns["previous_event"], columns["item"],
        columns["event"], columns["reward"], columns["history"], columns.get("propensity", columns["reward"]),
        columns["real"], columns["first"], columns["stop"], tokens, length, rows, spare,
        PROPENSITY=propensity is not None, START=START, TOKENS=TOKENS, SEQUENCES=SEQUENCES,
        SPARE=triton.next_power_of_2(spare), num_warps=4,
    )  # fmt: skip
    return columns
