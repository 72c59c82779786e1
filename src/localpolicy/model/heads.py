"""Heads: one number per item of the catalogue, read from a hidden state, plus a number for the whole context."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor, nn

from localpolicy.catalogue import fused
from localpolicy.catalogue.shards import Shard, ShardedHead
from localpolicy.logits import AnyHead, Head, Logits
from localpolicy.model.backbones.init import normal

ITEM_HEADS = ("policy", "logging", "q", "q_a", "q_b", "reward")  # one number per item
CRITICS = ("q", "q_a", "q_b", "reward")
HEADS = (*ITEM_HEADS, "value")  # and one per context
SOFTMAX_HEADS = {"policy", "logging"}


class HeadScores:
    """Scores of a head: logits plus v · h + c, a number that all items of a context share."""

    def __init__(self, logits: Logits, hidden: Tensor, context: Tensor | None = None) -> None:
        self.logits = logits
        self.hidden = hidden
        self.context = context  # v and c: [D + 1]

    @cached_property
    def shift(self) -> Tensor | None:
        """v · h + c of each position [N], None without it; a softmax and an argmax do not depend on it."""
        if self.context is None:
            return None
        return torch.mv(self.hidden.to(self.context.dtype), self.context[:-1]) + self.context[-1]

    def at(self, items: Tensor) -> Tensor:
        """Score of item items[n] at each position n: [N]."""
        return self.shifted(fused.gather_logits(self.logits, items))

    def shifted(self, numbers: Tensor) -> Tensor:
        """Turn a mean or a maximum over the logits into one over the scores."""
        return numbers if self.shift is None else numbers + self.shift


class ItemHead(nn.Module):
    """Weights [V, D] and biases [V] of a head, or this rank's rows of them."""

    def __init__(
        self,
        items: int,
        width: int,
        *,
        weight: nn.Parameter | None = None,
        zero: bool = False,
        shard: Shard | None = None,
    ) -> None:
        super().__init__()
        self.shard = shard
        # Critics start at zero: their first predictions weigh nothing, instead of adding noise to exp(A/β).
        made = torch.zeros(items, width) if zero else normal(items, width, scale=0.02)
        self.weight = nn.Parameter(own_rows(made, shard)) if weight is None else weight
        self.bias = nn.Parameter(torch.zeros(len(self.weight)))
        self.features: nn.Parameter | None = None  # [F], from which biases come too


class ProjectedHead(nn.Module):
    """e_a · P h + b_a + v · h + c: the item embeddings e, read through a projection P of the hidden state.

    v · h + c is the same for all items of a context: a critic need not learn its knowledge of the context item by item,
    and a rarely seen item starts as the context's average. A softmax does not depend on it.
    """

    def __init__(self, items: int, width: int, *, zero: bool = False, shard: Shard | None = None) -> None:
        super().__init__()
        self.shard = shard
        # Drawn even if it starts at zero, so that later weights do not depend on how it starts.
        drawn = normal(width, width, scale=0.02)
        if not drawn.is_meta:
            drawn.diagonal().add_(1.0)
        self.projection = nn.Parameter(torch.zeros(width, width) if zero else drawn)
        self.bias = nn.Parameter(own_rows(torch.zeros(items), shard))
        self.context = nn.Parameter(torch.zeros(width + 1))
        self.features: nn.Parameter | None = None

    def numbers(self, embedding: Tensor, bias: Tensor) -> AnyHead:
        """The head as weights and biases over the catalogue, for the catalogue layer."""
        return as_head(embedding @ self.projection + self.context[:-1], bias + self.context[-1], self.shard)


def as_head(weight: Tensor, bias: Tensor, shard: Shard | None) -> AnyHead:
    return Head(weight, bias) if shard is None else ShardedHead(weight, bias, shard)


def own_rows(table: Tensor, shard: Shard | None) -> Tensor:
    """This rank's rows of a table. Tables are drawn whole and cut, so that the start does not depend on the cut."""
    return table if shard is None else table[shard.own].clone()
