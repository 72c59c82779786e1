"""Item embeddings from features: e_a = features_a W + δ_a, and biases likewise.

The table of embeddings is built once per step and once per evaluation; all other code reads it as if it were a
parameter. In a step it is a leaf of the graph: its gradient is gathered like that of any table (kernels, chunks, shards
and captured steps see no difference), and `backward_to_features` then carries it through the sum to W and δ.

δ is dropped for a share of the items in every step, so that features learn to predict without it. A critic's biases
stay: they are the items' mean returns, and other weights would learn to replace them if they were missing. An item that
the training split never shows is no alternative in training: its likelihood would only ever be pushed down. Its row is
a mixture of the rows of similar items (see `data.item_mixtures`), so that its probability is bounded in every context.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from localpolicy.catalogue.shards import Shard
from localpolicy.data.item_features import Encoded
from localpolicy.data.item_mixtures import NewItems
from localpolicy.runtime.deferred_gradients import can_defer, compute_on_branch

LONGEST_BAG = 64  # entries that are summed one after another
AT_ONCE = 4096  # new items in one block
ABSENT = -1e4  # bias of an item that training leaves out


class Level(NamedTuple):
    """Bags of rows that are summed with weights: one pass of a segmented sum."""

    row: Tensor
    offsets: Tensor
    weight: Tensor | None

    def sums(self, rows: Tensor) -> Tensor:
        """Σ over each bag of weight · row."""
        return functional.embedding_bag(
            self.row, rows, self.offsets, mode="sum", per_sample_weights=self.weight, include_last_offset=True
        )


def _numbers(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(torch.get_default_dtype())


def _levels(offsets: np.ndarray, index: np.ndarray, weight: np.ndarray | None) -> list[Level]:
    """Segmented sums that cut long bags and sum their pieces, in a fixed order and spread over the device."""
    lengths = np.diff(offsets)
    pieces = np.maximum(-(-lengths // LONGEST_BAG), 1)
    levels: list[Level] = []
    if pieces.max(initial=1) > 1:
        bag = np.repeat(np.arange(len(lengths)), pieces)
        number = np.arange(len(bag)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        starts = offsets[bag] + number * LONGEST_BAG
        cut = np.concatenate([starts, offsets[-1:]])
        levels = _levels(np.concatenate([[0], np.cumsum(pieces)]), np.arange(len(bag)), None)
        offsets = cut
    first = Level(
        torch.from_numpy(np.ascontiguousarray(index, np.int32)),
        torch.from_numpy(np.ascontiguousarray(offsets, np.int32)),
        None if weight is None else _numbers(weight),
    )
    return [first, *levels]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, features: Features) -> Tensor:
        ctx.features = features
        return features.sums("forward", weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        return ctx.features.sums("back", upstream.contiguous()), None


class ItemInputs(NamedTuple):
    """Encoded item features, with the items that training shows and mixtures for the others."""

    encoded: Encoded
    known: np.ndarray  # [V]: mask of the items that the training split shows
    new: NewItems | None  # mixtures for the other items


class Features(nn.Module):
    """Feature matrix X of this rank's items, its weights W, and a mask of the known items."""

    dense: Tensor  # [V, F_dense]
    known: Tensor  # [V]
    keys: Tensor  # [F]
    rise: Tensor  # log w of new items, fitted to held-out events
    new_items: Tensor  # [m], of this rank's items
    new_near: Tensor  # [m, k], of all items
    new_share: Tensor
    new_ceiling: Tensor  # [m]

    def __init__(self, given: ItemInputs, width: int, *, shard: Shard | None = None) -> None:
        super().__init__()
        encoded, known, self.new, self.shard = *given, shard
        self.n_features, self.n_sparse = encoded.n_features, encoded.n_sparse
        if shard is not None:
            encoded, known = encoded.rows(shard.own), known[shard.own]
        # From zero: at first items are embedded as they would be without features.
        self.weight = nn.Parameter(torch.zeros(self.n_features, width))
        items = np.repeat(np.arange(len(known)), np.diff(encoded.offsets))
        order = np.argsort(encoded.row, kind="stable")
        ends = np.concatenate([[0], np.cumsum(np.bincount(encoded.row, minlength=self.n_sparse))])
        self._count = {
            "forward": self._keep("forward", _levels(encoded.offsets, encoded.row, encoded.weight)),
            "back": self._keep("back", _levels(ends, items[order], encoded.weight[order])),
        }
        self._buffer("dense", _numbers(encoded.dense))
        self._buffer("known", torch.from_numpy(np.ascontiguousarray(known, bool)))
        self._buffer("keys", torch.from_numpy(encoded.keys))
        self._buffer("rise", torch.zeros(()))
        if self.new is not None:
            here = np.arange(len(self.new.items))
            if shard is not None:
                here = np.flatnonzero((self.new.items >= shard.own.start) & (self.new.items < shard.own.stop))
            first = 0 if shard is None else shard.own.start
            self._buffer("new_items", torch.from_numpy(self.new.items[here] - first))
            self._buffer("new_near", torch.from_numpy(self.new.made.near[here]))
            self._buffer("new_share", _numbers(self.new.made.share[here]))
            self._buffer("new_ceiling", _numbers(self.new.ceilings[here]))

    def _buffer(self, name: str, tensor: Tensor) -> None:
        self.register_buffer(name, tensor, persistent=False)

    def _keep(self, prefix: str, levels: list[Level]) -> int:
        for number, level in enumerate(levels):
            for part, tensor in level._asdict().items():
                self._buffer(f"{prefix}_{number}_{part}", tensor)
        return len(levels)

    def sums(self, which: str, rows: Tensor) -> Tensor:
        """X W ('forward') or Xᵀ G ('back'), for the sparse features."""
        for number in range(self._count[which]):
            level = Level(*(getattr(self, f"{which}_{number}_{part}") for part in Level._fields))
            rows = level.sums(rows)
        return rows

    def product(self, weight: Tensor) -> Tensor:
        """X W: [V, D]."""
        sparse: Tensor | None = None
        if self.n_sparse:
            sparse = _Product.apply(weight[: self.n_sparse], self)  # type: ignore[no-untyped-call]
        if not self.dense.shape[1]:
            assert sparse is not None
            return sparse
        dense: Tensor = self.dense @ weight[self.n_sparse :]
        return dense if sparse is None else sparse + dense

    def rows(self, own: Tensor, kept: Tensor, weight: Tensor | None = None) -> Tensor:
        """X W + δ, without δ for items that are not `kept`: [V, D]."""
        product = self.product(self.weight if weight is None else weight)
        return torch.addcmul(product, kept[:, None].to(own.dtype), own)

    def whole(self, table: Tensor) -> Tensor:
        """The table with the rows of all ranks."""
        return table if self.shard is None else self.shard.ranks.all_gather(table)[0]

    def served(self, table: Tensor) -> Tensor:
        """Embedding table at serving time: rows of new items are mixtures of the others."""
        if self.new is None:
            return table
        served, known = table.clone(), self.whole(table)
        served[self.new_items] = mixed(known, self.new_near, self.new_share)
        return served

    @torch.no_grad()
    def served_rows(self, own: Tensor) -> Tensor:
        """X W + δ of the items that training shows, and mixtures for the others: [V, D]."""
        return self.served(self.rows(own, self.known))

    def biases(self, head: nn.Module, kept: Tensor) -> Tensor:
        """X w + b, without b for items that are not `kept`: [V]."""
        return self.rows(head.bias[:, None], kept, head.features[:, None]).squeeze(1)  # type: ignore[index]

    def step_biases(self, head: nn.Module, kept: Tensor, *, softmax: bool) -> Tensor:
        """Biases in a training step [V]: b is dropped for a softmax alone, and new items cannot be chosen there."""
        biases = self.biases(head, kept if softmax else self.known)
        return biases + ABSENT * ~self.known if softmax and self.new is not None else biases

    @torch.no_grad()
    def served_biases(self, head: nn.Module, *, softmax: bool) -> Tensor:
        """Biases as served [V]: in a softmax new items get the fitted log-weight, up to their ceilings."""
        bias = self.served(self.biases(head, self.known)[:, None]).squeeze(1)
        if self.new is not None and softmax:
            bias[self.new_items] += torch.minimum(self.new_ceiling, self.rise)
        return bias

    @torch.no_grad()
    def load_saved(self, saved: Mapping[str, Tensor], tables: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """Start from a saved W, with δ changed so that items' rows stay as they are; `tables`: (W, δ) by name.

        Features are matched by their meaning (`keys`): a feature that was not known starts at zero.
        """
        known = {key: row for row, key in enumerate(saved["keys"].tolist())}
        own = [row for row, key in enumerate(self.keys.tolist()) if key in known]
        theirs = [known[key] for key in self.keys.tolist() if key in known]
        for name, (weight, table) in tables.items():
            if name not in saved:
                continue
            weight[own] = saved[name].to(weight)[theirs]
            product = self.product(weight if weight.ndim == 2 else weight[:, None])
            table -= product if weight.ndim == 2 else product.squeeze(1)

    def kept(self, share_dropped: float) -> Tensor:
        """Mask of the items that keep their δ in a step: [V]."""
        if not share_dropped:
            return self.known
        return self.known & (torch.rand(len(self.known), device=self.known.device) >= share_dropped)


def mixed(table: Tensor, near: Tensor, share: Tensor) -> Tensor:
    """Σ_a λ_ca e_a of each new item c: [m, D]."""
    parts = zip(near.split(AT_ONCE), share.split(AT_ONCE), strict=True)
    return torch.cat([torch.einsum("mk,mkd->md", part, table[index]) for index, part in parts])


class BuiltEmbeddings(NamedTuple):
    """Rows and biases of a step or an evaluation, with the sums that get their gradients if they are leaves."""

    rows: Tensor
    biases: dict[str, Tensor]
    sums: tuple[Tensor, ...] = ()

    @classmethod
    def of(cls, rows: Tensor, biases: dict[str, Tensor], *, leaf: bool) -> BuiltEmbeddings:
        """Embeddings of a training step; with `leaf` as new leaves, whose gradients `backward` carries on."""
        if not leaf:
            return cls(rows, biases)
        leaves = {name: bias.detach().requires_grad_() for name, bias in biases.items()}
        return cls(rows.detach().requires_grad_(), leaves, (rows, *biases.values()))

    def backward(self) -> None:
        """Carry the leaves' gradients to W and δ."""
        pairs = zip(self.sums, (self.rows, *self.biases.values()), strict=False)
        reached = [(whole, leaf.grad) for whole, leaf in pairs if leaf.grad is not None]
        if reached:
            torch.autograd.backward([whole for whole, _ in reached], [gradient for _, gradient in reached])


# ---------------------------------------------------------------------- before the first item


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

        start = compute_on_branch((ctx.start,), for_start, reads=(upstream, begins))
        return None, *start, torch.where(begins[:, None], 0.0, upstream)


def begun(begins: Tensor, start: Tensor, embedded: Tensor) -> Tensor:
    """The start token's embedding where a sequence begins, else `embedded`; its gradient may be deferred."""
    if can_defer(start):
        return _Begun.apply(begins, start, embedded)  # type: ignore[no-untyped-call, no-any-return]
    return torch.where(begins[:, None], start, embedded)
