"""Scores of exported baselines without torch and scipy: popularity, item-kNN, ALS and fixed orders.

    π(a|x) ∝ (1 - ε) s(a|x) + ε p(a),     s(a|x) ∝ Σ_j decay^j S[x_j, a] over the latest `depth` answered items x_j

p is popularity. `item-kNN` is this law; `last item` is it with S = 1 and depth 1; `popularity` and other orders that
are the same for everybody have no s. `ALS` is log π(a|x) = x·y_a / τ, with x folded in (see `model.fold_in`).
`model.baselines` defines them and fits them; here they only answer. One file holds the numbers:

    baseline.npz   share [V]; for item-kNN the rows of S as data, indices, indptr (compressed sparse rows); for ALS the
                   factors [V, K]
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from localpolicy.model.fold_in import EXACT, fold_in


class BaselineScorer:
    """Scores [B, V] of a baseline for padded histories, as an exported graph gives them."""

    def __init__(self, arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> None:
        self.share = np.asarray(arrays["share"], np.float32)
        self.codes = np.array(settings["codes"], np.int64)  # codes of events that count as answers
        self.depth: int = settings["depth"]
        self.decay: float = settings["decay"]
        self.background: float = settings["background"]  # ε
        self.neighbours = {name: arrays[name] for name in ("data", "indices", "indptr") if name in arrays}
        self.factors = arrays.get("factors")
        if self.factors is not None:
            self.temperature, self.alpha = float(settings["temperature"]), float(settings["alpha"])
            self._gram = self.factors.T @ self.factors + settings["ridge"] * np.eye(self.factors.shape[1])
        self._base = np.log(self.share if self.depth == 0 else np.float32(self.background) * self.share)

    @classmethod
    def load(cls, path: Path, settings: Mapping[str, Any]) -> BaselineScorer:
        """Load the arrays from an export."""
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return cls({name: arrays[name] for name in arrays.files}, settings)

    def logits(self, items: np.ndarray, events: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Unnormalised log π(·|x): (items [B, T], events [B, T], lengths [B]) -> [B, V]."""
        if self.factors is not None:
            return self._folded(items, events, lengths)
        logits = np.repeat(self._base[None], len(items), axis=0)
        for row, length in enumerate(lengths if self.depth else ()):
            answered = self._answered(items[row, :length], events[row, :length])
            near, weight = self._near(answered)
            if len(near):
                weight = (1 - self.background) * weight / weight.sum() + self.background * self.share[near]
                logits[row, near] = np.log(weight)
        return logits

    def _answered(self, past: np.ndarray, code: np.ndarray) -> np.ndarray:
        """Return the latest `depth` items that were answered, the latest first."""
        return np.asarray(past[np.isin(code, self.codes) & (past >= 0)][: -self.depth - 1 : -1])

    def _folded(self, items: np.ndarray, events: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """x·y_a / τ; popularity for a history without answers."""
        assert self.factors is not None
        taken = [self._answered(items[row, :length], events[row, :length]) for row, length in enumerate(lengths)]
        row, item = np.repeat(np.arange(len(taken)), [len(each) for each in taken]), np.concatenate([*taken, []])
        people = fold_in(
            self.factors, self._gram, row, item.astype(np.int64), len(taken), alpha=self.alpha, steps=EXACT
        )
        logits = people @ self.factors.T / self.temperature
        logits[[not len(each) for each in taken]] = np.log(self.share)
        return np.asarray(logits, np.float32)

    def _near(self, answered: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the neighbours of the answered items (latest first), each once, and Σ_j decay^j S[x_j, a] of them."""
        if not self.neighbours:
            return answered, np.ones(len(answered))
        data, indices, indptr = (self.neighbours[name] for name in ("data", "indices", "indptr"))
        parts = [slice(indptr[item], indptr[item + 1]) for item in answered]
        if not parts:
            return np.empty(0, np.int64), np.empty(0)
        near, inverse = np.unique(np.concatenate([indices[part] for part in parts]), return_inverse=True)
        weights = np.concatenate([self.decay**lag * data[part] for lag, part in enumerate(parts)])
        return near, np.bincount(inverse.ravel(), weights=weights, minlength=len(near))
