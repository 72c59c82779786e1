"""The network: item embeddings, a backbone, and one head per thing to be known about an item."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from localpolicy import plugins
from localpolicy.catalogue.logits import AnyHead, Logits, copies_in, formed_beside, gradients_wait, take, tilted
from localpolicy.catalogue.shards import Shard, lookup
from localpolicy.errors import ConfigError
from localpolicy.model.backbones import Layout, backbone_called
from localpolicy.model.heads import (
    CRITICS,
    HEADS,
    ITEM_HEADS,
    SOFTMAX_HEADS,
    HeadScores,
    ItemHead,
    ProjectedHead,
    as_head,
    own_rows,
)
from localpolicy.model.item_rows import ABSENT, Features, Formed, ItemInputs
from localpolicy.settings import AUTO, OrAuto, Settings
from localpolicy.types import START, Batch

# Settings that say what is read of the item table, and how: no weight's shape depends on them.
OF_ITEM_TABLE = ("features", "shuffle_features", "id_dropout", "new_items")
FEATURES = "features."  # what a saved network has beside that of the same without features


class ModelConfig(Settings):
    """The network's shape."""

    backbone: str = Field(
        "sasrec",
        description="what turns histories into states: sasrec, gated, gru, convolution, or package.module:Name",
    )
    width: OrAuto[int] = Field(AUTO, ge=1, le=65_536, description="size of embeddings and hidden states; auto: 128")
    blocks: OrAuto[int] = Field(
        AUTO, ge=1, le=1024, description="layers of the backbone; auto: 2 where a mean sequence has 50 actions, else 1"
    )
    heads: int = Field(1, ge=1, le=1024, description="attention heads (sasrec, gated)")
    dropout: OrAuto[float] = Field(
        AUTO, ge=0, lt=1, description="share of numbers dropped in training; auto: from 0.25 where the log has 30 "
        "events an item or fewer to 0.1 where it has 300"
    )  # fmt: skip
    tied: bool = Field(
        True, description="heads share the item embeddings: the policy's as they are, the others' through a projection"
    )
    event_embeddings: bool | None = Field(
        None, description="feed each past item's event to the backbone (default: where events differ in reward, so "
        "that they say what came of it)"
    )  # fmt: skip
    features: OrAuto[list[str]] = Field(
        AUTO, description="columns of the item table that an item's row is made of, beside what is its own; auto: "
        "those that tell something of what follows what, of how often items are taken or of what they earn"
    )  # fmt: skip
    shuffle_features: int | None = Field(
        None, ge=0, description="a seed by which rows of the item table are dealt out anew among the items: a control "
        "for what the same columns bring where they tell nothing; null: as they are"
    )  # fmt: skip
    id_dropout: float = Field(
        0.1, ge=0, lt=1, description="share of the items that are their features alone in a step, where there are any"
    )
    new_items: float = Field(
        1.0, gt=0, description="most that items without events may hold together in any context, relative to the "
        "others, where an item table says what they are like; a bound that holds in served propensities too"
    )  # fmt: skip

    def settled(self) -> ModelConfig:
        """Without `auto`, where no log decides."""
        plain = {"width": 128, "blocks": 1, "dropout": 0.1, "features": []}
        return self.model_copy(update={name: value for name, value in plain.items() if getattr(self, name) == AUTO})


class _Begun(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, begins: Tensor, start: Tensor, embedded: Tensor) -> Tensor:
        ctx.save_for_backward(begins)
        ctx.start = start
        return torch.where(begins[:, None], start, embedded)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (begins,) = ctx.saved_tensors

        def for_start() -> tuple[Tensor]:
            return (torch.where(begins[:, None], upstream, 0.0).sum(0),)

        start = formed_beside((ctx.start,), for_start, reads=(upstream, begins))
        return None, *start, torch.where(begins[:, None], 0.0, upstream)


def begun(begins: Tensor, start: Tensor, embedded: Tensor) -> Tensor:
    """The start token's embedding where a sequence begins; its gradient, a sum over all tokens, may wait."""
    if gradients_wait(start):
        return _Begun.apply(begins, start, embedded)  # type: ignore[no-untyped-call, no-any-return]
    return torch.where(begins[:, None], start, embedded)


