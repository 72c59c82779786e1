"""Weighted matrix factorisation in which every missing rating counts a little (Steck 2010, "Training and testing of
recommender systems on data missing not at random").

    min_{P,Q} Σ_{u,i} W_ui [ (R_ui - m - p_u·q_i)² + λ (|p_u|² + |q_i|²) ],

with weight 1 on known ratings, and a small weight w on the value m for all missing ones. People rate what they like,
so a fit to known ratings alone would think that everyone likes everything.

Alternating least squares never forms the matrix: with q_i over all items, the missing part of every user's normal
equations is the same w Σ_i q_i q_iᵀ, to which the known ratings add (1 - w) Σ q_i q_iᵀ (Hu, Koren and Volinsky 2008).
Departure: none in the objective; rows of similar length are solved together, padded with zeros, as one product.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from localpolicy.runtime.progress import progress
from localpolicy.settings import Settings

GATHERED = 1 << 16  # factor rows gathered at once: blocks this small are used again by the allocator
SOLVED = 1024  # rows solved at once


class FactorisationConfig(Settings):
    """How ratings are imputed."""

    rank: int = Field(50, ge=1, description="length of the factors")
    missing: float = Field(2.0, description="m, the value of a missing rating")
    weight: float = Field(0.005, gt=0, lt=1, description="w, the weight of a missing rating")
    regularisation: float = Field(0.1, gt=0, description="λ, on factors, per unit of weight")
    sweeps: int = Field(10, ge=1, description="times that both sides are solved for")
    seed: int = Field(0, ge=0, description="of the first factors")


class Ratings(NamedTuple):
    """Known ratings, one entry each; no pair occurs twice."""

    user: np.ndarray
    item: np.ndarray
    value: np.ndarray
    n_users: int
    n_items: int

    def only(self, chosen: np.ndarray) -> Ratings:
        """The entries where `chosen` is true."""
        return self._replace(user=self.user[chosen], item=self.item[chosen], value=self.value[chosen])


class Factors(NamedTuple):
    """R̂_ui = m + p_u·q_i."""

    users: Tensor  # P [U, k]
    items: Tensor  # Q [V, k]
    missing: float

    def at(self, user: np.ndarray, item: np.ndarray) -> np.ndarray:
        """R̂ at pairs [n]."""
        predicted = np.empty(len(user))
        for start in range(0, len(user), GATHERED):
            part = slice(start, start + GATHERED)
            predicted[part] = torch.linalg.vecdot(self.users[user[part]], self.items[item[part]]).double().numpy()
        return self.missing + predicted


class _Side(NamedTuple):
    """The ratings row by row (CSR). One entry more at the end is padding: it points at a row of zeros."""

    start: np.ndarray  # [rows + 1]
    column: Tensor  # [E + 1]
    value: Tensor  # [E + 1], less m
    order: np.ndarray  # [rows] longest first

    @classmethod
    def of(cls, row: np.ndarray, column: np.ndarray, value: np.ndarray, shape: tuple[int, int]) -> _Side:
        rows, columns = shape
        by_row = np.argsort(row, kind="stable")
        counts = np.bincount(row, minlength=rows)
        return cls(
            np.concatenate([[0], np.cumsum(counts)]),
            torch.from_numpy(np.append(column[by_row], columns).astype(np.int32)),
            torch.from_numpy(np.append(value[by_row], 0.0).astype(np.float32)),
            np.argsort(-counts, kind="stable"),
        )

    def groups(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(rows [b], their lengths [b], places of their entries [b, L]), the longest at most twice the shortest."""
        lengths = np.diff(self.start)[self.order]
        padding, first = len(self.value) - 1, 0
        while first < len(self.order):
            longest = max(int(lengths[first]), 1)
            similar = int(np.searchsorted(-lengths, -(longest // 2), "right")) - first
            size = max(1, min(SOLVED, GATHERED // longest, similar))
            rows, length = self.order[first : first + size], lengths[first : first + size]
            steps = np.arange(longest)
            places = np.where(steps < length[:, None], self.start[rows][:, None] + steps, padding)
            yield torch.from_numpy(rows), torch.from_numpy(length), torch.from_numpy(places)
            first += size


def factorise(ratings: Ratings, config: FactorisationConfig | None = None) -> Factors:
    """Fit by alternating least squares."""
    config = config or FactorisationConfig()
    value = ratings.value - config.missing
    by_user = _Side.of(ratings.user, ratings.item, value, (ratings.n_users, ratings.n_items))
    by_item = _Side.of(ratings.item, ratings.user, value, (ratings.n_items, ratings.n_users))
    generator = torch.Generator().manual_seed(config.seed)
    users = torch.zeros(ratings.n_users, config.rank)
    items = torch.randn(ratings.n_items, config.rank, generator=generator) * config.rank**-0.5
    with progress("imputing ratings", 2 * config.sweeps) as advance:
        for _ in range(config.sweeps):
            users = _solve(by_user, items, config)
            advance(1)
            items = _solve(by_item, users, config)
            advance(1)
    return Factors(users, items, config.missing)


def _solve(side: _Side, others: Tensor, config: FactorisationConfig) -> Tensor:
    """p = (w QᵀQ + (1 - w) Σ_known q qᵀ + λ W_u I)⁻¹ Σ_known (R - m) q, for every row; W_u = Σ_i W_ui."""
    w, everything = config.weight, len(others)
    factors = others.new_empty(len(side.order), config.rank)
    shared = w * (others.T @ others)
    padded = torch.cat([others, others.new_zeros(1, config.rank)])
    for rows, length, places in side.groups():
        known = padded[side.column[places]]  # [b, L, k]
        normal = torch.baddbmm(shared.expand(len(rows), -1, -1), known.mT, known, alpha=1 - w)
        ridge = config.regularisation * (length + w * (everything - length))
        normal.diagonal(dim1=1, dim2=2).add_(ridge[:, None])
        right = torch.bmm(known.mT, side.value[places][:, :, None])
        factors[rows] = torch.cholesky_solve(right, torch.linalg.cholesky(normal)).squeeze(2)
    return factors


def objective(ratings: Ratings, factors: Factors, config: FactorisationConfig) -> float:
    """The sum above, without forming the matrix: Σ_ui w (p·q)² = w tr(PᵀP QᵀQ), corrected at known pairs."""
    w, users, items = config.weight, factors.users.double(), factors.items.double()
    product = factors.at(ratings.user, ratings.item) - factors.missing
    missing = float(torch.trace((users.T @ users) @ (items.T @ items)))
    fit = w * missing + float(((ratings.value - config.missing - product) ** 2 - w * product**2).sum())

    def penalty(rows: Tensor, index: np.ndarray, others: int) -> float:
        count = np.bincount(index, minlength=len(rows))
        return float((torch.from_numpy(count + w * (others - count)) * (rows**2).sum(1)).sum())

    sides = penalty(users, ratings.user, len(items)) + penalty(items, ratings.item, len(users))
    return fit + config.regularisation * sides
