"""Definitions of the statistics, as in a textbook: whole rows are formed. Oracle of all other backends."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from localpolicy.catalogue.open_items import OpenItems
from localpolicy.catalogue.ties import tie_bounds
from localpolicy.logits import Logits


def _formed(rows: Logits, open_items: OpenItems | None = None) -> Tensor:
    formed = rows.chunk(0, rows.shape[1])
    formed = formed.float() if formed.dtype.itemsize < 4 else formed
    return formed if open_items is None else formed.masked_fill(open_items.closed(0, rows.shape[1]), -torch.inf)


def log_prob(rows: Logits, items: Tensor, open_items: OpenItems | None = None) -> Tensor:
    """log softmax(row)[item], among the open items if these are given."""
    return torch.log_softmax(_formed(rows, open_items), dim=1).gather(1, items[:, None]).squeeze(1)


def log_prob_and_mean(
    rows: Logits, items: Tensor, values: Logits, open_items: OpenItems | None = None
) -> tuple[Tensor, Tensor]:
    """log softmax(row)[item], and Σ_a softmax(row)_a value_a as a constant."""
    return log_prob(rows, items, open_items), mean(rows, values, open_items)


@torch.no_grad()
def logsumexp(rows: Logits) -> Tensor:
    """log Σ_a exp(row_a)."""
    return torch.logsumexp(_formed(rows), dim=1)


@torch.no_grad()
def mean(rows: Logits, values: Logits, open_items: OpenItems | None = None) -> Tensor:
    """Σ_a softmax(row)_a value_a, among the open items if these are given."""
    return (torch.softmax(_formed(rows, open_items), dim=1) * _formed(values)).sum(1)


@torch.no_grad()
def maximum(rows: Logits) -> tuple[Tensor, Tensor]:
    """max_a row_a, and the first item that has it."""
    formed = _formed(rows)
    return formed.amax(1), formed.argmax(1)


@torch.no_grad()
def rank(rows: Logits, items: Tensor) -> Tensor:
    """1 + items strictly above + half of the others tied."""
    formed = _formed(rows)
    low, high = tie_bounds(rows, formed.gather(1, items[:, None]))
    above = (formed > high).sum(1)
    tied = (formed >= low).sum(1) - above - 1
    return 1 + above + tied / 2


@torch.no_grad()
def divergence(p: Logits, q: Logits) -> tuple[Tensor, Tensor]:
    """JS(p, q) = ½ KL(p‖m) + ½ KL(q‖m), m = (p + q)/2; and KL(p‖q)."""
    log_p = torch.log_softmax(_formed(p), dim=1)
    log_q = torch.log_softmax(_formed(q), dim=1)
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)

    def kl(first: Tensor, second: Tensor) -> Tensor:
        return (first.exp() * (first - second)).sum(1)

    return (kl(log_p, log_m) + kl(log_q, log_m)) / 2, kl(log_p, log_q)


@torch.no_grad()
def entropy(rows: Logits) -> Tensor:
    """-Σ_a p_a log p_a."""
    log_p = torch.log_softmax(_formed(rows), dim=1)
    return -(log_p.exp() * log_p).sum(1)


@torch.no_grad()
def top(rows: Logits, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values and their items, in falling order."""
    return _formed(rows).topk(min(k, rows.shape[1]), dim=1)
