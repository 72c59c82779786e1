"""Statistics over a catalogue whose items are split over ranks, so that it can outgrow one device.

Each rank holds its share of the items and its own positions. Hidden states [N, D] travel to all ranks. Each rank sums
over its own items for the positions of all ranks, by `fused` if it can and by `chunked` otherwise. What travels back is
one number per position: log Σ e^x over all items is the log-sum-exp of the ranks' own, and means are weighted by the
ranks' shares. The numbers are those of one process, up to rounding.

Every function is a collective: all ranks call it, in the same order, each with its own number of positions (0, too).
"""

from __future__ import annotations

import torch
from torch import Tensor

from localpolicy.catalogue import fused, softmax
from localpolicy.catalogue.capped import CappedLogits, ShardedRows, shard_of
from localpolicy.catalogue.chunked import divergences
from localpolicy.catalogue.chunks import ChunkedSoftmax
from localpolicy.catalogue.open_items import ClosedPairs, OpenItems, OpenLogits
from localpolicy.catalogue.shards import Shard, ShardedLogits
from localpolicy.catalogue.softmax import Gradients, Wanted
from localpolicy.logits import LinearLogits, Logits, SoftmaxSums
from localpolicy.runtime.ranks import Ranks


def _gathered(rows: ShardedRows) -> tuple[LinearLogits | CappedLogits, slice]:
    """Logits of all ranks' positions over this rank's items, and the slice of this rank's own positions."""
    if isinstance(rows, CappedLogits):
        ceiling, mine = shard_of(rows).ranks.all_gather(rows.ceiling)
        base, values = (_gathered_linear(part)[0] for part in (rows.base, rows.values))
        return CappedLogits(base, values, rows.scale, ceiling), mine
    return _gathered_linear(rows)


def _gathered_linear(rows: LinearLogits | ShardedLogits) -> tuple[LinearLogits, slice]:
    assert isinstance(rows, ShardedLogits)
    every, mine = rows.head.shard.ranks.all_gather(rows.hidden)
    return LinearLogits(every, rows.head.here), mine


def _closed(open_items: OpenItems | None, shard: Shard) -> ClosedPairs | None:
    """Closed items of all ranks' positions, among this rank's items."""
    if open_items is None:
        return None
    return open_items.gathered(shard.ranks).closed_pairs(shard.own.start, shard.own.stop)


def _gathered_open(rows: ShardedRows, open_items: OpenItems | None) -> tuple[Logits, slice]:
    """Logits of `_gathered` with -inf at closed items, and the slice of this rank's own positions."""
    (every, mine), closed = _gathered(rows), _closed(open_items, shard_of(rows))
    return every if closed is None else OpenLogits(every, closed), mine


def _over_ranks(sums: SoftmaxSums, ranks: Ranks) -> SoftmaxSums:
    """Normaliser and mean over the items of all ranks, from those over this rank's."""
    largest = ranks.extreme_(sums.normaliser.clone(), largest=True)
    shift = torch.where(largest.isfinite(), largest, torch.zeros_like(largest))  # -inf - -inf would be NaN
    share = torch.exp(sums.normaliser - shift)
    if sums.mean is None:
        return SoftmaxSums(shift + ranks.sum_(share).log())
    # A rank without a share has no mean either.
    weighted = torch.where(share > 0, share * sums.mean, 0.0)
    total, weighted = ranks.sum_(torch.stack([share, weighted]))
    return SoftmaxSums(shift + total.log(), weighted / total)


class ShardedSoftmax:
    """Sums of `softmax` over ranks: each rank's rows in tiles or chunks, then one number per position travels.

    A rank's rows get their whole gradient here; hidden states get the sum over ranks.
    """

    apart = False

    def __init__(self, shard: Shard, open_items: OpenItems | None = None) -> None:
        self.shard = shard
        self.open_items = open_items

    def sums(self, rows: LinearLogits, items: Tensor, values: ShardedLogits | None, wanted: Wanted) -> SoftmaxSums:
        """Normalisers, log p of the items, and the mean of `values`, for this rank's positions."""
        ranks = self.shard.ranks
        self.hidden, self.mine = ranks.all_gather(rows.hidden)
        self.here, self.row = self.shard.local(ranks.all_gather(items)[0])
        local_rows = LinearLogits(self.hidden, rows.head)
        local_values = None if values is None else _gathered_linear(values)[0]
        by_tiles = local_values is None or fused.serves(local_values)
        closed = _closed(self.open_items, self.shard)
        self.local = fused.softmax_over(local_rows, closed) if by_tiles else ChunkedSoftmax(closed)
        local = self.local.sums(local_rows, self.row, local_values, wanted)
        assert local.log_p is not None
        everywhere = _over_ranks(local, ranks)
        self.normaliser = everywhere.normaliser
        own = ranks.sum_(torch.where(self.here, local.log_p + local.normaliser, 0.0))
        return SoftmaxSums(
            self.normaliser[self.mine],
            None if everywhere.mean is None else everywhere.mean[self.mine],
            (own - self.normaliser)[self.mine],
        )

    def gradient(
        self, rows: LinearLogits, items: Tensor, normaliser: Tensor, upstream: Tensor, wanted: Wanted
    ) -> Gradients:
        """Gradients of `softmax`: the hidden states' summed over ranks, the tables' of this rank's rows."""
        ranks = self.shard.ranks
        everywhere, _ = ranks.all_gather(upstream)
        for_hidden, for_weight, for_bias = self.local.gradient(
            LinearLogits(self.hidden, rows.head), self.row, self.normaliser, everywhere, wanted, here=self.here
        )
        if for_hidden is not None:
            for_hidden = ranks.sum_(for_hidden)[self.mine].clone()
        return for_hidden, for_weight, for_bias


