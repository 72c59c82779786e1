"""The network: item embeddings, a backbone, and one head per quantity that is predicted for an item."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from localpolicy import plugins
from localpolicy.catalogue.shards import Shard, lookup
from localpolicy.errors import ConfigError
from localpolicy.logits import AnyHead, Logits, tilted
from localpolicy.model.backbones import Layout, backbone_called
from localpolicy.model.backbones.init import normal
from localpolicy.model.config import ModelConfig
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
from localpolicy.model.item_embeddings import BuiltEmbeddings, Features, ItemInputs, begun
from localpolicy.runtime.deferred_gradients import take
from localpolicy.types import START, Batch

FEATURES = "features."  # prefix of the weights that a saved network with features has in addition


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
        self.reads_in: torch.dtype | None = None  # see `training.losses.reading_in`
        self.n_items = items
        self.length = length
        self.shard = shard  # if ranks split the catalogue: this rank holds only its rows of every table over items
        scale = config.width**-0.5
        self.embedding = nn.Parameter(own_rows(normal(items, config.width, scale=scale), shard))
        self.start = nn.Parameter(normal(config.width, scale=scale))
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
        self._built: BuiltEmbeddings | None = None
        if features is not None:
            assert config.tied, "refused before"
            self.features = Features(features, config.width, shard=shard)
            for name, head in self.heads.items():
                if name in ITEM_HEADS:
                    head.features = nn.Parameter(torch.zeros(features.encoded.n_features))

    # ------------------------------------------------------------------ item embeddings (see `item_embeddings`)

    @property
    def table(self) -> Tensor:
        """Item embeddings [V, D], for input and for tied heads."""
        if self.features is None:
            return self.embedding
        return self.features.served_rows(self.embedding) if self._built is None else self._built.rows

    def _bias(self, name: str) -> Tensor:
        """Biases of a head: [V]."""
        head = self.heads[name]
        if self.features is None:
            return head.bias  # type: ignore[return-value]
        if self._built is not None and name in self._built.biases:
            return self._built.biases[name]
        return self.features.served_biases(head, softmax=name in SOFTMAX_HEADS)

    def build_item_embeddings(self, *, leaf: bool) -> None:
        """Build a step's embeddings: leaves whose gradients `backward_to_features` carries on, or graph nodes."""
        if self.features is None:
            return
        kept = self.features.kept(self.config.id_dropout)
        rows = self.features.rows(self.embedding, kept)
        biases = {
            name: self.features.step_biases(head, kept, softmax=name in SOFTMAX_HEADS)
            for name, head in self.heads.items()
            if name in ITEM_HEADS
        }
        self._built = BuiltEmbeddings.of(rows, biases, leaf=leaf)

    def backward_to_features(self) -> None:
        """Carry the embeddings' gradients to W and δ, and forget the embeddings."""
        if self._built is not None:
            self._built.backward()
            self._built = None

    @contextmanager
    def evaluation_embeddings(self) -> Iterator[None]:
        """Context manager: build the embeddings as they are served, once for the whole block."""
        if self.features is not None:
            self._built = BuiltEmbeddings(self.features.served_rows(self.embedding), {})
        try:
            yield
        finally:
            self._built = None

    def plain_state(self) -> dict[str, Tensor]:
        """State of the equivalent network without features: its tables are the built embeddings; plus W, for
        extensions.
        """
        state = dict(self.state_dict())
        if self.features is None:
            return state
        rows = self.features.served_rows(self.embedding)
        for name in state:
            if name == "embedding" or (name.endswith(".weight") and name in self.tables):
                state[name] = rows
        for name, head in self.heads.items():
            if name in ITEM_HEADS:
                state[f"heads.{name}.bias"] = self.features.served_biases(head, softmax=name in SOFTMAX_HEADS)
                state[f"{FEATURES}{name}"] = state.pop(f"heads.{name}.features")
        state |= {f"{FEATURES}keys": self.features.keys, f"{FEATURES}rise": self.features.rise.reshape(1)}
        return state

    def take_features(self, saved: Mapping[str, Tensor]) -> None:
        """Start from the feature weights of a saved network (see `plain_state`); items' rows stay as they are."""
        if self.features is None:
            return
        tables: dict[str, tuple[Tensor, Tensor]] = {"weight": (self.features.weight, self.embedding)}
        tables |= {name: (head.features, head.bias) for name, head in self.heads.items() if name in ITEM_HEADS}  # type: ignore[misc]
        known = {name.removeprefix(FEATURES): tensor for name, tensor in saved.items() if name.startswith(FEATURES)}
        self.features.load_saved(known, tables)

    # ------------------------------------------------------------------ heads and contexts

    def _item_head(self, name: str) -> nn.Module:
        tied, zero = self.config.tied, name in CRITICS
        if tied and name != "policy":
            return ProjectedHead(self.n_items, self.config.width, zero=zero, shard=self.shard)
        weight = self.embedding if tied else None
        return ItemHead(self.n_items, self.config.width, weight=weight, zero=zero, shard=self.shard)

    def embed(self, batch: Batch) -> Tensor:
        """Embedded tokens [M, D]: the item before each step, plus its event."""
        begins = batch.previous_item == START
        before = batch.previous_item.clamp(min=0)
        shard = self.shard
        table = self.table
        embedded = take(table, before) if shard is None else lookup(table, before, shard)
        if self.answer is not None:
            embedded = embedded + take(self.answer, batch.previous_event)
        return begun(begins, self.start, embedded)

    def encode(self, batch: Batch, layout: Layout) -> Tensor:
        """Hidden state of every token under `layout`: [M, D]."""
        return self.backbone(self.embed(batch), layout)  # type: ignore[no-any-return]

    def hidden(self, batch: Batch) -> Tensor:
        """Hidden state of every token [M, D]; the places of one list share that of the first."""
        read, context = batch.read_alone()
        hidden = self.encode(read, Layout.of(read))
        # The backbone keeps its precision: at these widths casts cost more than half-precision products save.
        hidden = hidden if self.reads_in is None else hidden.to(self.reads_in)
        return hidden if context is None else hidden[context]

    @torch.no_grad()
    def hidden_without_dropout(self, batch: Batch) -> Tensor:
        """Hidden state of every token [M, D] as in serving: without dropout, and without gradients."""
        if not self.training:
            return self.hidden(batch)
        self.eval()
        try:
            return self.hidden(batch)
        finally:
            self.train()

    def head(self, name: str) -> AnyHead:
        """Weights and biases of an item head; `q` is the mean of both Q heads if there are two."""
        if name == "q" and "q" not in self.heads:
            a, b = self._numbers("q_a"), self._numbers("q_b")
            assert a.bias is not None and b.bias is not None
            return a.replaced((a.weight + b.weight) / 2, (a.bias + b.bias) / 2)
        return self._numbers(name)

    def scores(self, name: str, hidden: Tensor) -> HeadScores:
        """Scores of `head(name)` at these hidden states, without forming a projected table of V rows."""
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
        """Item embeddings as a projected head reads them: constants for the logging head, whose loss must not train
        them.
        """
        # The logging head is no part of the policy: its likelihood leaves the embeddings alone.
        return self.table.detach() if name == "logging" else self.table

    @property
    def dial(self) -> str | None:
        """Head that tilts the policy: 'q' (the mean of both Q heads), 'reward', or None."""
        return "q" if "q_a" in self.heads else "reward" if "reward" in self.heads else None

    def parts(self) -> tuple[AnyHead, AnyHead | None]:
        """Pair (policy head, None): a single network has no critic of its own (see `Towers.parts`)."""
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
        """List of this network alone; `Towers` has several."""
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
        """Number of parameters, on all ranks together."""
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
        """V(x) of each hidden state: [N]."""
        return self.heads["value"](hidden.to(self.embedding.dtype)).squeeze(-1)  # type: ignore[no-any-return]

    def describe(self) -> dict[str, Any]:
        """Sizes and settings that `build` needs to make this network again."""
        return {
            "model": self.config.model_dump(),
            "items": self.n_items,
            "events": 0 if self.answer is None else len(self.answer),
            "length": self.length,
            "heads": list(self.heads),
            "own_backbone": self.own_backbone,
        }
