"""Critics of a ranker's lists: the probability that an item is answered, given request, item and score.

    log-odds = f(request, item, score) + e(place)

They see the place, so that f measures reward and not exposure: a layer uses f at the first place. Rewards between 0
and the largest count as that share of an answer (a quasi-likelihood: its optimum is the mean). Two forms: a crossed
logistic regression (every column, every pair of a request's and an item's column) and boosted trees (LightGBM).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from localpolicy.errors import ConfigError, RunError
from localpolicy.ranker.features import Coding, Seen

if TYPE_CHECKING:  # a layer serves without scipy
    from scipy import sparse

BUCKETS = 1 << 16  # hash buckets of a pair of columns with more combinations
RIDGES = (1.0, 10.0, 100.0)  # penalties to choose from; of weights, never of places
STEPS = 200  # of L-BFGS at most
MIXING = 0x9E3779B1  # spreads pairs of codes over buckets


class Critic(Protocol):
    """Interface of a model that scores candidates."""

    name: ClassVar[str]

    def log_odds(self, seen: Seen) -> np.ndarray:
        """Return the log-odds of an answer to each candidate at its place [R]."""

    def save(self, folder: Path) -> None:
        """Write the critic's file into `folder`."""


def log_loss(log_odds: np.ndarray, label: np.ndarray, weight: np.ndarray) -> float:
    """Weighted mean of -[y log p + (1 - y) log(1 - p)]."""
    return float(np.average(np.logaddexp(0, log_odds) - label * log_odds, weights=weight))


class Crossed:
    """Logistic regression on one-hot codes, their crosses, numbers and their products."""

    name = "logistic"
    FILE = "logistic.npz"

    def __init__(self, codings: tuple[Coding, ...], places: int) -> None:
        self.places = places
        request = [number for number, one in enumerate(codings) if one.of_request]
        others = [number for number, one in enumerate(codings) if not one.of_request]
        self.pairs = [(a, b) for a in request for b in others]
        sizes = [one.codes for one in codings]
        self.sizes = [*sizes, *(min(sizes[a] * sizes[b], BUCKETS) for a, b in self.pairs)]
        self.codes = sizes
        self.starts = np.concatenate([[places], places + np.cumsum(self.sizes)]).astype(np.int64)
        numeric = {
            number: place for place, number in enumerate(n for n, one in enumerate(codings) if one.names is None)
        }
        self.products = [(numeric[a], numeric[b]) for a, b in self.pairs if a in numeric and b in numeric]
        self.size = int(self.starts[-1]) + len(numeric) + len(self.products)
        self.weights = np.zeros(self.size)

    def _crossed(self, codes: np.ndarray) -> np.ndarray:
        """Return the index of the weight of each one-hot feature, crosses included [R, H]."""
        found = np.empty((len(codes), len(self.sizes)), np.int64)
        found[:, : len(self.codes)] = codes
        for number, (a, b) in enumerate(self.pairs, len(self.codes)):
            pair = codes[:, a].astype(np.int64) * self.codes[b] + codes[:, b]
            if self.codes[a] * self.codes[b] > BUCKETS:
                pair = (pair * MIXING % (1 << 32)) >> 16
            found[:, number] = pair
        return found + self.starts[:-1]

    def _numbers(self, numbers: np.ndarray) -> np.ndarray:
        products = [(numbers[:, a] * numbers[:, b])[:, None] for a, b in self.products]
        return np.concatenate([numbers, *products], 1)

    def log_odds(self, seen: Seen) -> np.ndarray:
        """Return the log-odds of an answer to each candidate at its place [R]."""
        places = self.weights[np.minimum(seen.place, self.places - 1)]
        one_hot = self.weights[self._crossed(seen.codes)].sum(1)
        return np.asarray(places + one_hot + self._numbers(seen.numbers) @ self.weights[self.starts[-1] :])

    def fit(self, train: Seen, label: np.ndarray, weight: np.ndarray, held: Seen, y: np.ndarray, w: np.ndarray) -> None:
        """Maximise the penalised likelihood, with the penalty chosen on held-out rows."""
        from scipy import optimize
        from scipy.special import expit

        matrix = self._matrix(train)
        best = np.inf
        start = np.zeros(self.size)
        start[: self.places] = np.log((mean := np.clip(np.average(label, weights=weight), 1e-6, 1 - 1e-6)) / (1 - mean))
        penalised = np.arange(self.size) >= self.places
        for ridge in sorted(RIDGES, reverse=True):  # from strong to weak, each starting at the previous optimum

            def loss(theta: np.ndarray, ridge: float = ridge) -> tuple[float, np.ndarray]:
                odds = matrix @ theta
                error = weight * (expit(odds) - label)
                inside = ridge * np.where(penalised, theta, 0.0)
                value = (weight * (np.logaddexp(0, odds) - label * odds)).sum() + 0.5 * (inside * theta).sum()
                return float(value), matrix.T @ error + inside

            found = optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": STEPS})
            self.weights = start = found.x
            held_out = log_loss(self.log_odds(held), y, w)
            if held_out >= best:
                break
            best, kept = held_out, found.x
        self.weights = kept

    def _matrix(self, seen: Seen) -> sparse.csr_matrix:
        from scipy import sparse

        one_hot = self._crossed(seen.codes)
        numbers = self._numbers(seen.numbers)
        rows, width = len(one_hot), 1 + one_hot.shape[1] + numbers.shape[1]
        index = np.empty((rows, width), np.int32)
        index[:, 0] = np.minimum(seen.place, self.places - 1)
        index[:, 1 : 1 + one_hot.shape[1]] = one_hot
        index[:, 1 + one_hot.shape[1] :] = np.arange(self.starts[-1], self.size)
        values = np.ones((rows, width))
        values[:, 1 + one_hot.shape[1] :] = numbers
        starts = np.arange(rows + 1, dtype=np.int64) * width
        return sparse.csr_matrix((values.ravel(), index.ravel(), starts), shape=(rows, self.size))

    def save(self, folder: Path) -> None:
        """Write the weights."""
        np.savez(folder / self.FILE, weights=self.weights)

    @classmethod
    def load(cls, folder: Path, codings: tuple[Coding, ...], places: int) -> Crossed:
        """Load the critic from a run's folder."""
        made = cls(codings, places)
        with (folder / cls.FILE).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            weights = arrays["weights"]
        if weights.shape != (made.size,):
            raise RunError(f"{folder / cls.FILE} has {weights.shape} weights, expected {made.size}: it was altered.")
        made.weights = weights
        return made