class Network(nn.Module):
    """Embeddings, backbone and heads. `backbone` replaces the configured one by any module of the same protocol."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        items: int,
        events: int,
        length: int,
        heads: tuple[str, ...] = ("policy",),
        backbone: nn.Module | None = None,
        shard: Shard | None = None,
        features: ItemInputs | None = None,
    ) -> None:
        super().__init__()
        config = config.settled()
        if config.backbone in ("sasrec", "gated") and config.width % config.heads:
            raise ConfigError(f"model.width ({config.width}) must be a multiple of model.heads ({config.heads}).")
        self.config = config
        self.reads_in: torch.dtype | None = None  # see `reading_in`
        self.n_items = items
        self.length = length
        self.shard = shard  # where ranks split the catalogue: of every table over items this one has its rows alone
        scale = config.width**-0.5
        self.embedding = nn.Parameter(own_rows(torch.randn(items, config.width) * scale, shard))
        self.start = nn.Parameter(torch.randn(config.width) * scale)
        # Event embeddings start at zero: unused events change nothing, and training finds what they mean.
        self.answer = nn.Parameter(torch.zeros(events, config.width)) if config.event_embeddings else None
        self.own_backbone = None if backbone is None else plugins.name_of(backbone)
        self.backbone = backbone or backbone_called(config.backbone)(
            width=config.width,
            length=length,
            blocks=config.blocks,
            heads=config.heads,
            dropout=config.dropout,
        )
        self.heads = nn.ModuleDict()
        for name in heads:
            assert name in HEADS, name
            if name == "value":
                self.heads[name] = nn.Linear(config.width, 1)
            else:
                self.heads[name] = self._item_head(name)
        self.features: Features | None = None
        self._formed: Formed | None = None
        if features is not None:
            assert config.tied, "refused before"
            self.features = Features(features, config.width, shard=shard)
            for name, head in self.heads.items():
                if name in ITEM_HEADS:
                    head.features = nn.Parameter(torch.zeros(features.encoded.n_features))

    # ------------------------------------------------------------------ items' rows (see `item_rows`)

    @property
    def table(self) -> Tensor:
        """The items' rows [V, D]: for input, and for tied heads."""
        if self.features is None:
            return self.embedding
        return self._served_rows() if self._formed is None else self._formed.rows

    def _bias(self, name: str) -> Tensor:
        """A head's biases [V]."""
        if self.features is None:
            return self.heads[name].bias  # type: ignore[return-value]
        if self._formed is not None and name in self._formed.biases:
            return self._formed.biases[name]
        return self._served_biases(name)

    @torch.no_grad()
    def _served_rows(self) -> Tensor:
        assert self.features is not None
        return self.features.served(self.features.rows(self.embedding, self.features.known))

    def _biases(self, name: str, kept: Tensor) -> Tensor:
        """X w + b where it is kept."""
        head = self.heads[name]
        assert self.features is not None
        return self.features.rows(head.bias[:, None], kept, head.features[:, None]).squeeze(1)  # type: ignore[index]

    @torch.no_grad()
    def _served_biases(self, name: str) -> Tensor:
        features = self.features
        assert features is not None
        bias = features.served(self._biases(name, features.known)[:, None]).squeeze(1)
        if features.new is not None and name in SOFTMAX_HEADS:
            bias[features.new_items] += torch.minimum(features.new_ceiling, features.rise)
        return bias

    def form(self, *, leaf: bool) -> None:
        """Form the rows of a training step. As a leaf their gradient waits for `pull_back`, else it is autograd's."""
        if self.features is None:
            return
        kept = self.features.kept(self.config.id_dropout)
        rows = self.features.rows(self.embedding, kept)
        known = self.features.known
        biases = {
            name: self._biases(name, kept if name in SOFTMAX_HEADS else known)
            for name in self.heads
            if name in ITEM_HEADS
        }
        if self.features.new is not None:
            for name in biases.keys() & SOFTMAX_HEADS:
                biases[name] = biases[name] + ABSENT * ~self.features.known
        self._formed = Formed.of(rows, biases, leaf=leaf)

    def pull_back(self) -> None:
        """Carry the rows' gradients to W and δ, and forget the rows."""
        if self._formed is not None:
            self._formed.pull_back()
            self._formed = None

    @contextmanager
    def formed(self) -> Iterator[None]:
        """Within the block the rows are those of an evaluation, and are formed once."""
        if self.features is not None:
            self._formed = Formed(self._served_rows(), {})
        try:
            yield
        finally:
            self._formed = None

    def plain_state(self) -> dict[str, Tensor]:
        """The state of the same network without features: its tables are what items' rows come to; W beside them."""
        state = dict(self.state_dict())
        if self.features is None:
            return state
        rows = self._served_rows()
        for name in state:
            if name == "embedding" or (name.endswith(".weight") and name in self.tables):
                state[name] = rows
        for name in self.heads:
            if name in ITEM_HEADS:
                state[f"heads.{name}.bias"] = self._served_biases(name)
                state[f"{FEATURES}{name}"] = state.pop(f"heads.{name}.features")
        state |= {f"{FEATURES}keys": self.features.keys, f"{FEATURES}rise": self.features.rise.reshape(1)}
        return state

    @torch.no_grad()
    def take_features(self, saved: Mapping[str, Tensor]) -> None:
        """Begin with what a saved network learnt of features (see `plain_state`); items' rows stay what they are.

        Features are matched by what they mean: one that it did not know begins at zero.
        """
        if self.features is None:
            return
        keys, known = (
            self.features.keys.tolist(),
            {key: row for row, key in enumerate(saved[f"{FEATURES}keys"].tolist())},
        )
        own = [row for row, key in enumerate(keys) if key in known]
        theirs = [known[keys[row]] for row in own]
        pairs: dict[str, tuple[Tensor, Tensor]] = {"weight": (self.features.weight, self.embedding)}
        pairs |= {name: (head.features, head.bias) for name, head in self.heads.items() if name in ITEM_HEADS}  # type: ignore[misc]
        for name, (target, table) in pairs.items():
            if f"{FEATURES}{name}" not in saved:
                continue
            target[own] = saved[f"{FEATURES}{name}"].to(target)[theirs]
            said = self.features.product(target if target.ndim == 2 else target[:, None])
            table -= said if target.ndim == 2 else said.squeeze(1)

    # ------------------------------------------------------------------ heads and contexts

    def _item_head(self, name: str) -> nn.Module:
        tied, zero = self.config.tied, name in CRITICS
        if tied and name != "policy":
            return ProjectedHead(self.n_items, self.config.width, zero=zero, shard=self.shard)
        weight = self.embedding if tied else None
        return ItemHead(self.n_items, self.config.width, weight=weight, zero=zero, shard=self.shard)

    def embed(self, batch: Batch) -> Tensor:
        """Tokens [M, D]: the item before each step, and what came of it."""
        begins = batch.previous_item == START
        before = batch.previous_item.clamp(min=0)
        shard = self.shard
        table = self.table
        embedded = take(table, before) if shard is None else lookup(table, before, shard)
        if self.answer is not None:
            embedded = embedded + take(self.answer, batch.previous_event)
        return begun(begins, self.start, embedded)

    def encode(self, batch: Batch, layout: Layout) -> Tensor:
        """The context of every token, laid out as told: [M, D]."""
        return self.backbone(self.embed(batch), layout)  # type: ignore[no-any-return]

    def hidden(self, batch: Batch) -> Tensor:
        """The context of every token, [M, D]; the places of one list share the context of the first."""
        hidden = self.encode(batch, Layout.of(batch))
        # The backbone keeps its precision: at these widths casts cost more than half-precision products save.
        hidden = hidden if self.reads_in is None else hidden.to(self.reads_in)
        return hidden if batch.context is None else hidden[batch.context]

    @torch.no_grad()
    def hidden_without_dropout(self, batch: Batch) -> Tensor:
        """The same as a constant, read as it would be when serving."""
        training = self.training
        self.eval()
        try:
            return self.hidden(batch)
        finally:
            self.train(training)

    def head(self, name: str) -> AnyHead:
        """The numbers of an item head; `q` is the mean of both Q heads, where there are two."""
        if name == "q" and "q" not in self.heads:
            a, b = self._numbers("q_a"), self._numbers("q_b")
            assert a.bias is not None and b.bias is not None
            return a.replaced((a.weight + b.weight) / 2, (a.bias + b.bias) / 2)
        return self._numbers(name)

    def scores(self, name: str, hidden: Tensor) -> HeadScores:
        """What `head(name)` gives for these hidden states, without forming a projected table of V rows."""
        names = ("q_a", "q_b") if name == "q" and "q" not in self.heads else (name,)
        heads = [head for head_name in names if isinstance(head := self.heads[head_name], ProjectedHead)]
        if not heads:
            return HeadScores(self.head(name).logits(hidden), hidden)
        a, b = heads[0], heads[-1]
        bias = self._bias(names[0])
        projection, bias, context = (
            (a.projection, bias, a.context)
            if a is b
            else ((a.projection + b.projection) / 2, (bias + self._bias(names[-1])) / 2, (a.context + b.context) / 2)
        )
        projected = hidden @ projection.T.to(hidden.dtype)
        return HeadScores(as_head(self._shared(name), bias, self.shard).logits(projected), hidden, context)

    def _shared(self, name: str) -> Tensor:
        """The item embeddings as a projected head reads them."""
        # The logging head is beside the policy, not part of it: its likelihood leaves the embeddings alone.
        return self.table.detach() if name == "logging" else self.table

    @property
    def dial(self) -> str | None:
        """The head by which a policy is tilted: 'q' (the mean of both Q heads), 'reward', or none."""
        return "q" if "q_a" in self.heads else "reward" if "reward" in self.heads else None

    def parts(self) -> tuple[AnyHead, AnyHead | None]:
        """What the policy's rows are formed of: its head, and no critic of its own."""
        return self.head("policy"), None

    @torch.no_grad()
    def policy(
        self,
        hidden: Tensor,
        *,
        beta: float | None = None,
        logging: str | None = None,
        parts: tuple[AnyHead, AnyHead | None] | None = None,
    ) -> Logits:
        """Unnormalised log π at these hidden states: the policy head, or with `beta` the head `logging` tilted by Q."""
        if beta is None:
            return (self.parts() if parts is None else parts)[0].detach().logits(hidden)
        assert logging is not None and self.dial is not None
        return tilted(hidden, self.head(logging).detach(), self.head(self.dial).detach(), beta=beta)

    @property
    def towers(self) -> list[Network]:
        """The networks that it is made of: itself alone. See `model.towers` for more."""
        return [self]

    @property
    def tables(self) -> frozenset[str]:
        """Names of the parameters with one row per item."""
        heads = ((name, head) for name, head in self.heads.items() if name in ITEM_HEADS)
        parts = (f"heads.{name}.{part}" for name, head in heads for part in ("weight", "bias") if hasattr(head, part))
        return frozenset({"embedding", *parts})

    @property
    def split(self) -> frozenset[str]:
        """Names of the parameters whose rows are split over ranks."""
        return frozenset() if self.shard is None else self.tables

    @property
    def n_parameters(self) -> int:
        """How many parameters there are, on all ranks together."""
        named = list(self.named_parameters())
        rows = {name: self.n_items if name in self.split else len(parameter) for name, parameter in named}
        return sum(parameter.numel() // max(len(parameter), 1) * rows[name] for name, parameter in named)

    def _numbers(self, name: str) -> AnyHead:
        head = self.heads[name]
        if isinstance(head, ProjectedHead):
            return head.numbers(self._shared(name), self._bias(name))
        assert isinstance(head, ItemHead)
        weight = self.table if head.weight is self.embedding else head.weight
        return as_head(weight, self._bias(name), self.shard)

    def value(self, hidden: Tensor) -> Tensor:
        """V(x) of each hidden state [N]."""
        return self.heads["value"](hidden.to(self.embedding.dtype)).squeeze(-1)  # type: ignore[no-any-return]

    def describe(self) -> dict[str, Any]:
        """What is needed to build the same network again."""
        return {
            "model": self.config.model_dump(),
            "items": self.n_items,
            "events": 0 if self.answer is None else len(self.answer),
            "length": self.length,
            "heads": list(self.heads),
            "own_backbone": self.own_backbone,
        }


@contextmanager
def reading_in(half: torch.dtype | None, *networks: Any) -> Iterator[None]:
    """Within the block these networks give hidden states in half precision, which heads follow; weights keep theirs."""
    changed = [network for network in networks if network is not None]
    # Tied heads read the item embeddings several times, beside each other: cast them once, before.
    tables = [network.table for network in changed if len(network.towers) == 1 and network.config.tied]
    for network in changed:
        network.reads_in = half
    try:
        with copies_in(half, *tables):
            yield
    finally:
        for network in changed:
            network.reads_in = None
