"""iAR@1: the reward a policy's first item would earn, were every missing rating what a factorisation says.

Imputed reward prefers collapse (a policy that shows two films to everyone can score highest), and depends on the
imputation more than on the policy: it is always shown with coverage, entropy and the imputation's own quality.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import Field
from safetensors.torch import load_file, save_file
from torch import Tensor

from localpolicy.data.rewards import is_rating
from localpolicy.data.store import SPLITS, Prepared
from localpolicy.errors import DataError
from localpolicy.measure.position_metrics import Scores
from localpolicy.runtime.files import read_json, write_json
from localpolicy.runtime.folders import whole_folder
from localpolicy.runtime.progress import progress
from localpolicy.settings import Settings

GATHERED = 1 << 16  # factor rows gathered at once: blocks this small are used again by the allocator
SOLVED = 1024  # rows solved at once


class FactorisationConfig(Settings):
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
        """Ratings at the entries where `chosen` is true."""
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
    """Ratings in CSR format by user or by item, with one padding entry at the end."""

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
        """Yield batches of rows of similar length: rows [b], lengths [b], and positions of their entries [b, L]."""
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
    """min Σ_ui W_ui ((R_ui - m - p_u·q_i)² + λ (|p_u|² + |q_i|²)) by alternating least squares.

    W_ui is 1 where a rating is known, and w where R_ui is m, since it is missing.
    """
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


HELD_OUT = 0.05  # share of known ratings that measure the imputation


@dataclass(frozen=True)
class Imputation:
    """Imputed ratings of every sequence of a data set, with their error on held-out ratings."""

    factors: Factors
    quality: dict[str, float]
    config: FactorisationConfig
    data: str  # digest

    def to_dict(self) -> dict[str, Any]:
        return {"quality": self.quality, "config": self.config.model_dump()}

    def save(self, folder: Path | str) -> None:
        with whole_folder(Path(folder)) as partial:
            save_file({"users": self.factors.users, "items": self.factors.items}, partial / "factors.safetensors")
            write_json(partial / "imputation.json", {**self.to_dict(), "data": self.data})

    @classmethod
    def load(cls, folder: Path | str) -> Imputation:
        """Read an imputation that `save` wrote."""
        folder = Path(folder)
        about, arrays = read_json(folder / "imputation.json"), load_file(folder / "factors.safetensors")
        config = FactorisationConfig.parse(about["config"])
        return cls(Factors(arrays["users"], arrays["items"], config.missing), about["quality"], config, about["data"])


def ratings_of(data: Prepared) -> Ratings:
    """All known ratings of all splits, the latest of each pair; a sequence is a user."""
    values = np.array([float(name) if is_rating(name) else np.nan for name in data.events])
    if np.isnan(values).all():
        raise DataError(
            f"{data.path} holds no ratings (its events are {', '.join(data.events)}), so no reward can be imputed."
        )
    lengths = np.concatenate([np.diff(data[split].offsets) for split in data.whole_splits])
    user = np.repeat(np.arange(len(lengths)), lengths)
    item = np.concatenate([data[split].arrays["item"] for split in data.whole_splits]).astype(np.int64)
    value = values[np.concatenate([data[split].arrays["event"] for split in data.whole_splits])]
    rated = ~np.isnan(value)
    user, item, value = user[rated], item[rated], value[rated]
    _, last = np.unique((user * data.n_items + item)[::-1], return_index=True)
    chosen = len(user) - 1 - last
    return Ratings(user[chosen], item[chosen], value[chosen], len(lengths), data.n_items)


def impute(data: Prepared) -> Imputation:
    """Fit to all known ratings; measured by another fit that some were held out of."""
    config, ratings = FactorisationConfig(), ratings_of(data)
    held_out = np.random.default_rng(config.seed).random(len(ratings.user)) < HELD_OUT
    quality = measure(factorise(ratings.only(~held_out), config), ratings, held_out)
    return Imputation(factorise(ratings, config), quality, config, data.digest)


def measure(factors: Factors, ratings: Ratings, held_out: np.ndarray) -> dict[str, float]:
    """Error and rank order of the factors on held-out ratings, next to those of item means."""
    known, test = ratings.only(~held_out), ratings.only(held_out)
    counts = np.bincount(known.item, minlength=ratings.n_items)
    overall = known.value.mean()
    means = (np.bincount(known.item, weights=known.value, minlength=ratings.n_items) + overall) / (counts + 1)
    predicted = {"": factors.at(test.user, test.item), "item mean ": means[test.item]}
    errors = {f"{name}rmse": float(np.sqrt(((value - test.value) ** 2).mean())) for name, value in predicted.items()}
    errors |= {f"{name}order": concordance(test, value) for name, value in predicted.items()}
    return {**errors, "held out": float(len(test.user))}


def concordance(test: Ratings, predicted: np.ndarray) -> float:
    """Share of neighbouring pairs of one user's unequal ratings that are put in the right order; ties count half."""
    order = np.argsort(test.user, kind="stable")
    same = test.user[order[1:]] == test.user[order[:-1]]
    first, second = order[1:][same], order[:-1][same]
    truth = np.sign(test.value[first] - test.value[second])
    unequal = truth != 0
    guess = np.sign(predicted[first] - predicted[second])
    agreement = (1 + (truth * guess)[unequal]) / 2
    return float(agreement.mean()) if unequal.any() else 0.5


def reward_of_rating(rating: np.ndarray) -> np.ndarray:
    """clip((R - 2) / 2, 0, 1): 1 and 2 earn nothing, 3 half, 4 and 5 all, and linear between."""
    return np.clip((rating - 2) / 2, 0.0, 1.0)


def imputed_rewards(scores: Scores, imputation: Imputation, data: Prepared, split: str) -> np.ndarray:
    """Imputed reward of the policy's first item at each position [N]; iAR@1 is their mean."""
    if imputation.data != data.digest:
        raise DataError("the imputed ratings belong to other data: fit them again in another folder.")
    before = 0 if data.holds_out_last else sum(len(data[name]) for name in SPLITS[: SPLITS.index(split)])
    rating = imputation.factors.at(scores.sequence + before, scores.top)
    return reward_of_rating(rating)


def imputation_at(folder: Path | str, data: Prepared) -> Imputation:
    """Load the imputation in `folder`; fit it and write it there if there is none."""
    folder = Path(folder)
    if (folder / "imputation.json").exists():
        return Imputation.load(folder)
    imputation = impute(data)
    imputation.save(folder)
    return imputation
