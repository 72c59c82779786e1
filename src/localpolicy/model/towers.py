"""μ̂ and its critics as one network: local policy improvement in closed form, π ∝ μ̂ exp(s Q/β).

Each tower is a network of its own (item embeddings, backbone, heads), trained by its own loss alone: the policy's
weights would otherwise ruin the critic, and the two overfit at different times. Their hidden states side by side,
[h_μ; h_1; …; h_K], are one hidden state, in which log μ̂ and Q are both linear. So the improved policy is again one
linear head, and everything that reads heads (chunks, shards, the dial, export) needs to know nothing of towers.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from localpolicy.catalogue.logits import AnyHead
from localpolicy.catalogue.shards import Shard
from localpolicy.model.backbones import Layout
from localpolicy.model.network import ModelConfig, Network
from localpolicy.types import Batch


class Towers(nn.Module):
    """What a policy reads of its network, for several. `beta` is the trained policy's own, `slope` the critics' s."""

    def __init__(self, logging: Network, critics: Sequence[Network], *, beta: float, slope: float) -> None:
        super().__init__()
        assert critics and beta > 0, (len(critics), beta)
        self.logging = logging
        self.critics = nn.ModuleList(critics)
        self.beta, self.slope = beta, slope
        self.config, self.n_items, self.length, self.shard = (
            logging.config,
            logging.n_items,
            logging.length,
            logging.shard,
        )
        self.own_backbone = logging.own_backbone

    @property
    def towers(self) -> list[Network]:
        """All of them, μ̂'s first."""
        return [self.logging, *self.critics]

    @property
    def embedding(self) -> Tensor:
        """The logging tower's: where the network lies, and in which precision."""
        return self.logging.embedding

    @property
    def answer(self) -> Tensor | None:
        """The logging tower's."""
        return self.logging.answer

    @property
    def critic(self) -> str:
        """What the critics estimate: 'reward' or 'q'."""
        return next(iter(self.towers[1].heads))

    @property
    def heads(self) -> tuple[str, ...]:
        """The names `head` knows: 'tilt' is the calibrated critic s Q."""
        return ("policy", "logging", self.critic, "tilt")

    @property
    def reads_in(self) -> torch.dtype | None:
        """See `reading_in`."""
        return self.logging.reads_in

    @reads_in.setter
    def reads_in(self, half: torch.dtype | None) -> None:
        for tower in self.towers:
            tower.reads_in = half

    def encode(self, batch: Batch, layout: Layout) -> Tensor:
        """[h_μ; h_1; …; h_K] of every token, laid out as told: [M, (1 + K) D]."""
        return torch.cat([tower.encode(batch, layout) for tower in self.towers], dim=1)

    def hidden(self, batch: Batch) -> Tensor:
        """The same, without padding."""
        return torch.cat([tower.hidden(batch) for tower in self.towers], dim=1)

    @torch.no_grad()
    def hidden_without_dropout(self, batch: Batch) -> Tensor:
        """The same as a constant, read as it would be when serving."""
        return torch.cat([tower.hidden_without_dropout(batch) for tower in self.towers], dim=1)

    def head(self, name: str) -> AnyHead:
        """log μ̂ ('logging'), Q ('q' or 'reward', the critics' mean), s Q ('tilt'), log μ̂ + s Q/β ('policy')."""
        assert name in self.heads, name
        scale = {"logging": 0.0, self.critic: 1.0, "tilt": self.slope, "policy": self.slope / self.beta}[name]
        base = self.logging.head("policy")
        if name not in ("logging", "policy"):
            base = base.replaced(torch.zeros_like(base.weight), torch.zeros(len(base.weight)).to(base.weight))
        share = scale / len(self.critics)
        values = [tower.head(self.critic) for tower in self.towers[1:]]
        assert base.bias is not None
        bias = base.bias + share * sum(one.bias for one in values if one.bias is not None)
        return base.replaced(torch.cat([base.weight, *(share * one.weight for one in values)], dim=1), bias)

    @property
    def split(self) -> frozenset[str]:
        """Names of the parameters whose rows are split over ranks."""
        named = {"logging.": self.logging, **{f"critics.{k}.": one for k, one in enumerate(self.towers[1:])}}
        return frozenset(f"{prefix}{name}" for prefix, tower in named.items() for name in tower.split)

    @property
    def n_parameters(self) -> int:
        """How many parameters there are, on all ranks together."""
        return sum(tower.n_parameters for tower in self.towers)

    def describe(self) -> dict[str, Any]:
        """What is needed to build the same towers again."""
        return {
            **self.logging.describe(),
            "critics": [tower.describe() for tower in self.towers[1:]],
            "beta": self.beta,
            "slope": self.slope,
        }


def build(made: dict[str, Any], *, backbone: nn.Module | None = None, shard: Shard | None = None) -> Network | Towers:
    """The network that `describe` described, its weights not yet filled in."""
    network = Network(
        ModelConfig.parse(made["model"]),
        items=made["items"],
        events=made["events"],
        length=made["length"],
        heads=tuple(made["heads"]),
        backbone=backbone,
        shard=shard,
    )
    if "critics" not in made:
        return network
    critics = [build(one, backbone=copy.deepcopy(backbone), shard=shard) for one in made["critics"]]
    assert all(isinstance(one, Network) for one in critics)
    return Towers(network, critics, beta=made["beta"], slope=made["slope"])  # type: ignore[arg-type]
