"""Log-softmax at the taken item with sums over a sample of the catalogue: for training wide catalogues without a GPU.

Every step draws items S, each with its own chance π_a, and weighs them by 1/π_a (Horvitz and Thompson 1952):

    Z(x) = e^{row_y} + Σ_{a≠y} e^{row_a}   is estimated by   e^{row_y} + Σ_{a∈S, a≠y} e^{row_a} / π_a

The taken item y is always in the sum, and has the weight 1. The estimate of Z is unbiased whatever the chances are, so
no item's logit is pushed up or down by how often it is drawn; its logarithm is too small by about half of the
estimate's relative variance. Chances are in proportion to √(count + 1), up to 1: the most popular items are in every
sample. All positions of a step share one sample.

For training alone: validation, the choice of epochs and of β, and all measurements sum over the whole catalogue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from localpolicy.catalogue import chunked, softmax
from localpolicy.catalogue.chunks import ChunkedSoftmax
from localpolicy.catalogue.open_items import ClosedPairs
from localpolicy.logits import Head, LinearLogits


class Drawn(NamedTuple):
    """Items drawn for one step, with their chances."""

    items: Tensor  # [S] in rising order
    log_chance: Tensor  # [S]
    column: Tensor  # [V]: index of each item in `items`, -1 if it was not drawn

    def part(self, rows: LinearLogits, *, weighted: bool = True) -> LinearLogits:
        """Logits of the drawn items, minus the logarithm of their chance if `weighted`."""
        weight, bias = rows.head
        bias = None if bias is None else bias.index_select(0, self.items)
        if weighted:
            shift = self.log_chance.to(rows.hidden.dtype)
            bias = -shift if bias is None else bias - shift
        return LinearLogits(rows.hidden, Head(weight.index_select(0, self.items), bias))


@dataclass(frozen=True)
class Sampler:
    """Chances that sum to the sample's size, and softmax sums estimated from a sample."""

    chance: Tensor  # [V] float64

    @classmethod
    def by_counts(cls, counts: Tensor, size: int) -> Sampler:
        """Sampler whose chances are in proportion to √(count + 1), at most 1, and sum to `size`."""
        share = (counts.double() + 1).sqrt()
        chance = torch.zeros_like(share)
        free = torch.ones_like(share, dtype=torch.bool)
        while True:
            left = min(size, len(share)) - int((~free).sum())
            chance = torch.where(free, left * share / share[free].sum().clamp(min=1e-300), 1.0)
            if not bool((over := free & (chance >= 1)).any()):
                return cls(chance.clamp(max=1.0))
            free &= ~over

    def draw(self) -> Drawn:
        """Draw a systematic sample: item a is in it if a point u + k, k = 0, 1, …, falls in its stretch [π_a long]."""
        ends = self.chance.cumsum(0)
        points = torch.arange(round(float(ends[-1])), dtype=ends.dtype) + torch.rand((), dtype=ends.dtype)
        items = torch.searchsorted(ends, points, right=True).clamp_(max=len(ends) - 1).unique()
        column = torch.full((len(ends),), -1).index_put_((items,), torch.arange(len(items)))
        return Drawn(items, self.chance[items].log(), column)

    def log_prob(self, rows: LinearLogits, items: Tensor) -> Tensor:
        """row_y - log of the estimated Z, with gradients."""
        drawn, own = self.draw(), rows.at(items)
        part, column = drawn.part(rows), drawn.column[items]
        here = (column >= 0).nonzero().squeeze(1)
        here = here[column[here].argsort(stable=True)]
        closed = ClosedPairs(here, column[here], None, len(items))
        first = torch.zeros_like(items)  # any column gives the sum: row_first - log p(first)
        others = part.at(first) - softmax.log_prob(*part, first, ChunkedSoftmax(closed))
        return own - torch.logaddexp(own, others)

    @torch.no_grad()
    def mean(self, rows: LinearLogits, values: LinearLogits) -> Tensor:
        """Σ_a softmax(row)_a value_a by the same weights on both sides of the quotient, as a constant."""
        drawn = self.draw()
        return chunked.mean(drawn.part(rows), drawn.part(values, weighted=False))
