"""Chunks of the catalogue, and sums over them: what `chunked` and `sharded` stand on.

Softmax sums over chunks combine by m' = max(m, m_piece), s' = s e^{m-m'} + s_piece e^{m_piece-m'} (and so do
weighted sums), so only [N, width] numbers exist at a time. Backward uses the chunks again where all of them fit into a
fixed room (`KEEP`), and forms them anew where they do not: memory is bounded whatever N x V is.
Buffers are kept between calls: on a CPU the page faults of fresh large buffers cost as much as the arithmetic.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from localpolicy.catalogue.logits import LinearLogits, Logits

# Numbers in one chunk: on a CPU 2 MiB of float32, about a core's share of cache; on a GPU enough to fill it.
CHUNK = {"cpu": 1 << 19, "cuda": 1 << 27}
# Numbers that may be kept from forward to backward, a fifth faster than forming them again: 128 MiB, 1 GiB of float32.
KEEP = {"cpu": 1 << 25, "cuda": 1 << 28}

_local = threading.local()


def _buffer(slot: int, rows: int, columns: int, like: Tensor) -> Tensor:
    """Uninitialised [rows, columns], from memory that is kept per thread, slot, type and device."""
    pool: dict[Any, Tensor] = _local.__dict__.setdefault("pool", {})
    key = (slot, like.dtype, like.device)
    needed = rows * columns
    if key not in pool or pool[key].numel() < needed:
        pool[key] = torch.empty(needed, dtype=like.dtype, device=like.device)
    return pool[key][:needed].view(rows, columns)


def _width(rows: int, items: int, device: torch.device) -> int:
    return max(1, min(items, max(64, CHUNK.get(device.type, CHUNK["cpu"]) // max(rows, 1))))


def chunks_of(
    like: Tensor, *every: Logits, room: Callable[[int, int], Tensor] | None = None
) -> Iterator[tuple[int, int, list[Tensor]]]:
    """(start, stop, [N, stop-start] of each), over the catalogue.

    A yielded chunk is scratch: it may be changed, and the next one overwrites it, unless `room` says where the first
    rows' chunks shall lie.
    """
    rows, items = every[0].shape
    width = _width(rows, items, like.device)
    for start in range(0, items, width):
        stop = min(items, start + width)
        outs = [_buffer(slot, rows, stop - start, like) for slot in range(len(every))]
        if room is not None:
            outs[0] = room(start, stop)
        chunks = [one.chunk(start, stop, out=out) for one, out in zip(every, outs, strict=True)]
        # Half precision serves the matrix product; sums of thousands of exponentials need float32.
        yield start, stop, [chunk.float() if chunk.dtype.itemsize < 4 else chunk for chunk in chunks]


def like_of(rows: Logits) -> Tensor:
    """A tensor of the rows' type and device."""
    return rows.hidden if isinstance(rows, LinearLogits) else rows.chunk(0, 0)


def summing_type(like: Tensor) -> torch.dtype:
    return like.dtype if like.dtype.itemsize >= 4 else torch.float32


class RunningSum:
    """Σ_a e^{row_a} and Σ_a e^{row_a} value_a, as seen so far, relative to the running maximum."""

    def __init__(self, like: Tensor, rows: int, *, weighted: int = 0) -> None:
        self.top = like.new_full((rows,), -torch.inf, dtype=summing_type(like))
        self.sums = like.new_zeros((1 + weighted, rows), dtype=summing_type(like))

    def add(self, chunk: Tensor, *values: Tensor) -> Tensor:
        """Take a chunk in. `chunk` becomes e^{chunk - shift}, and the shift is returned: [N]."""
        top = torch.maximum(self.top, chunk.amax(1))
        # A row of -inf so far has top = -inf; e^{-inf - -inf} would be NaN.
        shift = torch.where(top.isfinite(), top, torch.zeros_like(top))
        self.sums *= torch.exp(self.top - shift)
        chunk.sub_(shift[:, None]).exp_()
        self.sums[0] += chunk.sum(1)
        for number, value in enumerate(values, start=1):
            self.sums[number] += torch.linalg.vecdot(chunk, value)
        self.top = top
        return shift

    def log(self) -> Tensor:
        """log Σ e^{row}."""
        return self.top + self.sums[0].log()

    def mean(self, number: int = 1) -> Tensor:
        """Σ softmax value."""
        return self.sums[number] / self.sums[0]


