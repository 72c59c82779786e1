"""Batches of a fixed size, cut on the device without waiting for it.

A captured step replays the same kernels on the same memory, so its sizes are fixed beforehand: tokens and positions are
rounded up to a bucket, and filler that does not count takes the rest. The counts are read from the device once per
epoch, for all of its batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from localpolicy.catalogue import fused
from localpolicy.data.batches import Windows, epoch_order
from localpolicy.types import START, Batch

SMALLEST = 64  # tokens
STEPS = 8  # buckets between two powers of two: at most an eighth is filler


class BatchShape(NamedTuple):
    """Size that a batch is filled up to."""

    tokens: int
    positions: int


class Planned(NamedTuple):
    """A batch to be cut: its sequences, and the numbers of its real tokens and positions."""

    sequences: Tensor  # [B] on the device; -1 where an epoch's last batch has none
    bucket: BatchShape
    positions: int


def rounded(count: int) -> int:
    """Size of the next bucket: every power of two, and `STEPS` - 1 sizes between two of them."""
    step = max(SMALLEST, (1 << max(count - 1, 1).bit_length() - 1) // STEPS)
    return max(1, -(-count // step)) * step


class Planner:
    """Planner of an epoch's batches, which cuts them inside captured steps."""

    def __init__(self, windows: Windows, size: int) -> None:
        self.windows, self.size = windows, size
        self.all_scored = windows.config.last is None and windows.context is None
        start, stop = windows.offsets[:-1], windows.offsets[1:]
        self.widths = (stop - start).clamp(max=windows.config.length)
        self.scored = self.widths
        if windows.config.last is not None:
            self.scored = self.scored.clamp(max=windows.config.last)
        if windows.context is not None:
            kept = torch.zeros(len(windows.arrays["event"]) + 1, dtype=torch.long, device=windows.device)
            kept[1:] = (windows.arrays["event"] != windows.context).cumsum(0)
            self.scored = kept[stop] - kept[stop - self.scored]

    def epoch(self, *, seed: int, epoch: int, skip: int = 0) -> Iterator[Planned]:
        """Plans for the batches of `Windows.shuffled`, in the same order."""
        order = epoch_order(len(self.windows), seed=seed, epoch=epoch).to(self.windows.device)
        batches = -(-len(order) // self.size)
        filled = order.new_full((batches * self.size,), -1)
        filled[: len(order)] = order
        every = filled.view(batches, self.size)
        there = every >= 0
        sizes = [(counts[every.clamp(min=0)] * there).sum(1) for counts in (self.widths, self.scored)]
        for number, (tokens, positions) in enumerate(torch.stack(sizes, 1).tolist()):
            if number >= skip:
                yield Planned(every[number], BatchShape(rounded(tokens), rounded(positions)), positions)

    def cut(self, sequences: Tensor, bucket: BatchShape) -> Batch:
        """Cut the batch of these sequences, filled up to the bucket's size, without waiting for the device."""
        windows, length, rows = self.windows, self.windows.config.length, self.size
        spare = -(-max(SMALLEST, bucket.tokens // STEPS) // length)  # rows for the filler
        if windows.offsets.is_cuda and fused.missing() is None:
            from localpolicy.kernels.cut import cut

            columns = cut(sequences, windows.offsets, windows.arrays, bucket.tokens, length=length, spare=spare)
        else:
            columns = self._cut(sequences, bucket)
        real, first, stop = (columns.pop(name, None) for name in ("real", "first", "stop"))
        assert real is not None
        token = torch.arange(bucket.tokens, device=windows.device)
        scored, counted = token, real
        if not self.all_scored:
            widths = self.widths[sequences.clamp(min=0)][columns["row"].clamp(max=rows - 1)]
            scored, counted = self._scored(columns["column"], widths, columns["event"], real, token, bucket)
        return Batch(
            **cast("dict[str, Any]", columns),
            sequences=sequences,
            scored=scored,
            counted=counted,
            whole=self.all_scored,
            block=(rows + spare, length),
            bounds=None if first is None or stop is None else (first, stop),
        )

    def _cut(self, sequences: Tensor, bucket: BatchShape) -> dict[str, Tensor]:
        """Columns of the tokens, and a mask of the real ones."""
        windows, length, rows = self.windows, self.windows.config.length, self.size
        there = sequences >= 0
        known = sequences.clamp(min=0)
        start, stop = windows.offsets[known], windows.offsets[known + 1]
        widths = self.widths[known] * there
        ends = widths.cumsum(0)
        token = torch.arange(bucket.tokens, device=windows.device)
        row = torch.searchsorted(ends, token, right=True)
        real = row < rows
        filler = (token - ends[-1]).clamp(min=0)  # numbers the filler tokens
        own = row.clamp(max=rows - 1)
        column = torch.where(real, token - (ends - widths)[own], filler % length)
        index = torch.where(real, (stop - widths)[own] + column, 0)
        begins = ~real | (index == start[own])
        before = torch.where(begins, index, index - 1)
        item, event = windows.arrays["item"], windows.arrays["event"]
        columns = {
            "row": torch.where(real, row, rows + filler // length),
            "column": column,
            "previous_item": torch.where(begins, START, item[before].long()),
            "previous_event": torch.where(begins, 0, event[before].long()),
            "item": item[index].long(),
            "event": event[index].long(),
            "reward": torch.where(real, windows.arrays["reward"][index], 0.0),
            "history": index - torch.where(real, start[own], 0),
            "real": real,
        }
        if "propensity" in windows.arrays:
            # NaN stands for "not logged"; a filler's would reach the gradient even where its loss does not count.
            columns["propensity"] = torch.where(real, windows.arrays["propensity"][index], 1.0)
        return columns

    def _scored(
        self, column: Tensor, widths: Tensor, event: Tensor, real: Tensor, token: Tensor, bucket: BatchShape
    ) -> tuple[Tensor, Tensor]:
        """Indices of the positions among the tokens, and a mask of those that count: [N] each, in order."""
        scored = real
        if self.windows.config.last is not None:
            scored = scored & (column >= widths - self.windows.config.last)
        if self.windows.context is not None:
            scored = scored & (event != self.windows.context)
        target = torch.where(scored, scored.cumsum(0) - 1, bucket.positions)  # all others go to one spare slot
        scored_tokens = token.new_full((bucket.positions + 1,), bucket.tokens - 1).scatter(0, target, token)[:-1]
        return scored_tokens, torch.arange(bucket.positions, device=token.device) < scored.sum()
