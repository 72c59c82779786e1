"""Open items: those that could be chosen at a position, allowed by its filter and not placed above it in its list.

If positions are first meetings (see `data.first_meetings`), the open items are those that the window did not hold
before.

A logged propensity is the probability among these *open* items: lists are drawn without replacement, and filters act
before the draw. Whoever compares a policy with it must ask the policy the same question,

    log π(a|x, open) = s_a - log Σ_{b open} e^{s_b}.

Closed items are left out of the sum, rather than taken off 1: for a policy that stakes nearly all on closed items the
difference would be rounding error alone. The gradient is that of a softmax over the open items: closed items have none.
The item that was shown counts as open, whatever the filter says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from localpolicy.catalogue.masked import changeable
from localpolicy.limits import NO_FILTER, UNKNOWN_FILTER
from localpolicy.logits import Logits
from localpolicy.runtime.ranks import Ranks
from localpolicy.types import Batch, ItemFilters


@dataclass(frozen=True)
class OpenItems:
    """Open items of N positions, stored as the filters and lists that close the others."""

    shown: Tensor  # [M] items, list by list
    at: Tensor  # [N] where in `shown` each position's own item is
    above: Tensor  # [N] number of items above it in the same list
    filter: Tensor  # [N] number of its filter
    filters: ItemFilters | None

    @classmethod
    def of(cls, batch: Batch) -> OpenItems | None:
        """Open items at the batch's positions; None if all items are open, as in a log without lists and filters."""
        if batch.context is None and batch.filter is None and not batch.meetings:
            return None
        at = batch.scored
        none = torch.full_like(at, NO_FILTER)
        above = torch.zeros_like(at) if batch.context is None else at - batch.context[at]
        above = batch.column[at] if batch.meetings else above
        number = none if batch.filter is None else batch.filter[at].long()
        return cls(batch.item, at, above, number, batch.filters)

    @property
    def unknown(self) -> Tensor:
        """Mask [N] of the positions whose open items are unknown: the log names a filter, but not its items."""
        return self.filter == UNKNOWN_FILTER

    def part(self, start: int, stop: int) -> OpenItems:
        """Open items of positions start:stop."""
        part = slice(start, stop)
        return OpenItems(self.shown, self.at[part], self.above[part], self.filter[part], self.filters)

    def gathered(self, ranks: Ranks) -> OpenItems:
        """Open items of the positions of all ranks, in rank order."""
        shown, mine = ranks.all_gather(self.shown)
        at, above, number = (ranks.all_gather(x)[0] for x in (self.at + mine.start, self.above, self.filter))
        return OpenItems(shown, at, above, number, self.filters)

    def closed(self, first: int, stop: int) -> Tensor:
        """Mask of the items first:stop that could not be chosen: [N, stop - first]."""
        closed = torch.zeros(len(self.at), stop - first, dtype=torch.bool, device=self.at.device)
        filtered = (self.filter >= 0).nonzero().squeeze(1)
        if self.filters is not None and len(filtered):
            number = self.filter[filtered]
            begins = self.filters.offsets[number]
            pairs = _expanded(filtered, begins, self.filters.offsets[number + 1] - begins)
            allows = torch.zeros(len(self.at), dtype=torch.bool, device=closed.device)
            allows[filtered] = self.filters.allows[number].bool()
            closed[allows] = True
            _mark(closed, pairs[0], self.filters.items[pairs[1]].long() - first, ~allows[pairs[0]])
        position = torch.arange(len(self.at), device=closed.device)
        pairs = _expanded(position, self.at - self.above, self.above)
        _mark(closed, pairs[0], self.shown[pairs[1]] - first, torch.ones_like(pairs[0], dtype=torch.bool))
        _mark(closed, position, self.shown[self.at] - first, torch.zeros_like(position, dtype=torch.bool))
        return closed

    def closed_pairs(self, first: int, stop: int) -> ClosedPairs:
        """Closed items first:stop as (position, item) pairs: no more numbers than filters and lists hold."""
        position = torch.arange(len(self.at), device=self.at.device)
        allows = torch.zeros_like(position, dtype=torch.bool)
        said = []  # (position, item, whether it is open): of the same pair the last is right
        filtered = (self.filter >= 0).nonzero().squeeze(1)
        if self.filters is not None and len(filtered):
            number = self.filter[filtered]
            begins = self.filters.offsets[number]
            allows[filtered] = self.filters.allows[number].bool()
            row, at = _expanded(filtered, begins, self.filters.offsets[number + 1] - begins)
            said.append((row, self.filters.items[at].long(), allows[row]))
        row, at = _expanded(position, self.at - self.above, self.above)
        said.append((row, self.shown[at], torch.zeros_like(row, dtype=torch.bool)))
        said.append((position, self.shown[self.at], torch.ones_like(allows)))
        rows, items, opens = (torch.cat(column) for column in zip(*said, strict=True))
        order = (items * len(position) + rows).argsort(stable=True)
        rows, items, opens = rows[order], items[order], opens[order]
        last = torch.ones_like(opens)
        last[:-1] = (items[1:] != items[:-1]) | (rows[1:] != rows[:-1])
        kept = last & (opens == allows[rows]) & (items >= first) & (items < stop)
        return ClosedPairs(rows[kept], items[kept] - first, allows if bool(allows.any()) else None, len(position))


