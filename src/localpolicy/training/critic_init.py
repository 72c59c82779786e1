"""Initialisation of a critic's head, and the size of its steps.

The critic starts with every item at its mean return, as far as the log supports that (see `critic_quality`). Its
projection of μ̂'s hidden states starts at zero, so its first prediction is this plain model, and the network learns the
rest. If there is nothing to learn, as with a few clicks among thousands of impressions, its start is kept.

Adam's steps have the size of the learning rate whatever the loss is measured in: a step that is small for returns
around 1 wipes out everything for returns around 0.01. A critic's head is linear in what it predicts, so its steps are
multiplied by the standard deviation of the returns. Rewards times 100 then give 100 times the same critic.

On an interaction log neither is done. There an item's mean return is that of the visitors who answered, and does not
count those who did not: a critic that starts from it speaks where it should be silent (docs/results/demo.md).
"""

from __future__ import annotations

import torch

from localpolicy.data.batches import Windows
from localpolicy.data.store import Prepared
from localpolicy.measure.estimate import credible_means
from localpolicy.model.heads import ItemHead, ProjectedHead
from localpolicy.model.network import Network
from localpolicy.objectives.objective import Objective
from localpolicy.training.critic_quality import read_decisions
from localpolicy.types import Reads


def informed(objective: Objective, data: Prepared) -> Reads | None:
    """Fields of the critic to initialise, if the objective is a critic alone and the log shows unanswered items."""
    reads = objective.reads()
    return reads if not reads.policy and data.kind == "impressions" else None


def unit_of(critic: Reads, windows: Windows) -> float:
    """Standard deviation of the returns in these windows; 1 if all are equal."""
    spread = float(read_decisions(windows, gamma=critic.gamma).returns.std())
    return spread if spread > 0 else 1.0


@torch.no_grad()
def start_at_item_means(network: Network, critic: Reads, windows: Windows) -> None:
    """Set the biases of a critic's head to the items' mean returns in these windows."""
    assert critic.critic is not None
    log = read_decisions(windows, gamma=critic.gamma)
    means = torch.from_numpy(credible_means(log.item, log.returns, n_items=network.n_items, weight=log.weight))
    head = network.heads[critic.critic]
    assert isinstance(head, ItemHead | ProjectedHead)
    head.bias.copy_(means if network.shard is None else means[network.shard.own])
