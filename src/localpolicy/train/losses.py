"""From a batch to a loss, as one module: what a step differentiates, and what DDP wraps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from localpolicy.model.network import reading_in
from localpolicy.model.readout import Reader
from localpolicy.objectives.config import ObjectiveConfig
from localpolicy.objectives.objective import Formula
from localpolicy.train.mean import mean_losses, total
from localpolicy.types import Batch, Terms


class Losses(nn.Module):
    """batch -> readout -> terms -> Σ over losses of Σ_n loss_n / count."""

    def __init__(
        self, reader: Reader, formula: Formula, config: ObjectiveConfig, *, half: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.network = reader.network  # a submodule, so that DDP sees its parameters
        self.reader = reader
        self.formula = formula
        self.config = config
        self.reads_in = half  # precision of the products; sums and weights keep theirs

    def forward(self, batch: Batch, step: int, coin: bool, count: float) -> tuple[Tensor, dict[str, Tensor], Terms]:
        """The loss, its named means, and the terms per position."""
        frozen = None if self.reader.frozen is None else self.reader.frozen.network
        with reading_in(self.reads_in, self.network, frozen):
            readout = self.reader.read(batch, step=step, coin=coin)
        terms = self.formula(readout, self.config)
        means = mean_losses(terms.losses, count=count)
        return total(means), means, terms