class Kept:
    """e^{chunk - shift} of every chunk, with its shift, in one buffer that is handed on when backward is done."""

    def __init__(self, rows: int, items: int, like: Tensor) -> None:
        self.free: list[Tensor] = _local.__dict__.setdefault("free", {}).setdefault((like.dtype, like.device), [])
        needed = rows * items
        buffer = self.free.pop() if self.free else None
        if buffer is None or buffer.numel() < needed:
            # One that is too small is dropped, not put back; an eighth more spares the next slightly larger batch.
            buffer = torch.empty(needed + needed // 8, dtype=like.dtype, device=like.device)
        self.buffer = buffer
        self.rows = rows
        self.chunks: list[tuple[int, int, Tensor, Tensor]] = []

    @staticmethod
    def worth_it(rows: int, items: int, like: Tensor) -> bool:
        """Whether all chunks fit, in a type that is summed as it is."""
        return like.dtype.itemsize >= 4 and rows * items <= KEEP.get(like.device.type, KEEP["cpu"])

    def room(self, start: int, stop: int) -> Tensor:
        """Where the chunk start:stop goes."""
        return self.buffer[self.rows * start : self.rows * stop].view(self.rows, stop - start)

    def release(self) -> None:
        """Backward is done: the next forward may write here."""
        self.free.append(self.buffer)


def summed(rows: Logits, values: Logits | None, *, keep: bool) -> tuple[RunningSum, Kept | None]:
    """The sums over all chunks, and with `keep` the chunks themselves where they fit."""
    like = like_of(rows)
    kept = Kept(*rows.shape, like) if keep and Kept.worth_it(*rows.shape, like) else None
    running = RunningSum(like, rows.shape[0], weighted=values is not None)
    others = () if values is None else (values,)
    for start, stop, chunks in chunks_of(like, rows, *others, room=kept.room if kept else None):
        shift = running.add(*chunks)
        if kept:
            kept.chunks.append((start, stop, chunks[0], shift))
    return running, kept


def softmax_pull(
    kept: Kept | None, rows: LinearLogits, normaliser: Tensor, upstream: Tensor, wanted: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The softmax's part in a gradient: softmax @ weight, and softmax.T @ (upstream · hidden), and its row sums.

    The kept chunks are handed on.
    """
    hidden, (weight, bias) = rows
    for_hidden = torch.zeros_like(hidden) if wanted[0] else None
    for_weight = torch.empty_like(weight) if wanted[1] else None
    for_bias = torch.empty_like(bias) if wanted[2] and bias is not None else None
    for start, stop, share, shift in shares(kept, rows, normaliser):
        scale = (shift - normaliser).exp().to(hidden.dtype)  # softmax = share · scale
        pull = scale * upstream
        if for_hidden is not None:
            for_hidden.addcmul_(torch.mm(share, weight[start:stop]), scale[:, None])
        if for_weight is not None:
            torch.mm(share.T, pull[:, None] * hidden, out=for_weight[start:stop])
        if for_bias is not None:
            torch.mv(share.T, pull, out=for_bias[start:stop])
    if kept is not None:
        kept.release()
    return for_hidden, for_weight, for_bias


def shares(kept: Kept | None, rows: LinearLogits, normaliser: Tensor) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """(start, stop, e^{chunk - shift}, shift) over the catalogue, kept or formed again."""
    if kept is not None:
        yield from kept.chunks
        return
    for start, stop, (chunk,) in chunks_of(rows.hidden, rows):
        yield start, stop, chunk.sub_(normaliser[:, None]).exp_().to(rows.hidden.dtype), normaliser
