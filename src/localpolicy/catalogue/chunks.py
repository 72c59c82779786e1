"""Chunks of the catalogue, and softmax sums over them, for the backends `chunked` and `sharded`.

Softmax sums over chunks are added as they are if that is exact, and else combine by m' = max(m, m_c), s' = s e^{m-m'} +
s_c e^{m_c-m'} (and so do weighted sums), so only [N, width] numbers exist at a time; exponentials are formed as powers
of two. Backward uses the chunks again if all of them fit into a fixed space (`KEEP`), and else forms them again: memory
is bounded whatever N x V is. Buffers are kept between calls: on a CPU the page faults of fresh large buffers cost as
much as the arithmetic.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from localpolicy.catalogue.open_items import ClosedPairs, OpenLogits
from localpolicy.catalogue.softmax import Gradients, Wanted
from localpolicy.logits import Head, LinearLogits, Logits, SoftmaxSums

# Numbers in one chunk: on a CPU 2 MiB of float32, about a core's share of cache; on a GPU enough to fill it.
CHUNK = {"cpu": 1 << 19, "cuda": 1 << 27}
# Numbers that may be kept from forward to backward, a fifth faster than forming them again: 128 MiB, 1 GiB of float32.
KEEP = {"cpu": 1 << 25, "cuda": 1 << 28}

LOG2E, LN2 = math.log2(math.e), math.log(2)

# Sums of plain exponentials that are as exact as shifted ones, and whose products with weights cannot overflow.
PLAIN = (1e-30, 1e30)

_local = threading.local()


def scratch(slot: int, rows: int, columns: int, like: Tensor) -> Tensor:
    """Uninitialised [rows, columns], from memory that is kept per thread, slot, type, device and stream."""
    pool: dict[Any, Tensor] = _local.__dict__.setdefault("pool", {})
    key = (slot, *_place(like))
    needed = rows * columns
    if key not in pool or pool[key].numel() < needed:
        pool[key] = torch.empty(needed, dtype=like.dtype, device=like.device)
    return pool[key][:needed].view(rows, columns)


def _place(like: Tensor) -> tuple[Any, ...]:
    """Key of reusable memory: type, device and stream, since work on another stream may still be using its own."""
    stream = torch.cuda.current_stream(like.device).cuda_stream if like.is_cuda else 0
    return like.dtype, like.device, stream


def _width(rows: int, items: int, device: torch.device) -> int:
    fitting = CHUNK.get(device.type, CHUNK["cpu"]) // max(rows, 1)
    return max(1, min(items, max(1, fitting // 64) * 64))  # products are fastest in whole vectors


def chunks_of(
    like: Tensor, *logits: Logits, room: Callable[[int, int], Tensor] | None = None, factor: float = 1.0
) -> Iterator[tuple[int, int, list[Tensor]]]:
    """(start, stop, [N, stop-start] of each), over the catalogue; chunks of the first logits times `factor`.

    A yielded chunk is scratch: it may be changed, and the next one overwrites it, unless `room` gives the memory for
    the chunks of the first logits.
    """
    rows, items = logits[0].shape
    width = _width(rows, items, like.device)
    for start in range(0, items, width):
        stop = min(items, start + width)
        outs = [scratch(slot, rows, stop - start, like) for slot in range(len(logits))]
        if room is not None:
            outs[0] = room(start, stop)
        chunks = [source.chunk(start, stop, out=out) for source, out in zip(logits, outs, strict=True)]
        # Half precision serves the matrix product; sums of thousands of exponentials need float32.
        chunks = [chunk.float() if chunk.dtype.itemsize < 4 else chunk for chunk in chunks]
        if factor != 1:
            chunks[0].mul_(factor)
        yield start, stop, chunks


def like_of(rows: Logits) -> Tensor:
    """Tensor of the logits' type and device."""
    return rows.hidden if isinstance(rows, LinearLogits) else rows.chunk(0, 0)


def summing_type(like: Tensor) -> torch.dtype:
    return like.dtype if like.dtype.itemsize >= 4 else torch.float32


def to_log2(rows: Logits) -> tuple[Logits, float]:
    """Logits divided by log 2, so that e^row is a power of two: torch's exp2 takes a third of the time of its exp.

    Linear logits are scaled by their hidden states and biases, which costs next to nothing. For others the second
    result is the factor by which their chunks must still be multiplied, else 1.
    """
    if isinstance(rows, OpenLogits):
        inner, factor = to_log2(rows.rows)
        return OpenLogits(inner, rows.closed), factor
    if isinstance(rows, LinearLogits) and rows.hidden.dtype.itemsize >= 4:  # half precision would be rounded twice
        weight, bias = rows.head
        return LinearLogits(rows.hidden * LOG2E, Head(weight, None if bias is None else bias * LOG2E)), 1.0
    return rows, LOG2E


