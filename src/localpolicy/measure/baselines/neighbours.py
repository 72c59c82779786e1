"""Item neighbours over sessions: score(a|x) = Σ_j decay^j S[x_j, a], the latest item x_0 counting most.

S is the cosine of two items' sets of sequences, |A ∩ B| / √(|A| |B|) (Sarwar et al. 2001; for sessions Ludewig and
Jannach 2018), each item keeping its nearest few. An item is its own neighbour: people come back to what they had.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from scipy import sparse
from torch import Tensor

from localpolicy.catalogue.logits import Logits
from localpolicy.data.store import Prepared
from localpolicy.measure.baselines.history import popularity, recent, target_events
from localpolicy.measure.baselines.sparse_rows import mixed
from localpolicy.model.policy import Origin
from localpolicy.types import Batch

LONGEST = 100  # most recent answers of a sequence that count: pairs grow with the square of a lifetime


@dataclass(frozen=True)
class ItemNeighbours:
    """Neighbours of what was answered lately."""

    similar: sparse.csr_matrix  # [V, V]
    share: Tensor  # [V] popularity, for items that are nobody's neighbour
    codes: list[int]
    origin: Origin
    items: pa.Table
    depth: int = 10  # answers looked back at
    decay: float = 0.8
    background: float = 0.1  # ε of popularity

    @classmethod
    def fit(cls, data: Prepared, *, neighbours: int = 100) -> ItemNeighbours:
        """Count which items share sequences of the training split."""
        codes = target_events(data, context=True)
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
