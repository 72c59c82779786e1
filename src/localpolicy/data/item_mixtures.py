"""Mixtures of known items for new ones: the nearest by the item table, with shares that add up to 1.

Nearness is the cosine of features, rare values counting more; shares fall with it (a softmax of the cosine over HEAT).
Of items that are equally near the more frequent ones are taken.

**Bound on an item without events.** Its row and bias are the mixtures Σ_a λ_ca e_a and Σ_a λ_ca b_a of its neighbours',
and its bias has log w_c added. An exponential is convex (Jensen), so that in every context p_c <= w_c Σ_a λ_ca p_a.
Summed over these items, their mass is at most Σ_a p_a Σ_c w_c λ_ca, which `ceilings` keeps at `bound` times that of the
known items: if many crowd around the same neighbours, they share what one would get.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse

from localpolicy.data.item_features import Encoded

NEAREST, HEAT = 20, 0.05
CANDIDATES = 50_000  # known items that are looked at: the most frequent
AT_ONCE = 512
TRIAL, MOST_TRIED = 10, 2_000  # one known item in ten, and this many at most, stand in for new ones


class Mixtures(NamedTuple):
    """Nearest known items of each of some items, and their shares."""

    near: np.ndarray  # [m, k], of all items
    share: np.ndarray  # [m, k]


def ceilings(made: Mixtures, n_items: int, *, bound: float) -> np.ndarray:
    """The largest log w_c for which Σ_c w_c λ_ca <= bound at every known item a: [m]. None is above 0."""
    crowd = np.bincount(made.near.ravel(), made.share.ravel(), minlength=n_items)
    most = np.where(made.share > 0, crowd[made.near], 0.0).max(1, initial=0.0)
    return np.asarray(np.minimum(np.log(bound) - np.log(np.maximum(most, 1e-300)), 0.0))


def by_frequency(counts: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Items that a mask selects, the most frequent first."""
    order = np.argsort(-counts, kind="stable")
    return np.asarray(order[among[order]])


class NewItems(NamedTuple):
    """Items without events as mixtures of the others; and known ones as if they had none, to learn from."""

    items: np.ndarray  # [m]
    made: Mixtures
    ceilings: np.ndarray  # [m]
    trial: np.ndarray  # known items that stand for them on held-out events
    trial_made: Mixtures

    @classmethod
    def of(cls, encoded: Encoded, counts: np.ndarray, *, bound: float) -> NewItems | None:
        """Build the mixtures of the items without a count; None if all items have one, or none has."""
        known = counts > 0
        items = np.flatnonzero(~known)
        if not len(items) or not known.any():
            return None
        made = mixtures(encoded, items, by_frequency(counts, known))
        drawn = np.random.default_rng(0).permutation(np.flatnonzero(known))
        trial = np.sort(drawn[: min(max(len(drawn) // TRIAL, 1), MOST_TRIED)])
        others = known.copy()
        others[trial] = False
        if not others.any():
            others = known
        return cls(
            items, made, ceilings(made, len(counts), bound=bound),
            trial, mixtures(encoded, trial, by_frequency(counts, others)),
        )  # fmt: skip


def rarity(encoded: Encoded, known: np.ndarray) -> np.ndarray:
    """-log of the share of known items that have each sparse feature: its weight."""
    shown = encoded.taken(known)
    having = np.bincount(shown.row[shown.weight > 0], minlength=encoded.n_sparse)
    return np.asarray(np.maximum(-np.log(np.maximum(having, 0.5) / max(len(known), 1)), 0.0))


def unit_rows(encoded: Encoded, weight: np.ndarray) -> sparse.csr_matrix:
    """Feature vectors of the items, scaled to unit length."""
    n = len(encoded.offsets) - 1
    rows = sparse.csr_matrix((encoded.weight, encoded.row, encoded.offsets), shape=(n, encoded.n_sparse))
    rows = rows @ sparse.diags(weight)
    if encoded.dense.shape[1]:
        rows = sparse.hstack([rows, sparse.csr_matrix(encoded.dense)])
    length = np.sqrt(np.asarray(rows.multiply(rows).sum(1)).ravel())
    return sparse.csr_matrix(sparse.diags(1 / np.maximum(length, 1e-12)) @ rows, dtype=np.float32)


def mixtures(encoded: Encoded, of: np.ndarray, known: np.ndarray) -> Mixtures:
    """Mix the items `of` from the items `known` (both indices; the latter by falling frequency)."""
    weight, known = rarity(encoded, known), known[:CANDIDATES]
    rows = unit_rows(encoded, weight)
    near_to = rows[known].T.tocsr()
    k = min(NEAREST, len(known))
    index, share = np.zeros((len(of), k), np.int64), np.zeros((len(of), k))
    for first in range(0, len(of), AT_ONCE):
        part = slice(first, first + AT_ONCE)
        cosine = np.asarray((rows[of[part]] @ near_to).todense())
        best = np.argsort(-cosine, axis=1, kind="stable")[:, :k]
        value = np.take_along_axis(cosine, best, 1)
        heated = np.exp((value - value[:, :1]) / HEAT)
        index[part], share[part] = known[best], heated / heated.sum(1, keepdims=True)
    return Mixtures(index, share)
