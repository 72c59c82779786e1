"""Heavy-tailed distributions, drawn in constant time: popularity by rank, and lengths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class PopularityLaw:
    """F(k) = (1 − exp(−(k/τn)^γ)) / (1 − exp(−τ^(−γ))): a stretched exponential over n ranks.

    Rank k (0 is the most popular) has probability F(k+1) − F(k). PopularityLaw in real shops bends downwards in a
    log-log plot, where Zipf's law is straight: γ sets the slope of the head (1 − γ), τ the share of the catalogue
    at which it bends. F has a closed inverse, so there is no table, and `n` may differ from draw to draw: one law
    serves categories of many sizes.
    """

    stretch: float  # γ
    scale: float  # τ

    def _tail(self, k: np.ndarray, n: np.ndarray | int) -> np.ndarray:
        """exp(−(k/τn)^γ)."""
        return np.asarray(np.exp(-((k / (self.scale * np.asarray(n))) ** self.stretch)))

    def probability(self, rank: np.ndarray, n: np.ndarray | int) -> np.ndarray:
        """F(rank + 1) − F(rank)."""
        mass = 1 - self._tail(np.ones(1), 1)
        return np.asarray((self._tail(rank, n) - self._tail(rank + 1, n)) / mass)

    def sample(self, uniform: np.ndarray, n: np.ndarray | int) -> np.ndarray:
        """⌊F⁻¹(uniform)⌋, a rank below n."""
        mass = 1 - self._tail(np.ones(1), 1)
        rank = self.scale * np.asarray(n) * (-np.log1p(-uniform * mass)) ** (1 / self.stretch)
        return np.asarray(np.minimum(rank.astype(np.int64), np.asarray(n) - 1))


@dataclass(frozen=True)
class Lengths:
    """P(L = k) = short[k−1] for k ≤ m; beyond, P(L > m + k) ∝ (1 + k/scale)^(−tail), cut at `longest`."""

    tail: float
    scale: float
    longest: int
    short: tuple[float, ...] = ()

    def sample(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Draw lengths [size], at least 1."""
        extra = self.scale * (rng.random(size) ** (-1 / self.tail) - 1)
        beyond = len(self.short) + 1 + np.minimum(extra, self.longest).astype(np.int64)
        which = np.searchsorted(np.cumsum(self.short), rng.random(size), "right")
        return np.minimum(np.where(which < len(self.short), which + 1, beyond), self.longest)
