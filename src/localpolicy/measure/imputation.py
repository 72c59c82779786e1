"""iAR@1: the reward a policy's first item would earn, were every missing rating what a factorisation says.

Imputed reward prefers collapse (a policy that shows two films to everyone can score highest), and depends on the
imputation more than on the policy: it is always shown beside coverage, entropy and the imputation's own quality.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file, save_file

from localpolicy.data.store import SPLITS, Prepared
from localpolicy.errors import DataError
from localpolicy.measure.estimate import Estimate, mean_estimate
from localpolicy.measure.factorisation import FactorisationConfig, Factors, Ratings, factorise
from localpolicy.measure.score import Scores
from localpolicy.runtime.files import read_json, write_json
from localpolicy.runtime.folders import whole_folder

HELD_OUT = 0.05  # share of known ratings that measure the imputation


@dataclass(frozen=True)
class Imputation:
    """Imputed ratings of every sequence of a data set, and how good they are."""

    factors: Factors
    quality: dict[str, float]
    config: FactorisationConfig
    data: str  # digest

    def to_dict(self) -> dict[str, Any]:
        """What `--json` says of it."""
        return {"quality": self.quality, "config": self.config.model_dump()}

    def save(self, folder: Path | str) -> None:
        """Write it as a folder."""
        with whole_folder(Path(folder)) as partial:
            save_file({"users": self.factors.users, "items": self.factors.items}, partial / "factors.safetensors")
            write_json(partial / "imputation.json", {**self.to_dict(), "data": self.data})

    @classmethod
    def load(cls, folder: Path | str) -> Imputation:
        """Read what `save` wrote."""
        folder = Path(folder)
        about, arrays = read_json(folder / "imputation.json"), load_file(folder / "factors.safetensors")
        config = FactorisationConfig.parse(about["config"])
        return cls(Factors(arrays["users"], arrays["items"], config.missing), about["quality"], config, about["data"])


def ratings_of(data: Prepared) -> Ratings:
    """Every known rating of every split, the latest where a pair was rated twice. A sequence is a user."""
    values = np.array([_rating(name) for name in data.events])
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


def _rating(name: str) -> float:
    try:
        return float(name)
    except ValueError:
        return np.nan


def impute(data: Prepared, config: FactorisationConfig | None = None) -> Imputation:
    """Fit to all known ratings; measured by another fit that some were held out of."""
    config = config or FactorisationConfig()
    ratings = ratings_of(data)
    held_out = np.random.default_rng(config.seed).random(len(ratings.user)) < HELD_OUT
    quality = measure(factorise(ratings.only(~held_out), config), ratings, held_out)
    return Imputation(factorise(ratings, config), quality, config, data.digest)


def measure(factors: Factors, ratings: Ratings, held_out: np.ndarray) -> dict[str, float]:
    """Error and order on held-out ratings, beside what an item's mean rating would give."""
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


def imputed_reward(scores: Scores, imputation: Imputation, data: Prepared, split: str) -> Estimate:
    """iAR@1 = mean of the imputed reward of the policy's first item."""
    if imputation.data != data.digest:
        raise DataError("the imputed ratings belong to other data: fit them again in another folder.")
    before = 0 if data.holds_out_last else sum(len(data[name]) for name in SPLITS[: SPLITS.index(split)])
    rating = imputation.factors.at(scores.sequence + before, scores.top)
    return mean_estimate(reward_of_rating(rating), scores.sequence)


def imputation_at(folder: Path | str, data: Prepared) -> Imputation:
    """The imputation in `folder`; fitted and written there where there is none."""
    folder = Path(folder)
    if (folder / "imputation.json").exists():
        return Imputation.load(folder)
    imputation = impute(data)
    imputation.save(folder)
    return imputation
