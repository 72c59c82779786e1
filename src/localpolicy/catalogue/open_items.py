"""What could be chosen at a position: the items that its filter allows, less those placed above it in the same list.

A logged propensity is the probability among these *open* items: lists are drawn without replacement, and filters act
before the draw. Whoever compares a policy with it must ask the policy the same question,

    log π(a|x, open) = s_a - log Σ_{b open} e^{s_b}.

What is closed is left out of the sum, rather than taken off 1: for a policy that stakes nearly all on closed items the
difference would be rounding error alone. The item that was shown counts as open, whatever the filter says.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from localpolicy.catalogue.blocks import blocks_of, part_of
from localpolicy.catalogue.logits import Logits
from localpolicy.limits import NO_FILTER, UNKNOWN_FILTER
from localpolicy.runtime.ranks import Ranks
from localpolicy.types import Batch, ItemFilters


@dataclass(frozen=True)
class OpenItems:
    """The open items of N positions, as what closes the others."""

    shown: Tensor  # [M] items, list by list
    at: Tensor  # [N] where in `shown` each position's own item is
    above: Tensor  # [N] how many before it stand in the same list
    filter: Tensor  # [N] number of its filter
    filters: ItemFilters | None

    @classmethod
    def of(cls, batch: Batch) -> OpenItems | None:
        """At the batch's positions; None where its log has neither lists nor filters, so that all items are open."""
        if batch.context is None and batch.filter is None:
            return None
        at = batch.scored
        none = torch.full_like(at, NO_FILTER)
        above = torch.zeros_like(at) if batch.context is None else at - batch.context[at]
        number = none if batch.filter is None else batch.filter[at].long()
        return cls(batch.item, at, above, number, batch.filters)

    @property
    def unknown(self) -> Tensor:
        """[N] where nobody can say what was open: the log names a filter, and not its items."""
        return self.filter == UNKNOWN_FILTER

    def part(self, start: int, stop: int) -> OpenItems:
        """Positions start:stop."""
        part = slice(start, stop)
        return OpenItems(self.shown, self.at[part], self.above[part], self.filter[part], self.filters)

    def gathered(self, ranks: Ranks) -> OpenItems:
        """The positions of all ranks, in rank order."""
        shown, mine = ranks.all_gather(self.shown)
        at, above, number = (ranks.all_gather(x)[0] for x in (self.at + mine.start, self.above, self.filter))
        return OpenItems(shown, at, above, number, self.filters)

    def closed(self, first: int, stop: int) -> Tensor:
        """[N, stop - first]: which of these items could not be chosen."""
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


def _expanded(rows: Tensor, begins: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Each row `counts` times, beside the numbers from its `begins` on."""
    number = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), counts)
    step = torch.arange(len(number), device=rows.device) - (counts.cumsum(0) - counts)[number]
    return rows[number], begins[number] + step


def _mark(closed: Tensor, row: Tensor, column: Tensor, value: Tensor) -> None:
    inside = (column >= 0) & (column < closed.shape[1])
    closed[row[inside], column[inside]] = value[inside]


def masked(scores: Tensor, open_items: OpenItems, *, first: int = 0) -> Tensor:
    """Scores [N, columns] of the items from `first` on, with -inf at what is closed."""
    return scores.masked_fill(open_items.closed(first, first + scores.shape[1]), -torch.inf)


@torch.no_grad()
def log_sum_open(rows: Logits, open_items: OpenItems, *, first: int = 0) -> Tensor:
    """log Σ e^{row_a} over the open ones of these items, of which the first has the index `first`."""
    sums = [
        torch.logsumexp(masked(_formed(part_of(rows, start, stop)), open_items.part(start, stop), first=first), dim=1)
        for start, stop in blocks_of(rows.shape, open_items.at.device.type)
    ]
    return torch.cat(sums)


@torch.no_grad()
def log_prob_open(rows: Logits, items: Tensor, open_items: OpenItems) -> Tensor:
    """log π(a|x, open), a constant; NaN where nobody can say what was open."""
    logp = rows.at(items) - log_sum_open(rows, open_items)
    return logp.masked_fill(open_items.unknown, torch.nan)


def _formed(rows: Logits) -> Tensor:
    formed = rows.chunk(0, rows.shape[1])
    return formed.float() if formed.dtype.itemsize < 4 else formed