class Trees:
    """Gradient boosted trees by LightGBM, stored in its text format."""

    name = "lightgbm"
    FILE = "lightgbm.txt"
    SETTINGS: ClassVar[dict[str, Any]] = {
        "objective": "cross_entropy", "num_leaves": 31, "learning_rate": 0.08, "min_data_in_leaf": 50, "verbose": -1,
        "num_threads": 1, "deterministic": True, "force_row_wise": True, "max_cat_threshold": 16, "cat_smooth": 20.0,
        "lambda_l2": 1.0,
    }  # fmt: skip
    ROUNDS, PATIENCE = 400, 20

    def __init__(self, codings: tuple[Coding, ...], places: int, model: Any = None) -> None:
        self.used = [number for number, one in enumerate(codings) if one.names is not None and one.name != "item"]
        self.model = model

    def _table(self, seen: Seen) -> np.ndarray:
        return np.concatenate([seen.place[:, None], seen.numbers, seen.codes[:, self.used]], 1)

    def log_odds(self, seen: Seen) -> np.ndarray:
        """Return the log-odds of an answer to each candidate at its place [R]."""
        return np.asarray(self.model.predict(self._table(seen), raw_score=True, num_threads=1))

    def fit(self, train: Seen, label: np.ndarray, weight: np.ndarray, held: Seen, y: np.ndarray, w: np.ndarray) -> None:
        """Add trees until the held-out loss improves no more."""
        lightgbm = import_lightgbm()
        first = 1 + train.numbers.shape[1]
        data = lightgbm.Dataset(self._table(train), label, weight=weight, free_raw_data=True,
                                categorical_feature=list(range(first, first + len(self.used))))  # fmt: skip
        valid = lightgbm.Dataset(self._table(held), y, weight=w, reference=data)
        stop = lightgbm.early_stopping(self.PATIENCE, verbose=False)
        self.model = lightgbm.train(self.SETTINGS, data, self.ROUNDS, valid_sets=[valid], callbacks=[stop])

    def save(self, folder: Path) -> None:
        """Write the model in LightGBM's text format."""
        (folder / self.FILE).write_text(self.model.model_to_string(num_iteration=self.model.best_iteration))

    @classmethod
    def load(cls, folder: Path, codings: tuple[Coding, ...], places: int) -> Trees:
        """Load the critic from a run's folder."""
        model = import_lightgbm().Booster(model_str=(folder / cls.FILE).read_text())
        return cls(codings, places, model)


CRITICS: dict[str, Any] = {Crossed.name: Crossed, Trees.name: Trees}


def import_lightgbm() -> Any:
    """Import LightGBM; raise ConfigError, with how to install it, if it is missing."""
    try:
        import lightgbm
    except ImportError:
        raise ConfigError("the critic 'lightgbm' needs LightGBM: pip install 'localpolicy[rank]'.") from None
    return lightgbm
