"""Informative columns of the item table, found by a permutation test before training, so that others cost nothing.

A column is used if items that are taken one after another in the training split are more similar in it than they
would be if its values were permuted among the items. The statistic is Σ over pairs of ⟨x_a, x_b⟩, x being the
column's features, rare values counting more, scaled to unit length. It also rises if often taken items are similar,
that is, if the column predicts popularity. On a log with rewards a second statistic is ‖Σ_a u_a x_a‖², u_a being what
item a earned beyond the mean. Either statistic must exceed those of all PERMUTATIONS, and their mean by SURE of their
standard deviations: of useless columns at most one in a hundred gets in, and one that does is still subject to weight
decay.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse

from localpolicy.data.item_features import Encoded, ItemFeatures, learnt_columns
from localpolicy.data.store import CONTEXT, Prepared

PERMUTATIONS, SURE = 99, 4.0
MOST_PAIRS = 200_000


class ColumnRelevance(NamedTuple):
    """Deviations of a column's statistics from chance, in standard deviations of the permutations."""

    column: str
    pairs: float
    rewards: float | None
    believed: bool


def column_relevance(data: Prepared) -> list[ColumnRelevance]:
    """Permutation test of every learnable item column: does it predict co-occurrence or reward?"""
    known = data.known_items
    names = learnt_columns(data.catalogue)
    if not names or known.sum() < 2:
        return [ColumnRelevance(name, 0.0, None, False) for name in names]
    shown = np.flatnonzero(known)
    place = np.cumsum(known) - 1
    first, second = (place[each] for each in _pairs(data))
    earned = _earned(data)[shown]
    found = []
    for name in names:
        encoded = ItemFeatures.fit(data.catalogue, [name], known).encode(data.catalogue).taken(shown)
        found.append(_relevance(name, _unit(encoded), first, second, earned))
    return found


def _relevance(
    name: str, x: sparse.csr_matrix, first: np.ndarray, second: np.ndarray, earned: np.ndarray
) -> ColumnRelevance:
    draw = np.random.default_rng(0)
    n = x.shape[0]
    together = sparse.csr_matrix((np.ones(len(first)), (first, second)), shape=(n, n))
    pays = bool(np.ptp(earned) > 0) if len(earned) else False

    def statistics(order: np.ndarray | None) -> tuple[float, float]:
        rows = x if order is None else x[order]
        pairs = float(rows.multiply(together @ rows).sum())
        return pairs, float(np.square(rows.T @ earned).sum()) if pays else 0.0

    permuted = np.array([statistics(draw.permutation(n)) for _ in range(PERMUTATIONS)])
    mean, spread = permuted.mean(0), np.maximum(permuted.std(0), 1e-12)
    true = np.array(statistics(None))
    beyond = (true - mean) / spread
    believed = (beyond > SURE) & (true > permuted.max(0)) & [len(first) > 0, pays]
    return ColumnRelevance(name, float(beyond[0]), float(beyond[1]) if pays else None, bool(believed.any()))


def _unit(encoded: Encoded) -> sparse.csr_matrix:
    """Feature vectors of the items, scaled to unit length; a value counts by its rarity."""
    n = len(encoded.offsets) - 1
    if encoded.dense.shape[1]:
        rows = sparse.csr_matrix(encoded.dense)
    else:
        rows = sparse.csr_matrix((encoded.weight, encoded.row, encoded.offsets), shape=(n, encoded.n_sparse))
        share = np.asarray((rows > 0).sum(0)).ravel() / max(n, 1)
        rows = rows @ sparse.diags(np.sqrt(np.maximum(-np.log(np.maximum(share, 1e-12)), 0.0)))
    length = np.sqrt(np.asarray(rows.multiply(rows).sum(1)).ravel())
    return sparse.csr_matrix(sparse.diags(1 / np.maximum(length, 1e-12)) @ rows)


def _pairs(data: Prepared) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of items taken one after another, in an impression log of answered ones. At most MOST_PAIRS of them."""
    split = data["train"]
    item, sequence = np.asarray(split.arrays["item"]), split.sequence
    counts = np.ones(len(item), bool)
    if data.kind == "impressions":
        counts = np.asarray(split.arrays["reward"]) > 0
    elif CONTEXT in data.events:
        counts = data.chosen("train")
    item, sequence = item[counts], sequence[counts]
    at = np.flatnonzero((sequence[1:] == sequence[:-1]) & (item[1:] != item[:-1]))
    if len(at) > MOST_PAIRS:
        at = np.sort(np.random.default_rng(0).choice(at, MOST_PAIRS, replace=False))
    return item[at], item[at + 1]


def _earned(data: Prepared) -> np.ndarray:
    """Reward of each item in the training split beyond the mean reward: [V]."""
    item, reward = (np.asarray(data["train"].arrays[name]) for name in ("item", "reward"))
    total = np.bincount(item, reward, minlength=data.n_items)
    return np.asarray(total - np.bincount(item, minlength=data.n_items) * reward.mean(dtype=np.float64))
