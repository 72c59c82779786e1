"""μ̂ and its critics as one network: local policy improvement in closed form, π ∝ μ̂ min(exp(s Â/β), c).

A tower with a policy of its own is not a critic but the end of a dial (`lpi_observed` with `form=power`): its advantage
is Â = log π_end - log μ̂, so that π ∝ μ̂^(1 - 1/β) π_end^(1/β).

Each tower is a network of its own (item embeddings, backbone, heads), trained by its own loss alone: the policy's
weights would otherwise ruin the critic, and the two overfit at different times. Their hidden states side by side,
[h_μ; h_1; …; h_K], are one hidden state, in which log μ̂ and Q are both linear. So the rows of the improved policy are
those of two heads put together (see `catalogue.capped`), formed in chunks or over shards like any others.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from localpolicy.catalogue import backend, sharded
from localpolicy.catalogue.capped import CappedLogits
from localpolicy.catalogue.shards import Shard
from localpolicy.logits import AnyHead, Logits
from localpolicy.model.backbones import Layout
from localpolicy.model.config import ModelConfig
from localpolicy.model.network import Network
from localpolicy.types import Batch


class Towers(nn.Module):
    """A logging tower and critic towers, with the interface of a single `Network`.

    `beta` is the trained policy's own, `slope` the critics' s, `cap` the largest factor c (None: none).
    """

    def __init__(
        self, logging: Network, critics: Sequence[Network], *, beta: float, slope: float, cap: float | None = None
    ) -> None:
        super().__init__()
        assert critics and beta > 0 and (cap is None or cap > 1), (len(critics), beta, cap)
        self.logging = logging
        self.critics = nn.ModuleList(critics)
        self.beta, self.slope, self.cap = beta, slope, cap
        self.config, self.n_items, self.length, self.shard = (
            logging.config,
            logging.n_items,
            logging.length,
            logging.shard,
        )
        self.own_backbone = logging.own_backbone

    @property
    def towers(self) -> list[Network]:
        """Networks of the closed form, that of μ̂ first."""
        return [self.logging, *self.critics]

    @property
    def embedding(self) -> Tensor:
        """Embedding of the logging tower, which gives the device and the precision."""
        return self.logging.embedding

    @property
    def answer(self) -> Tensor | None:
        """Event embeddings of the logging tower, or None."""
        return self.logging.answer

    @property
    def critic(self) -> str:
        """Quantity that the critics estimate: 'reward' or 'q'; 'policy' of a tower that is the end of a dial."""
        heads = self.towers[1].heads
        return "policy" if "policy" in heads else next(iter(heads))

    @property
    def ends(self) -> bool:
        """Whether the second tower is the end of a dial, not a critic."""
        return self.critic == "policy"

    @property
    def heads(self) -> tuple[str, ...]:
        """Names that `head` accepts: 'tilt' is the calibrated critic s Q."""
        return ("logging", self.critic, "tilt")

    @property
    def reads_in(self) -> torch.dtype | None:
        """Type in which heads read hidden states: see `training.losses.reading_in`."""
        return self.logging.reads_in

    @reads_in.setter
    def reads_in(self, half: torch.dtype | None) -> None:
        for tower in self.towers:
            tower.reads_in = half

    def encode(self, batch: Batch, layout: Layout) -> Tensor:
        """[h_μ; h_1; …; h_K] of every token under `layout`: [M, (1 + K) D]."""
        return torch.cat([tower.encode(batch, layout) for tower in self.towers], dim=1)

    def hidden(self, batch: Batch) -> Tensor:
        """[h_μ; h_1; …; h_K] of every token, without padding."""
        return torch.cat([tower.hidden(batch) for tower in self.towers], dim=1)

    @torch.no_grad()
    def hidden_without_dropout(self, batch: Batch) -> Tensor:
        """[h_μ; h_1; …; h_K] of every token as in serving: without dropout and gradients."""
        return torch.cat([tower.hidden_without_dropout(batch) for tower in self.towers], dim=1)

    def head(self, name: str) -> AnyHead:
        """Head over the whole hidden state: log μ̂ ('logging'), Q ('q' or 'reward', the critics' mean), s Q ('tilt')."""
        assert name in self.heads, name
        base, values = self.parts()
        first, second = torch.zeros_like(base.weight), torch.zeros_like(values.weight)
        if name == "logging":
            return base.replaced(torch.cat([base.weight, second], dim=1), base.bias)
        scale = self.slope if name == "tilt" else 1.0
        assert values.bias is not None
        bias = scale * values.bias
        if self.ends and name == "tilt":
            assert base.bias is not None
            first, bias = -scale * base.weight, bias - scale * base.bias
        return base.replaced(torch.cat([first, scale * values.weight], dim=1), bias)

    def parts(self) -> tuple[AnyHead, AnyHead]:
        """Heads of log μ̂ over h_μ, and of Q over [h_1; …; h_K]."""
        base, values = self.logging.head("policy"), [tower.head(self.critic) for tower in self.towers[1:]]
        if len(values) == 1:
            return base, values[0]
        biases = [head.bias for head in values if head.bias is not None]
        weight = torch.cat([head.weight for head in values], dim=1) / len(values)
        return base, base.replaced(weight, torch.stack(biases).mean(0))

    @property
    def dial(self) -> str:
        """Name of the head that tilts the policy: the calibrated critic."""
        return "tilt"

    @torch.no_grad()
    def policy(
        self,
        hidden: Tensor,
        *,
        beta: float | None = None,
        logging: str | None = None,
        parts: tuple[AnyHead, AnyHead | None] | None = None,
    ) -> Logits:
        """log μ̂ + min(s Â/β, log c), or (1 - 1/β) log μ̂ + log π_end/β, at the trained β unless one is given."""
        scale = self.slope / (self.beta if beta is None else beta)
        base, values = self.parts() if parts is None else parts
        assert values is not None
        base, values = base.detach(), values.detach()
        if self.cap is None:  # one linear head
            assert base.bias is not None and values.bias is not None
            rest = 1 - scale if self.ends else 1.0
            weight = torch.cat([rest * base.weight, scale * values.weight], dim=1)
            return base.replaced(weight, rest * base.bias + scale * values.bias).logits(hidden)
        width = base.weight.shape[1]
        rows, q = base.logits(hidden[:, :width]), values.logits(hidden[:, width:])
        baseline = (backend() if self.shard is None else sharded).mean(rows, q)
        return CappedLogits(rows, q, scale, math.log(self.cap) + scale * baseline)  # type: ignore[arg-type]

    @property
    def split(self) -> frozenset[str]:
        """Names of the parameters whose rows are split over ranks."""
        named = {"logging.": self.logging, **{f"critics.{k}.": tower for k, tower in enumerate(self.towers[1:])}}
        return frozenset(f"{prefix}{name}" for prefix, tower in named.items() for name in tower.split)

    @property
    def n_parameters(self) -> int:
        """Number of parameters, on all ranks together."""
        return sum(tower.n_parameters for tower in self.towers)

    def describe(self) -> dict[str, Any]:
        """Sizes and settings that `build` needs to make these towers again."""
        return {
            **self.logging.describe(),
            "critics": [tower.describe() for tower in self.towers[1:]],
            "beta": self.beta,
            "slope": self.slope,
            "cap": self.cap,
        }


def build(made: dict[str, Any], *, backbone: nn.Module | None = None, shard: Shard | None = None) -> Network | Towers:
    """The network of a description from `describe`, with untrained weights."""
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
    critics = [build(critic, backbone=copy.deepcopy(backbone), shard=shard) for critic in made["critics"]]
    assert all(isinstance(critic, Network) for critic in critics)
    return Towers(network, critics, beta=made["beta"], slope=made["slope"], cap=made["cap"])  # type: ignore[arg-type]
