"""Simple baselines, which published work shows beating learned policies: popularity, the last item again, item-kNN.

They are measured as policies are, can be saved (`runs.baselines`) and served, and need no training.
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
from localpolicy.data.store import CONTEXT, NO_ANSWER, Prepared
from localpolicy.limits import SMOOTHING
from localpolicy.logits import Logits
from localpolicy.model.deployable import Deployable, Origin
from localpolicy.types import Batch


def mixed(base: Tensor, rows: int, row: Tensor, item: Tensor, weight: Tensor, *, background: float) -> SparseLogits:
    """log[(1 - ε) weight + ε base]: rows whose weights sum to 1, over a distribution `base` [V].

    A row without any pair keeps `base` alone; its missing mass is a constant that normalising restores.
    """
    value = torch.log((1 - background) * weight + background * base[item])
    return SparseLogits(torch.log(background * base), rows, row, item, value.to(base.dtype))


def events_but(data: Prepared, *left_out: str) -> list[int]:
    """Codes of the events: without NO_ANSWER those that say someone wanted an item, without CONTEXT those chosen."""
    return [code for code, name in enumerate(data.events) if name not in left_out]


def popularity(data: Prepared, *, shown: bool = False) -> Tensor:
    """(answers + ½) / Σ (answers + ½), over the training split: [V]; of all that was `shown`, answered or not."""
    train = data["train"].arrays
    wanted = np.isin(train["event"], events_but(data, CONTEXT, *([] if shown else [NO_ANSWER])))
    counts = np.bincount(train["item"][wanted], minlength=data.n_items) + SMOOTHING
    return torch.from_numpy((counts / counts.sum()).astype(np.float32))


def recent(batch: Batch, codes: list[int], depth: int) -> tuple[Tensor, Tensor, Tensor]:
    """(position, item, lag) of what was answered just before each position; lag 0 is the latest, lags below `depth`.

    Only steps of the window are seen, as a policy would; items that were shown in vain are passed over.
    """
    wanted = torch.isin(batch.previous_event, torch.tensor(codes, device=batch.row.device))
    wanted &= batch.previous_item >= 0
    answered_so_far = wanted.cumsum(0)
    pairs = []
    first = batch.scored if batch.context is None else batch.context[batch.scored]
    token = first
    position = torch.arange(len(token), device=token.device)
    # One step back at a time, for as long as some position still has a step before it.
    while len(token):
        lag = answered_so_far[first[position]] - answered_so_far[token]
        here = wanted[token] & (lag < depth)
        pairs.append(torch.stack([position[here], batch.previous_item[token[here]], lag[here]]))
        further = (batch.column[token] > 0) & (lag < depth)
        position, token = position[further], token[further] - 1
    joined = torch.cat(pairs, dim=1) if pairs else torch.empty(3, 0, dtype=torch.long)
    joined = joined[:, torch.argsort(joined[0], stable=True)]
    return joined[0], joined[1], joined[2]


@dataclass(frozen=True)
class Popularity:
    """The most popular items first."""

    share: Tensor  # [V]
    origin: Origin
    items: pa.Table

    @classmethod
    def fit(cls, data: Prepared) -> Popularity:
        """Count answers in the training split."""
        return cls(popularity(data), Origin("popularity", data.kind, data.events, None), data.catalogue)

    def logits(self, batch: Batch) -> Logits:
        """log share, whatever the history."""
        return SparseLogits.alike(self.share.log(), batch)


@dataclass(frozen=True)
class LastItem:
    """The last item again, then the popular ones."""

    share: Tensor  # [V] popularity
    codes: list[int]  # events that answer
    origin: Origin
    items: pa.Table
    background: float = 0.5  # ε; ranks do not depend on it, likelihood and divergence do

    @classmethod
    def fit(cls, data: Prepared) -> LastItem:
        """Only popularity is learned."""
        origin = Origin("last item", data.kind, data.events, None)
        return cls(popularity(data), events_but(data, NO_ANSWER), origin, data.catalogue)

    def logits(self, batch: Batch) -> Logits:
        """One exception per row."""
        row, item, _ = recent(batch, self.codes, depth=1)
        share = self.share.to(row.device)
        whole = torch.ones(len(row), device=row.device)
        return mixed(share, len(batch.scored), row, item, whole, background=self.background)


LONGEST = 100  # most recent answers of a sequence that count: pairs grow with the square of a lifetime


@dataclass(frozen=True)
class ItemNeighbours:
    """Neighbours of what was answered lately."""

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
        """Count which items share sequences of the training split."""
        codes = events_but(data, NO_ANSWER)
        return cls(
            similar=similarity(_memberships(data, codes), neighbours=neighbours),
            share=popularity(data),
            codes=codes,
            origin=Origin("item-kNN", data.kind, data.events, None),
            items=data.catalogue,
        )

    def logits(self, batch: Batch) -> Logits:
        """Exceptions for the neighbours of what was answered."""
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


def _memberships(data: Prepared, codes: list[int]) -> sparse.csr_matrix:
    """Which of the training sequences hold which items: [S, V] of zeros and ones."""
    train = data["train"]
    lengths = np.diff(train.offsets)
    sequence = np.repeat(np.arange(len(train)), lengths)
    from_end = np.repeat(train.offsets[1:], lengths) - np.arange(train.events)
    wanted = np.isin(train.arrays["event"], codes) & (from_end <= LONGEST)
    shape = (len(train), data.n_items)
    counts = sparse.csr_matrix((np.ones(wanted.sum()), (sequence[wanted], train.arrays["item"][wanted])), shape=shape)
    counts.data[:] = 1.0
    return counts


Baseline = Popularity | LastItem | ItemNeighbours
KINDS: dict[str, type[Baseline]] = {"popularity": Popularity, "last item": LastItem, "item-kNN": ItemNeighbours}
BASELINES: dict[str, Callable[[Prepared], Deployable]] = {name: kind.fit for name, kind in KINDS.items()}