class Pulled:
    """Σ_a weight_a value_a of linear values, without forming them: h·Σ_a weight_a v_a + Σ_a weight_a b_a.

    This product over the catalogue has the same cost, but its result [N, D] stays in the cache.
    """

    def __init__(self, values: LinearLogits) -> None:
        self.values = values
        self.weight, self.bias = torch.zeros_like(values.hidden), torch.zeros_like(values.hidden[:, 0])

    def add(self, weights: Tensor, start: int, stop: int) -> None:
        """Add the columns start:stop, which have these weights [N, stop - start]."""
        weight, bias = self.values.head.to(weights.dtype)
        self.weight.addmm_(weights, weight[start:stop])
        if bias is not None:
            self.bias.addmv_(weights, bias[start:stop])

    def total(self) -> Tensor:
        """Accumulated sum over the chunks so far: [N]."""
        pulled: Tensor = torch.linalg.vecdot(self.values.hidden, self.weight)
        return pulled + self.bias


class PlainSum:
    """Sums Σ_a e^{row_a} and Σ_a e^{row_a} value_a without a shift, of rows in base 2 (see `to_log2`).

    Without a shift a chunk is read twice instead of four times. The sums are right if every one of them lies within
    `PLAIN`, as it does for logits of any trained policy; `fits` checks it.
    """

    def __init__(self, like: Tensor, rows: int, *, weighted: bool) -> None:
        self.shift = like.new_zeros((rows,), dtype=summing_type(like))
        self.sums = like.new_zeros((1 + weighted, rows), dtype=summing_type(like))

    def add(self, chunk: Tensor, value: Tensor | None = None) -> Tensor:
        """Add a chunk, which becomes 2^chunk; return the shift: [N] zeros."""
        self.sums[0] += chunk.exp2_().sum(1)
        if value is not None:
            self.sums[1] += torch.linalg.vecdot(chunk, value)
        return self.shift

    def fits(self) -> bool:
        """Whether all sums lie within `PLAIN`; NaN does not."""
        least, most = PLAIN
        return bool(((self.sums[0] > least) & (self.sums[0] < most)).all())

    def log(self) -> Tensor:
        """log Σ e^{row}: [N]."""
        return self.sums[0].log()

    def mean(self) -> Tensor:
        """Σ softmax value: [N]."""
        return self.sums[1] / self.sums[0]


class RunningSum:
    """Streaming Σ_a e^{row_a} and Σ_a e^{row_a} value_a, shifted by the running maximum against overflow."""

    def __init__(self, like: Tensor, rows: int, *, weighted: bool) -> None:
        self.top = like.new_full((rows,), -torch.inf, dtype=summing_type(like))
        self.sums = like.new_zeros((1 + weighted, rows), dtype=summing_type(like))

    def add(self, chunk: Tensor, value: Tensor | None = None) -> Tensor:
        """Add a chunk, which becomes 2^{chunk - shift}; return the shift, no longer in base 2: [N]."""
        top = torch.maximum(self.top, chunk.amax(1))
        # A row of -inf so far has top = -inf; 2^{-inf - -inf} would be NaN.
        shift = torch.where(top.isfinite(), top, torch.zeros_like(top))
        self.sums *= torch.exp2(self.top - shift)
        chunk.sub_(shift[:, None]).exp2_()
        self.sums[0] += chunk.sum(1)
        if value is not None:
            self.sums[1] += torch.linalg.vecdot(chunk, value)
        self.top = top
        return shift * LN2

    def log(self) -> Tensor:
        """log Σ e^{row}: [N]."""
        return self.top * LN2 + self.sums[0].log()

    def mean(self) -> Tensor:
        """Σ softmax value: [N]."""
        return self.sums[1] / self.sums[0]


