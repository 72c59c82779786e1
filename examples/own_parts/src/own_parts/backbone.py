"""A backbone: embedded histories in, hidden states out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from localpolicy.model.backbones import Layout


class RunningMean(nn.Module):
    """h_t = tanh(W mean(e_1 ... e_t)): what a history holds, whatever its order."""

    def __init__(self, width: int, **unused: object) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width)

    def forward(self, embedded: Tensor, layout: Layout) -> Tensor:
        block = layout.pad(embedded)  # [B, T, D]
        seen = torch.arange(1, layout.columns + 1, device=embedded.device)[None, :, None]
        return torch.tanh(self.mix(layout.flatten(block.cumsum(1) / seen)))
