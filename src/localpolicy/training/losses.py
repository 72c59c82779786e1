"""Loss of a batch as one module, which a step differentiates and DDP wraps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from localpolicy.logits import copies_in
from localpolicy.model.readout import NetworkReader
from localpolicy.objectives.objective import Objective
from localpolicy.training.mean import mean_losses, total
from localpolicy.types import Batch, Terms


class Losses(nn.Module):
    """Module batch -> readout -> terms -> Σ over losses of Σ_n loss_n / count."""

    def __init__(self, reader: NetworkReader, objective: Objective, *, half: torch.dtype | None = None) -> None:
        super().__init__()
        self.network = reader.network  # a submodule, so that DDP sees its parameters
        self.reader = reader
        self.objective = objective
        self.reads_in = half  # precision of the products; sums and weights keep theirs

    def forward(
        self, batch: Batch, step: int, coin: bool, count: float | Tensor
    ) -> tuple[Tensor, dict[str, Tensor], Terms]:
        """Compute the loss, its named means (none if the batch is filled up), and the terms per position."""
        given = None if self.reader.logging_policy is None else self.reader.logging_policy.network
        with reading_in(self.reads_in, self.network, given):
            readout = self.reader.read(batch, step=step, coin=coin)
        terms = self.objective.terms(readout)
        if batch.counted is not None:  # filler counts nowhere; each name's mean is in the log
            return total(terms.losses).where(batch.counted, 0.0).sum() / count, {}, terms
        means = mean_losses(terms.losses, count=count)
        return total(means), means, terms


@contextmanager
def reading_in(half: torch.dtype | None, *networks: Any) -> Iterator[None]:
    """Context manager: these networks give hidden states in half precision, which heads follow; weights keep theirs."""
    changed = [network for network in networks if network is not None]
    # Tied heads read the item embeddings several times, in parallel: cast them once, before.
    tables = [network.table for network in changed if len(network.towers) == 1 and network.config.tied]
    for network in changed:
        network.reads_in = half
    try:
        with copies_in(half, *tables):
            yield
    finally:
        for network in changed:
            network.reads_in = None