def log_prob(rows: ShardedRows, items: Tensor, open_items: OpenItems | None = None) -> Tensor:
    """log softmax(row)[item], among the open items if these are given."""
    if isinstance(rows, CappedLogits):
        return rows.at(items) - logsumexp(rows, open_items)
    return softmax.log_prob(rows.hidden, rows.head.here, items, ShardedSoftmax(rows.head.shard, open_items))


def log_prob_and_mean(
    rows: ShardedRows, items: Tensor, values: ShardedLogits, open_items: OpenItems | None = None
) -> tuple[Tensor, Tensor]:
    """log softmax(row)[item], and Σ_a softmax(row)_a value_a as a constant, in one pass."""
    if isinstance(rows, CappedLogits):
        return log_prob(rows, items, open_items), mean(rows, values, open_items)
    constant = ShardedLogits(values.hidden.detach(), values.head.detach())
    over = ShardedSoftmax(rows.head.shard, open_items)
    return softmax.log_prob_and_mean(rows.hidden, rows.head.here, items, constant, over)


@torch.no_grad()
def logsumexp(rows: ShardedRows, open_items: OpenItems | None = None) -> Tensor:
    """log Σ_a exp(row_a), over the open items if these are given."""
    every, mine = _gathered_open(rows, open_items)
    return _over_ranks(fused.sums(every), shard_of(rows).ranks).normaliser[mine]


@torch.no_grad()
def mean(rows: ShardedRows, values: ShardedLogits, open_items: OpenItems | None = None) -> Tensor:
    """Σ_a softmax(row)_a value_a, among the open items if these are given."""
    every, mine = _gathered_open(rows, open_items)
    local = fused.sums(every, _gathered(values)[0], precision=fused.TRAINING)
    mean = _over_ranks(local, shard_of(rows).ranks).mean
    assert mean is not None
    return mean[mine]


@torch.no_grad()
def maximum(rows: ShardedRows) -> tuple[Tensor, Tensor]:
    """max_a row_a, and the first item that has it."""
    (every, mine), shard = _gathered(rows), shard_of(rows)
    value, item = fused.maximum(every)
    best = shard.ranks.extreme_(value.clone(), largest=True)
    item = torch.where(value == best, item + shard.own.start, shard.n_items)
    return best[mine], shard.ranks.extreme_(item, largest=False)[mine]


@torch.no_grad()
def rank(rows: ShardedRows, items: Tensor) -> Tensor:
    """1 + items strictly above + half of the others tied."""
    above, tied = counts(rows, items)
    return 1 + above + tied / 2


@torch.no_grad()
def counts(rows: ShardedRows, items: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of items of all ranks that score above each position's own, and that tie with it."""
    (every, mine), shard = _gathered(rows), shard_of(rows)
    here, row = shard.local(shard.ranks.all_gather(items)[0])
    own = shard.ranks.sum_(torch.where(here, fused.at(every, row), 0.0))
    above, tied = shard.ranks.sum_(torch.stack(fused.counts(every, row, own, here=here)))[:, mine]
    return above, tied


@torch.no_grad()
def divergence(p: ShardedRows, q: ShardedRows) -> tuple[Tensor, Tensor]:
    """JS(p, q) and KL(p‖q), in nats; see `chunked.divergence`."""
    (every_p, mine), (every_q, _), ranks = _gathered(p), _gathered(q), shard_of(p).ranks
    normal_p, normal_q = (_over_ranks(fused.sums(every), ranks).normaliser for every in (every_p, every_q))
    mixed, kl = ranks.sum_(torch.stack(fused.divergence_sums(every_p, every_q, normal_p, normal_q)))
    return divergences((mixed[mine], kl[mine]))


@torch.no_grad()
def entropy(rows: ShardedRows) -> Tensor:
    """-Σ_a p_a log p_a = log Σ e^{row} - Σ p row."""
    every, mine = _gathered(rows)
    normaliser, mean, *_ = _over_ranks(fused.sums(every, own_values=True), shard_of(rows).ranks)
    assert mean is not None
    return (normaliser - mean)[mine]


@torch.no_grad()
def top(rows: ShardedRows, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values and their items, in falling order."""
    (every, mine), shard = _gathered(rows), shard_of(rows)
    value, item = fused.top(every, k)
    # Shards may hold fewer than k items: columns are gathered as rows.
    values, _ = shard.ranks.all_gather(value.T.contiguous())
    items, _ = shard.ranks.all_gather((item + shard.own.start).T.contiguous())
    best, order = values.T[mine].sort(dim=1, descending=True, stable=True)  # ranks hold the catalogue in its order
    best, order = best[:, :k], order[:, :k]
    return best, items.T[mine].gather(1, order)


@torch.no_grad()
def catalogue_statistics(rows: ShardedRows, items: Tensor) -> dict[str, Tensor]:
    """Columns for the validation of a policy: see `localpolicy.catalogue.statistics`."""
    first, (above, tied) = maximum(rows)[1], counts(rows, items)
    return {
        "rank": 1 + above + tied / 2,
        "tied": tied,
        "top": first,
        "lists": first[:, None],
        "logp": log_prob(rows, items),
        "entropy": entropy(rows),
    }
