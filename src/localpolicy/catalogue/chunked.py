"""The statistics over pieces of the catalogue: one running maximum, sums of exponentials, weighted sums.

Softmax sums over pieces combine by m' = max(m, m_piece), s' = s e^{m-m'} + s_piece e^{m_piece-m'} (and so do
weighted sums), so only [N, width] numbers exist at a time. Backward uses the pieces again where all of them fit into a
fixed room (`KEEP`), and forms them anew where they do not: memory is bounded whatever N x V is.
Buffers are kept between calls: on a CPU the page faults of fresh large buffers cost as much as the arithmetic.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from localpolicy.catalogue.rows import Head, LinearRows, Rows

# Numbers in one piece: on a CPU 2 MiB of float32, about a core's share of cache; on a GPU enough to fill it.
PIECE = {"cpu": 1 << 19, "cuda": 1 << 27}
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
    return max(1, min(items, max(64, PIECE.get(device.type, PIECE["cpu"]) // max(rows, 1))))


def pieces_of(
    like: Tensor, *every: Rows, room: Callable[[int, int], Tensor] | None = None
) -> Iterator[tuple[int, int, list[Tensor]]]:
    """(start, stop, [N, stop-start] of each), over the catalogue.

    A yielded piece is scratch: it may be changed, and the next one overwrites it, unless `room` says where the first
    rows' pieces shall lie.
    """
    rows, items = every[0].shape
    width = _width(rows, items, like.device)
    for start in range(0, items, width):
        stop = min(items, start + width)
        outs = [_buffer(slot, rows, stop - start, like) for slot in range(len(every))]
        if room is not None:
            outs[0] = room(start, stop)
        pieces = [one.piece(start, stop, out=out) for one, out in zip(every, outs, strict=True)]
        # Half precision serves the matrix product; sums of thousands of exponentials need float32.
        yield start, stop, [piece.float() if piece.dtype.itemsize < 4 else piece for piece in pieces]


def _like(rows: Rows) -> Tensor:
    """A tensor of the rows' type and device."""
    return rows.hidden if isinstance(rows, LinearRows) else rows.piece(0, 0)


def _summing(like: Tensor) -> torch.dtype:
    return like.dtype if like.dtype.itemsize >= 4 else torch.float32


class RunningSum:
    """Σ_a e^{row_a} and Σ_a e^{row_a} value_a, as seen so far, relative to the running maximum."""

    def __init__(self, like: Tensor, rows: int, *, weighted: int = 0) -> None:
        self.top = like.new_full((rows,), -torch.inf, dtype=_summing(like))
        self.sums = like.new_zeros((1 + weighted, rows), dtype=_summing(like))

    def add(self, piece: Tensor, *values: Tensor) -> Tensor:
        """Take a piece in. `piece` becomes e^{piece - shift}, and the shift is returned: [N]."""
        top = torch.maximum(self.top, piece.amax(1))
        # A row of -inf so far has top = -inf; e^{-inf - -inf} would be NaN.
        shift = torch.where(top.isfinite(), top, torch.zeros_like(top))
        self.sums *= torch.exp(self.top - shift)
        piece.sub_(shift[:, None]).exp_()
        self.sums[0] += piece.sum(1)
        for number, value in enumerate(values, start=1):
            self.sums[number] += torch.linalg.vecdot(piece, value)
        self.top = top
        return shift

    def log(self) -> Tensor:
        """log Σ e^{row}."""
        return self.top + self.sums[0].log()

    def mean(self, number: int = 1) -> Tensor:
        """Σ softmax value."""
        return self.sums[number] / self.sums[0]


