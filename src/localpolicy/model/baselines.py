"""Simple baselines, which published work shows beating learned policies: popularity, item-kNN, ALS and others.

They are evaluated like policies, can be saved (`runs.baselines`) and served, and need no settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from scipy import sparse
from torch import Tensor

from localpolicy.catalogue.sparse import SparseLogits
from localpolicy.data.store import NO_ANSWER, Prepared
from localpolicy.logits import Logits
from localpolicy.model.counts import events_but, memberships, recent
from localpolicy.model.counts import popularity as popularity
from localpolicy.model.deployable import Deployable, Origin
from localpolicy.model.factors import Factors
from localpolicy.model.item_orders import Dearest, ItemMean, ItemOrder, MostRecent
from localpolicy.model.item_orders import Popularity as Popularity
from localpolicy.types import Batch


def mixed(base: Tensor, rows: int, row: Tensor, item: Tensor, weight: Tensor, *, background: float) -> SparseLogits:
    """log[(1 - ε) weight + ε base]: rows whose weights sum to 1, over a distribution `base` [V].

    A row without any pair keeps `base` alone; its missing mass is a constant that normalising restores.
    """
    value = torch.log((1 - background) * weight + background * base[item])
    return SparseLogits(torch.log(background * base), rows, row, item, value.to(base.dtype))


@dataclass(frozen=True)
class LastItem:
    """Baseline that ranks the last item of the history first, then the popular ones."""

    share: Tensor  # [V] popularity
    codes: list[int]  # events that answer
    origin: Origin
    items: pa.Table
    background: float = 0.5  # ε; ranks do not depend on it, likelihood and divergence do

    @classmethod
    def fit(cls, data: Prepared) -> LastItem:
        """Count popularity in the training split: nothing else is learned."""
        origin = Origin("last item", data.kind, data.events, None)
        return cls(popularity(data), events_but(data, NO_ANSWER), origin, data.catalogue)

    def logits(self, batch: Batch) -> Logits:
        """log[(1 - ε) 1[last item] + ε popularity] at the batch's positions."""
        row, item, _ = recent(batch, self.codes, depth=1)
        share = self.share.to(row.device)
        whole = torch.ones(len(row), device=row.device)
        return mixed(share, len(batch.scored), row, item, whole, background=self.background)


@dataclass(frozen=True)
class ItemNeighbours:
    """Item-kNN: items similar to those that the user answered lately."""

    similar: sparse.csr_matrix  # [V, V]
    share: Tensor  # [V] popularity, for items without a neighbour
    codes: list[int]
    origin: Origin
    items: pa.Table
    depth: int = 10  # answers looked back at
    decay: float = 0.8
    background: float = 0.1  # ε of popularity

    @classmethod
    def fit(cls, data: Prepared, *, neighbours: int = 100) -> ItemNeighbours:
        """Count the items that share sequences of the training split."""
        codes = events_but(data, NO_ANSWER)
        return cls(
            similar=similarity(memberships(data, codes), neighbours=neighbours),
            share=popularity(data),
            codes=codes,
            origin=Origin("item-kNN", data.kind, data.events, None),
            items=data.catalogue,
        )

    def logits(self, batch: Batch) -> Logits:
        """log[(1 - ε) share of similarity to recent answers + ε popularity] at the batch's positions."""
        row, item, lag = (part.cpu().numpy() for part in recent(batch, self.codes, self.depth))
        shape = (len(batch.scored), len(self.share))
        history = sparse.csr_matrix((self.decay**lag, (row, item)), shape=shape)
        scores = (history @ self.similar).tocoo()
        total = np.bincount(scores.row, weights=scores.data, minlength=shape[0])
        order = np.argsort(scores.row, kind="stable")
        row, item = scores.row[order].astype(np.int64), scores.col[order].astype(np.int64)
        device = batch.row.device
        pairs = (torch.from_numpy(part).to(device) for part in (row, item, scores.data[order] / total[row]))
        return mixed(self.share.to(device), shape[0], *pairs, background=self.background)


def similarity(memberships: sparse.csr_matrix, *, neighbours: int) -> sparse.csr_matrix:
    """|A ∩ B| / √(|A| |B|) for items as sets of sequences [S, V], each row's largest few."""
    together = (memberships.T @ memberships).tocoo()
    size = np.sqrt(np.asarray(memberships.sum(0), dtype=np.float64)).ravel()
    cosine = together.data / (size[together.row] * size[together.col])
    # By row, then by falling similarity, then by item, so that ties are broken the same way everywhere.
    order = np.lexsort((together.col, -cosine, together.row))
    row = together.row[order]
    first = np.searchsorted(row, np.arange(together.shape[0]))
    kept = order[np.arange(len(row)) - first[row] < neighbours]
    return sparse.csr_matrix((cosine[kept], (together.row[kept], together.col[kept])), shape=together.shape)


Baseline = ItemOrder | LastItem | ItemNeighbours | Factors
KINDS: dict[str, type[Baseline]] = {
    "popularity": Popularity, "last item": LastItem, "item-kNN": ItemNeighbours, "ALS": Factors, "item mean": ItemMean,
    "dearest": Dearest, "most recent": MostRecent,
}  # fmt: skip
BASELINES: dict[str, Callable[[Prepared], Deployable]] = {name: kind.fit for name, kind in KINDS.items()}


def why_not(name: str, data: Prepared) -> str | None:
    """Reason why a baseline cannot be fitted to this log, or only repeats popularity; None if it can be."""
    kind = KINDS[name]
    return kind.lacks(data) if issubclass(kind, ItemOrder) else None


def simple_baselines(data: Prepared) -> dict[str, Callable[[Prepared], Deployable]]:
    """Baselines that this log supports, by name, each with the function that fits it."""
    return {name: fit for name, fit in BASELINES.items() if why_not(name, data) is None}
