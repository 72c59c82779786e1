"""A backbone of your own: any module that turns histories into hidden states.

    python examples/own_backbone.py

It gets the embedded tokens of a batch, flat and without padding, and the layout that says where each one stands.
"""

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from localpolicy import Prepared, configure, simulate, train
from localpolicy.model.backbones import Layout


class RunningMean(nn.Module):
    """h_t = tanh(W mean(e_1 ... e_t)): what a history holds, whatever its order."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width)

    def forward(self, embedded: Tensor, layout: Layout) -> Tensor:
        block = layout.pad(embedded)  # [B, T, D]
        seen = torch.arange(1, layout.columns + 1)[None, :, None]
        return torch.tanh(self.mix(layout.flatten(block.cumsum(1) / seen)))


with tempfile.TemporaryDirectory() as folder:
    here = Path(folder)
    simulate("bandit", here / "data", sequences=2_000, prepared=True)
    settings = configure(changes=["objective.name=lpi_cb", "train.epochs=2", "model.width=16"])
    run = train(Prepared(here / "data"), out=here / "run", config=settings, backbone=RunningMean(16))
    policy = run.policy(backbone=RunningMean(16))
    print(policy.recommend([[1, 2, 3]], 5, events=[["context"] * 3]).items[0])