class Kept:
    """e^{piece - shift} of every piece, with its shift, in one buffer that is handed on when backward is done."""

    def __init__(self, rows: int, items: int, like: Tensor) -> None:
        self.free: list[Tensor] = _local.__dict__.setdefault("free", {}).setdefault((like.dtype, like.device), [])
        needed = rows * items
        buffer = self.free.pop() if self.free else None
        if buffer is None or buffer.numel() < needed:
            # One that is too small is dropped, not put back; an eighth more spares the next slightly larger batch.
            buffer = torch.empty(needed + needed // 8, dtype=like.dtype, device=like.device)
        self.buffer = buffer
        self.rows = rows
        self.pieces: list[tuple[int, int, Tensor, Tensor]] = []

    @staticmethod
    def worth_it(rows: int, items: int, like: Tensor) -> bool:
        """Whether all pieces fit, in a type that is summed as it is."""
        return like.dtype.itemsize >= 4 and rows * items <= KEEP.get(like.device.type, KEEP["cpu"])

    def room(self, start: int, stop: int) -> Tensor:
        """Where the piece start:stop goes."""
        return self.buffer[self.rows * start : self.rows * stop].view(self.rows, stop - start)

    def release(self) -> None:
        """Backward is done: the next forward may write here."""
        self.free.append(self.buffer)


def summed(rows: LinearRows, values: LinearRows | None, *, keep: bool) -> tuple[RunningSum, Kept | None]:
    """The sums over all pieces, and with `keep` the pieces themselves where they fit."""
    hidden = rows.hidden
    kept = Kept(*rows.shape, hidden) if keep and Kept.worth_it(*rows.shape, hidden) else None
    running = RunningSum(hidden, len(hidden), weighted=values is not None)
    others = () if values is None else (values,)
    for start, stop, pieces in pieces_of(hidden, rows, *others, room=kept.room if kept else None):
        shift = running.add(*pieces)
        if kept:
            kept.pieces.append((start, stop, pieces[0], shift))
    return running, kept


class _LogProb(torch.autograd.Function):
    """log softmax(hidden @ weight.T + bias)[item]; the gradient of row n is onehot(item) - softmax(row)."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        items: Tensor,
        values: LinearRows | None,
    ) -> tuple[Tensor, Tensor]:
        rows = LinearRows(hidden, Head(weight, bias))
        running, kept = summed(rows, values, keep=any(ctx.needs_input_grad))
        normaliser = running.log()
        ctx.save_for_backward(hidden, weight, bias, items, normaliser)
        ctx.kept = kept
        expected = running.mean() if values is not None else normaliser.new_empty(0)
        ctx.mark_non_differentiable(expected)
        return rows.at(items) - normaliser, expected

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, items, normaliser = ctx.saved_tensors
        upstream = upstream.to(hidden.dtype)
        rows = LinearRows(hidden, Head(weight, bias))
        for_hidden, for_weight, for_bias = softmax_pull(ctx.kept, rows, normaliser, upstream, ctx.needs_input_grad[:3])
        ctx.kept = None  # a second backward forms the pieces anew
        # So far the softmax's part, without its sign; what is left is each position's own item.
        if for_hidden is not None:
            for_hidden = upstream[:, None] * (functional.embedding(items, weight) - for_hidden)
        if for_weight is not None:
            # A popular item is added hundreds of times: in half precision the sum would stop growing.
            for_weight = for_weight.to(_summing(hidden)).neg_()
            for_weight.index_add_(0, items, (upstream[:, None] * hidden).to(for_weight.dtype))
        if for_bias is not None:
            for_bias = for_bias.to(_summing(hidden)).neg_()
            for_bias.index_add_(0, items, upstream.to(for_bias.dtype))
        return for_hidden, for_weight, for_bias, None, None


def softmax_pull(
    kept: Kept | None, rows: LinearRows, normaliser: Tensor, upstream: Tensor, wanted: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The softmax's part in a gradient: softmax @ weight, and softmax.T @ (upstream · hidden), and its row sums.

    The kept pieces are handed on.
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


def shares(kept: Kept | None, rows: LinearRows, normaliser: Tensor) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """(start, stop, e^{piece - shift}, shift) over the catalogue, kept or formed again."""
    if kept is not None:
        yield from kept.pieces
        return
    for start, stop, (piece,) in pieces_of(rows.hidden, rows):
        yield start, stop, piece.sub_(normaliser[:, None]).exp_().to(rows.hidden.dtype), normaliser


def log_prob(rows: Rows, items: Tensor) -> Tensor:
    """log softmax(row)[item]."""
    if isinstance(rows, LinearRows):
        return _LogProb.apply(rows.hidden, *rows.head, items, None)[0]  # type: ignore[no-untyped-call, no-any-return]
    return rows.at(items) - logsumexp(rows)


def log_prob_and_mean(rows: LinearRows, items: Tensor, values: LinearRows) -> tuple[Tensor, Tensor]:
    """log softmax(row)[item], and Σ_a softmax(row)_a value_a as a constant, in one pass."""
    return _LogProb.apply(rows.hidden, *rows.head, items, values.detach())  # type: ignore[no-untyped-call, no-any-return]


@torch.no_grad()
def logsumexp(rows: Rows) -> Tensor:
    """log Σ_a exp(row_a)."""
    like = _like(rows)
    running = RunningSum(like, rows.shape[0])
    for _, _, (piece,) in pieces_of(like, rows):
        running.add(piece)
    return running.log()


@torch.no_grad()
def mean(rows: Rows, values: Rows) -> Tensor:
    """Σ_a softmax(row)_a value_a."""
    like = _like(rows)
    running = RunningSum(like, rows.shape[0], weighted=1)
    for _, _, (piece, value) in pieces_of(like, rows, values):
        running.add(piece, value)
    return running.mean()


@torch.no_grad()
def maximum(rows: Rows) -> tuple[Tensor, Tensor]:
    """max_a row_a, and the first item that has it."""
    best, item = None, None
    for start, _, (piece,) in pieces_of(_like(rows), rows):
        value, index = piece.max(1)
        if best is None or item is None:
            best, item = value, index
        else:
            better = value > best
            best, item = torch.where(better, value, best), torch.where(better, index + start, item)
    assert best is not None and item is not None, "a catalogue has at least one item"
    return best, item


@torch.no_grad()
def rank(rows: Rows, items: Tensor) -> Tensor:
    """1 + items strictly above + half of the others tied."""
    own = rows.at(items)[:, None]
    above = torch.zeros(rows.shape[0], dtype=torch.long, device=items.device)
    tied = torch.full_like(above, -1)  # the item itself
    for start, stop, (piece,) in pieces_of(_like(rows), rows):
        # `at` and `piece` may round differently: the item must tie with itself, exactly.
        here = ((items >= start) & (items < stop)).nonzero().squeeze(1)
        piece[here, items[here] - start] = own[here, 0]
        above += (piece > own).sum(1)
        tied += (piece == own).sum(1)
    return 1 + above + tied / 2


@torch.no_grad()
def divergence(p: Rows, q: Rows) -> tuple[Tensor, Tensor]:
    """JS(p, q) = ½ KL(p‖m) + ½ KL(q‖m), m = (p + q)/2; and KL(p‖q).

    Two passes: normalisers first, since the mixture needs both. With d = log q - log p,
    JS = log 2 - ½ Σ [p softplus(d) + q softplus(-d)].
    """
    mixed, kl = divergence_sums(p, q, logsumexp(p), logsumexp(q))
    return (math.log(2) - mixed / 2).clamp_(min=0.0), kl


def divergence_sums(p: Rows, q: Rows, normal_p: Tensor, normal_q: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_a [p softplus(d) + q softplus(-d)], and -Σ_a p d, given the logarithms of both normalisers."""
    mixed, kl = torch.zeros_like(normal_p), torch.zeros_like(normal_p)
    for _, _, (log_p, log_q) in pieces_of(_like(p), p, q):
        log_p.sub_(normal_p[:, None])
        log_q.sub_(normal_q[:, None])
        gap = log_q - log_p
        log_p.exp_()
        log_q.exp_()
        kl -= torch.linalg.vecdot(log_p, gap)
        soft = functional.softplus(gap, threshold=40.0)  # exact in float64 too
        mixed += torch.linalg.vecdot(log_p, soft) + torch.linalg.vecdot(log_q, soft.sub_(gap))
    return mixed, kl


@torch.no_grad()
def entropy(rows: Rows) -> Tensor:
    """-Σ_a p_a log p_a = log Σ e^{row} - Σ p row."""
    like = _like(rows)
    running = RunningSum(like, rows.shape[0], weighted=1)
    for _, _, (piece,) in pieces_of(like, rows):
        running.add(piece, piece.clone())
    return running.log() - running.mean()


@torch.no_grad()
def top(rows: Rows, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values and their items, in falling order."""
    k = min(k, rows.shape[1])
    best: Tensor | None = None
    items: Tensor | None = None
    for start, stop, (piece,) in pieces_of(_like(rows), rows):
        value, index = piece.topk(min(k, stop - start), dim=1)
        index = index + start
        if best is not None and items is not None:
            value, index = torch.cat([best, value], 1), torch.cat([items, index], 1)
        best, order = value.topk(min(k, value.shape[1]), dim=1)
        items = index.gather(1, order)
    assert best is not None and items is not None, "a catalogue has at least one item"
    return best, items
