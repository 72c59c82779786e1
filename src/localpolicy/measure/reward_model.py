"""r̂ for the direct and doubly robust estimates: the policy's own, or items' mean rewards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from localpolicy.catalogue.logits import Logits
from localpolicy.catalogue.sparse import SparseLogits
from localpolicy.data.store import CONTEXT, Prepared
from localpolicy.measure.score import Scorer
from localpolicy.model.policy import Policy
from localpolicy.types import Batch

PRIOR = 20.0  # decisions' worth of belief in the mean of all items


@dataclass(frozen=True)
class ItemMeans:
    """r̂(x, a) = (Σ r of a + 20 r̄) / (n_a + 20), whatever x.

    Fitted on training decisions and used on held-out ones, so the doubly robust estimate stays unbiased however poor.
    """

    mean: Tensor  # [V]

    @classmethod
    def fit(cls, data: Prepared) -> ItemMeans:
        """Mean rewards in the training split."""
        train = data["train"].arrays
        chosen = train["event"] != (data.events.index(CONTEXT) if CONTEXT in data.events else -1)
        item, reward = train["item"][chosen], train["reward"][chosen].astype(np.float64)
        counts = np.bincount(item, minlength=data.n_items)
        total = np.bincount(item, weights=reward, minlength=data.n_items)
        mean = (total + PRIOR * (reward.mean() if len(reward) else 0.0)) / (counts + PRIOR)
        return cls(torch.from_numpy(mean.astype(np.float32)))

    def logits(self, batch: Batch) -> Logits:
        """The same row for every position."""
        return SparseLogits.alike(self.mean, batch)


@dataclass(frozen=True)
class RewardHead:
    """r̂(x, a) of a policy that was trained with one."""

    policy: Policy

    def logits(self, batch: Batch) -> Logits:
        """The reward head's rows at the positions."""
        network = self.policy.network
        return network.head("reward").detach().logits(network.hidden_without_dropout(batch)[batch.scored])


def reward_model(policy: Scorer, data: Prepared) -> Scorer:
    """The policy's own r̂, or items' mean rewards."""
    if isinstance(policy, Policy) and "reward" in policy.network.heads:
        return RewardHead(policy)
    return ItemMeans.fit(data)