def _expanded(rows: Tensor, begins: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Row numbers repeated `counts` times each, and consecutive numbers from each row's `begins` on."""
    number = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), counts)
    step = torch.arange(len(number), device=rows.device) - (counts.cumsum(0) - counts)[number]
    return rows[number], begins[number] + step


def _mark(closed: Tensor, row: Tensor, column: Tensor, value: Tensor) -> None:
    inside = (column >= 0) & (column < closed.shape[1])
    closed[row[inside], column[inside]] = value[inside]


def masked(scores: Tensor, open_items: OpenItems, *, first: int = 0) -> Tensor:
    """Scores [N, columns] of the items from `first` on, with -inf at closed items."""
    return scores.masked_fill(open_items.closed(first, first + scores.shape[1]), -torch.inf)


class ClosedPairs(NamedTuple):
    """Closed items as (position, item) pairs, sorted by item; of positions in `allows` the pairs are the open ones."""

    row: Tensor  # [P]
    item: Tensor  # [P] from the first of these items on
    allows: Tensor | None  # [N] mask of positions whose pairs are the open items; None: none
    rows: int  # N

    def close_(self, chunk: Tensor, start: int) -> Tensor:
        """Write -inf into a chunk of logits at closed items; its columns are the items from `start` on."""
        first, stop = torch.searchsorted(self.item, self.item.new_tensor([start, start + chunk.shape[1]])).tolist()
        row, column = self.row[first:stop], self.item[first:stop] - start
        closed = chunk.new_tensor(-torch.inf)
        if self.allows is None:
            return chunk.index_put_((row, column), closed)
        alone = self.allows[row]
        kept = chunk[row[alone], column[alone]]
        chunk.masked_fill_(self.allows[:, None], -torch.inf)
        chunk.index_put_((row[~alone], column[~alone]), closed)
        return chunk.index_put_((row[alone], column[alone]), kept)

    def table(self, *, most: int) -> Tensor | None:
        """Closed items of each position [N, C], filled up with -1; None if a position has more than `most`."""
        if self.allows is not None:
            return None
        counts = torch.bincount(self.row, minlength=self.rows)
        widest = int(counts.max()) if self.rows else 0
        if widest > most:
            return None
        order = self.row.argsort(stable=True)
        row, begins = self.row[order], counts.cumsum(0) - counts
        table = torch.full((self.rows, max(widest, 1)), -1, dtype=torch.int32, device=self.row.device)
        step = torch.arange(len(row), device=row.device) - begins[row]
        return table.index_put_((row, step), self.item[order].int())


class OpenLogits:
    """Logits with -inf at closed items."""

    def __init__(self, rows: Logits, closed: ClosedPairs) -> None:
        self.rows, self.closed = rows, closed

    @property
    def shape(self) -> tuple[int, int]:
        """(N, V): numbers of positions and items."""
        return self.rows.shape

    def chunk(self, start: int, stop: int, *, out: Tensor | None = None) -> Tensor:
        """Logits of items start:stop: [N, stop - start]."""
        return self.closed.close_(changeable(self.rows.chunk(start, stop, out=out), out), start)

    def at(self, items: Tensor) -> Tensor:
        """Logit of item items[n] at each position n: [N]. Callers pass open items only."""
        return self.rows.at(items)


def among(rows: Logits, open_items: OpenItems | None) -> Logits:
    """The logits with -inf at closed items; unchanged if all items are open."""
    return rows if open_items is None else OpenLogits(rows, open_items.closed_pairs(0, rows.shape[1]))
