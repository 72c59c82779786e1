"""Position bias of a list's places: e_j of the model r(x, a, place j) = e_j · r(x, a), with e = 1 at the first.

Better items stand higher, so that means by place mix the reward of items with position bias. Chance separates them:
lists are drawn without replacement, place by place, so the same items might have stood in another order. Of a list with
item a at place i and b at place j, all else as it was, the order was one of two, and logged propensities give their
odds

    P(a before b) / P(b before a) = Π_{i <= m < j} (R_m + μ_a - μ_b) / R_m,    R_m what is open after place m.

Weighted by the probability of the order that was *not* drawn (overlap weights, Li et al. 2018: none exceeds 1), both
orders count equally, and both places hold the same items: E[w r_i] / E[w r_j] = e_i / e_j exactly, whatever the items'
rewards are. All pairs of places together give log e by least squares, with standard errors from every list's influence.
Differences are believed as far as they exceed their errors (as `credibility` does for items): if attention does not
fall, e is 1. Lists that were never drawn at random have no weight, and nothing can be estimated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

BLOCK = 1 << 15  # lists per block
MOST = 100_000  # lists used in all, evenly spaced over time: errors are a few per cent by then
NEAR = 10  # pairs of places at most so far apart: others add little information, and cost more
LEAST = 1e-3  # the smallest e, by which a reward at a place that is hardly examined is divided
UNSURE = 0.5  # standard error of log e beyond which a place's examination is not estimated


class PositionBias(NamedTuple):
    """Position bias: examination by list position relative to the first, [K] each."""

    examined: np.ndarray  # e, 1 at the first place; 1 everywhere if it cannot be estimated
    se: np.ndarray  # of log e, before shrinkage
    identifiable: bool  # whether position bias can be separated from item reward

    @property
    def warning(self) -> str | None:
        """Warning if position bias cannot be estimated, else None."""
        if self.identifiable:
            return None
        return (
            "position bias cannot be separated from item reward: the log's lists were hardly ever drawn in an order "
            "that chance decided, or state no propensities. Rewards are taken without a position bias; draw lists "
            "(rather than showing the top k) and log propensities."
        )

    def json(self) -> dict[str, Any]:
        """The examination as an entry of the manifest."""
        finite = [float(one) if np.isfinite(one) else None for one in self.se]
        return {"examined": self.examined.tolist(), "log_se": finite, "told": self.identifiable}


def examination(arrays: Mapping[str, np.ndarray]) -> PositionBias | None:
    """Estimate e of every list place from the flat arrays of a split (see `store`); None if no list has two places."""
    above = arrays.get("above")
    if above is None or not len(above) or int(above.max()) == 0:
        return None
    count = int(max(above.max(), arrays.get("place", above).max())) + 1
    unknown = PositionBias(np.ones(count), np.full(count, np.inf), False)
    if "propensity" not in arrays:
        return unknown
    pairs = _Pairs(count)
    for propensity, reward in _lists(arrays, count):
        pairs.add(propensity, reward)
    if not pairs.usable.any():
        return unknown
    place, log_ratio, pull = pairs.solve()
    squares = np.zeros(count)
    for propensity, reward in _lists(arrays, count):
        squares += (pairs.influence(propensity, reward, pull) ** 2).sum(0)
    se = np.where(place, np.sqrt(squares), np.inf)
    if not (se[place].size == count and (se <= UNSURE).all()):
        return unknown._replace(se=se)
    mean = float(log_ratio.mean())
    spread = max(float(((log_ratio - mean) ** 2).sum() / (count - 1) - (se**2).mean()), 0.0)
    believed = mean + spread / (spread + se**2) * (log_ratio - mean) if spread > 0 else np.full(count, mean)
    return PositionBias(np.maximum(np.exp(believed - believed[0]), LEAST), se, True)


def _lists(arrays: Mapping[str, np.ndarray], count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Propensities and rewards of completely logged lists, [L, K]; NaN beyond a list's end."""
    above = np.asarray(arrays["above"], dtype=np.int64)
    begins = np.flatnonzero(above == 0)
    length = np.diff(np.append(begins, len(above)))
    whole = np.ones(len(begins), bool)
    if "place" in arrays:
        whole = np.logical_and.reduceat(np.asarray(arrays["place"]) == above, begins)
    chosen = np.flatnonzero(whole & (length > 1))
    chosen = chosen[:: -(-len(chosen) // MOST) or 1]
    for start in range(0, len(chosen), BLOCK):
        rows = chosen[start : start + BLOCK]
        column = np.arange(count)
        inside = column < length[rows][:, None]
        at = np.where(inside, begins[rows][:, None] + column, 0)
        propensity, reward = (np.where(inside, arrays[name][at].astype(np.float64), np.nan)
                              for name in ("propensity", "reward"))  # fmt: skip
        known = (~inside | ((propensity > 0) & (propensity <= 1))).all(1)
        yield propensity[known], reward[known]


class _Pairs:
    """Sums over lists for every pair of places i < j: S_i = Σ w r_i and S_j = Σ w r_j."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.pairs = [(i, j) for i in range(count) for j in range(i + 1, min(count, i + NEAR + 1))]
        self.sums = np.zeros((len(self.pairs), 2))
        self.squares = np.zeros((len(self.pairs), 2))

    def add(self, propensity: np.ndarray, reward: np.ndarray) -> None:
        """Add lists to the sums."""
        for number, (i, j, weight) in enumerate(self._weights(propensity)):
            earned = weight[:, None] * np.nan_to_num(reward[:, [i, j]])
            self.sums[number] += earned.sum(0)
            self.squares[number] += (earned**2).sum(0)

    def _weights(self, propensity: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
        """P(the other order | the pair) of every list: 0 if it has no place j, or if the order was not drawn."""
        open_after = np.cumprod(1 - propensity, axis=1)  # R
        share = propensity * np.concatenate([np.ones((len(propensity), 1)), open_after[:, :-1]], axis=1)  # μ
        for i, j in self.pairs:
            left = open_after[:, i:j]
            with np.errstate(all="ignore"):
                ratio = np.log((left + (share[:, i] - share[:, j])[:, None]) / left).sum(1)
                weight = 1 / (1 + np.exp(ratio))
            yield i, j, np.where(np.isfinite(ratio) & (left > 0).all(1), weight, 0.0)

    @property
    def usable(self) -> np.ndarray:
        """Mask of the place pairs with rewards at both places."""
        return np.asarray((self.sums > 0).all(1))

    def solve(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Connected places, their log e (mean 0), and its derivative by every pair's log ratio: [K, pairs]."""
        usable = self.usable
        sums = np.where(usable[:, None], self.sums, 1.0)
        precision = np.where(usable, 1 / np.maximum((self.squares / sums**2).sum(1), 1e-12), 0.0)
        difference = np.zeros((len(self.pairs), self.count))
        for number, (i, j) in enumerate(self.pairs):
            difference[number, [i, j]] = 1, -1
        weighted = precision[:, None] * difference
        pull = np.linalg.pinv(weighted.T @ difference, rcond=1e-9) @ weighted.T
        reached = _reached(self.count, [pair for pair, here in zip(self.pairs, usable, strict=True) if here])
        return reached, pull @ np.log(sums[:, 0] / sums[:, 1]), pull

    def influence(self, propensity: np.ndarray, reward: np.ndarray, pull: np.ndarray) -> np.ndarray:
        """Influence of each list on log e: [L, K]."""
        moved = np.zeros((len(propensity), self.count))
        for number, (i, j, weight) in enumerate(self._weights(propensity)):
            if self.usable[number]:
                earned = np.nan_to_num(reward[:, [i, j]]) / self.sums[number]
                moved += (weight * (earned[:, 0] - earned[:, 1]))[:, None] * pull[:, number]
        return moved


def _reached(count: int, pairs: list[tuple[int, int]]) -> np.ndarray:
    """Return a mask of the places that pairs connect with the first."""
    reached: np.ndarray = np.arange(count) == 0
    for _ in range(count):
        for i, j in pairs:
            reached[[i, j]] |= reached[i] or reached[j]
    return reached
