"""Gradients if ranks split the catalogue: those of tables are whole, those of copied parameters are summed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from localpolicy.model.network import Network
from localpolicy.runtime.ranks import Ranks


def sum_copies(network: Network, ranks: Ranks) -> None:
    """Sum over ranks the gradients of parameters that are not split: backbone, start, event embeddings, value head."""
    grads = [grad for _, grad in _gradients(network, split=False)]
    if grads:
        flat = ranks.sum_(torch.cat([grad.flatten() for grad in grads]))
        for grad, part in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(part.view_as(grad))


def clip(network: Network, most: float, ranks: Ranks) -> None:
    """Scale all gradients so that their norm, over all ranks, is at most `most`."""
    if network.shard is None:
        nn.utils.clip_grad_norm_(network.parameters(), most)
        return
    tables = sum(float(grad.double().square().sum()) for _, grad in _gradients(network, split=True))
    copies = sum(float(grad.double().square().sum()) for _, grad in _gradients(network, split=False))
    (everywhere,) = ranks.summed(tables)
    norm = torch.tensor((everywhere + copies) ** 0.5, dtype=torch.float32)
    nn.utils.clip_grads_with_norm_(network.parameters(), most, norm)


def _gradients(network: Network, *, split: bool) -> list[tuple[str, Tensor]]:
    names = network.split
    return [
        (name, parameter.grad)
        for name, parameter in network.named_parameters()
        if parameter.grad is not None and (name in names) == split
    ]