class ChunkCache:
    """e^{chunk - shift} of every chunk, with its shift, in one buffer that later calls use again after backward."""

    def __init__(self, rows: int, items: int, like: Tensor) -> None:
        self.free: list[Tensor] = _local.__dict__.setdefault("free", {}).setdefault(_place(like), [])
        needed = rows * items
        buffer = self.free.pop() if self.free else None
        if buffer is None or buffer.numel() < needed:
            # One that is too small is dropped, not put back; an eighth more spares the next slightly larger batch.
            buffer = torch.empty(needed + needed // 8, dtype=like.dtype, device=like.device)
        self.buffer = buffer
        self.rows = rows
        self.chunks: list[tuple[int, int, Tensor, Tensor]] = []

    @staticmethod
    def fits(rows: int, items: int, like: Tensor) -> bool:
        """Whether all chunks fit into `KEEP`, in a type that is summed without conversion."""
        return like.dtype.itemsize >= 4 and rows * items <= KEEP.get(like.device.type, KEEP["cpu"])

    def room(self, start: int, stop: int) -> Tensor:
        """Memory for the chunk start:stop."""
        return self.buffer[self.rows * start : self.rows * stop].view(self.rows, stop - start)

    def release(self) -> None:
        """Hand the buffer to the next forward pass, once backward is done."""
        self.free.append(self.buffer)


class ChunkedSoftmax:
    """Sums of `softmax` over chunks, without the closed items; chunks are kept for the gradient if they fit."""

    apart = False

    def __init__(self, closed: ClosedPairs | None = None) -> None:
        self.kept: ChunkCache | None = None
        self.closed = closed
        # Read here: within an autograd function it is off, and a buffer that no backward releases is allocated again.
        self.for_gradient = torch.is_grad_enabled()

    def _open(self, rows: LinearLogits) -> Logits:
        return rows if self.closed is None else OpenLogits(rows, self.closed)

    def sums(self, rows: LinearLogits, items: Tensor, values: Logits | None, wanted: Wanted) -> SoftmaxSums:
        """Normalisers, log p of the items, and the mean of `values`: [N] each."""
        hidden = rows.hidden
        if self.for_gradient and any(wanted) and ChunkCache.fits(*rows.shape, hidden):
            self.kept = ChunkCache(*rows.shape, hidden)
        sums = sums_over_chunks(self._open(rows), values, kept=self.kept)
        return sums._replace(log_p=rows.at(items) - sums.normaliser)

    def gradient(
        self,
        rows: LinearLogits,
        items: Tensor,
        normaliser: Tensor,
        upstream: Tensor,
        wanted: Wanted,
        *,
        here: Tensor | None = None,
    ) -> Gradients:
        """Gradients of `softmax`; `here` is a mask of the positions with their item among these rows (default: all)."""
        hidden, (weight, _) = rows
        upstream = upstream.to(hidden.dtype)
        for_hidden, for_weight, for_bias = softmax_pull(self.kept, rows, self._open(rows), normaliser, upstream, wanted)
        self.kept = None  # a second backward forms the chunks again
        own = upstream if here is None else upstream * here
        if for_hidden is not None:
            taken = functional.embedding(items, weight)
            for_hidden = upstream[:, None] * ((taken if here is None else taken * here[:, None]) - for_hidden)
        if for_weight is not None:
            # A popular item is added hundreds of times: in half precision the sum would stop growing.
            for_weight = for_weight.to(summing_type(hidden)).neg_()
            for_weight.index_add_(0, items, (own[:, None] * hidden).to(for_weight.dtype))
        if for_bias is not None:
            for_bias = for_bias.to(summing_type(hidden)).neg_()
            for_bias.index_add_(0, items, own.to(for_bias.dtype))
        return for_hidden, for_weight, for_bias


def sums_over_chunks(
    rows: Logits, values: Logits | None = None, *, own_values: bool = False, kept: ChunkCache | None = None
) -> SoftmaxSums:
    """log Σ_a e^{row_a}, and Σ_a p_a value_a if there are values. `own_values`: the logits are the values."""
    like = like_of(rows)
    weighted = own_values or values is not None
    bits, factor = to_log2(rows)

    def summed(running: PlainSum | RunningSum, pulled: Pulled | None) -> SoftmaxSums:
        if kept:
            kept.chunks.clear()
        formed = () if values is None or pulled else (values,)
        room = kept.room if kept else None
        for start, stop, (chunk, *value) in chunks_of(like, bits, *formed, room=room, factor=factor):
            shift = running.add(chunk, *([chunk * LN2] if own_values else value))
            if pulled:
                pulled.add(chunk, start, stop)
            if kept:
                kept.chunks.append((start, stop, chunk, shift))
        if pulled:
            return SoftmaxSums(running.log(), pulled.total() / running.sums[0])
        return SoftmaxSums(running.log(), running.mean() if weighted else None)

    if like.device.type == "cpu":  # elsewhere the question whether it fits would wait for the device
        linear = isinstance(values, LinearLogits) and values.hidden.dtype == like.dtype == summing_type(like)
        plain = PlainSum(like, rows.shape[0], weighted=weighted and not linear)
        sums = summed(plain, Pulled(values) if linear else None)  # type: ignore[arg-type]
        if plain.fits():
            return sums
    return summed(RunningSum(like, rows.shape[0], weighted=weighted), None)


def softmax_pull(
    kept: ChunkCache | None, rows: LinearLogits, opened: Logits, normaliser: Tensor, upstream: Tensor, wanted: Wanted
) -> Gradients:
    """The softmax's part in a gradient: softmax @ weight, and softmax.T @ (upstream · hidden), and its row sums.

    `opened` are the logits with -inf at closed items. The kept chunks are released.
    """
    hidden, (weight, bias) = rows
    for_hidden = torch.zeros_like(hidden) if wanted[0] else None
    for_weight = torch.empty_like(weight) if wanted[1] else None
    for_bias = torch.empty_like(bias) if wanted[2] and bias is not None else None
    for start, stop, share, shift in shares(kept, opened, hidden, normaliser):
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


def shares(
    kept: ChunkCache | None, rows: Logits, like: Tensor, normaliser: Tensor
) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """(start, stop, e^{chunk - shift}, shift) of every chunk, from the cache or formed again."""
    if kept is not None:
        yield from kept.chunks
        return
    bits, factor = to_log2(rows)
    for start, stop, (chunk,) in chunks_of(like, bits, factor=factor):
        yield start, stop, chunk.sub_(normaliser[:, None] * LOG2E).exp2_().to(like.dtype), normaliser
