"""k items drawn one after another without replacement, each with the probability it was really drawn with.

The law is Plackett and Luce's (Luce 1959; Plackett 1975), with an exploration floor at each place: of the n items that
are left, place j takes item a with probability

    (1 - ε) π(a) / Σ π(what is left) + ε / n.

Mixed into the weights instead, once for the whole list, ε would take over the lower places of a peaked policy, which
leaves next to nothing there: at ε = .05 lists of three lost a sixth of their reward, not a fiftieth.

Gumbel noise and a top-k draw from the same law (Yellott 1977), but cost one logarithm per item, and give the
propensity only through a second sum. Here weights are summed once, in blocks; a draw looks up one uniform number among
the block sums, then within one block. Items drawn with replacement, of which repeats are left out, have the law above:
so all places are looked up at once, and only if a peaked policy repeats itself too often is the list continued place
by place. The catalogue is read once, and the propensity is the quotient that the draw itself used: numerator and
denominator come from the same numbers. Lists with a place that the floor decides are made place by place. Filters set
weights to 0 before the draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from localpolicy.errors import ConfigError, DataError, RunError

BLOCK = 128  # items per block sum
TRIES = 2  # draws with replacement per place
LEAST_LEFT = (
    2.0**-10
)  # of all weight, at the last place: below it the remaining weight is summed again, not updated by subtraction
GROUP = 32  # items per block maximum, in the search for the top k
UNDERFLOW = 2.0**-60  # of what is left, relative to the best: below it float32 weights lose digits
SMALLEST_FLOOR = 1e-6  # of ε, where it is not 0: a smaller one shows nobody anything


class Drawn(NamedTuple):
    """B lists of K places."""

    indices: np.ndarray  # [B, K] int64
    propensity: np.ndarray  # [B, K] float64: of each place, given the places above it; 1 where nothing was drawn


def check_floor(floor: float) -> float:
    """Return ε; raise ConfigError unless it is 0 or between SMALLEST_FLOOR and 1."""
    if floor != 0 and not SMALLEST_FLOOR <= floor <= 1:  # NaN included
        raise ConfigError(f"the exploration floor must be 0 or between {SMALLEST_FLOOR:g} and 1, got {floor}.")
    return floor


def check_length(k: int, left: int) -> None:
    """Raise DataError unless a list of k items can be made of those left."""
    if not 1 <= k <= left:
        raise DataError(f"k must be between 1 and {left} (items left after filters), got {k}.")


def top(logits: np.ndarray, k: int, *, forbidden: Sequence[np.ndarray] | None = None) -> Drawn:
    """Return the k best items of each row, best first, ties by index. Deterministic, so each has propensity 1."""
    logits = _masked(logits, forbidden, k)
    size = logits.shape[1]
    index = np.empty((len(logits), k), np.int64)
    for row, values in enumerate(logits):
        if k < size:
            border = _kth_largest(values, k)
            chosen = np.flatnonzero(values >= border)
            if len(chosen) > k:
                better = np.flatnonzero(values > border)
                chosen = np.concatenate([better, np.flatnonzero(values == border)[: k - len(better)]])
        else:
            chosen = np.arange(size)
        index[row] = chosen[np.lexsort((chosen, -values[chosen]))]
    return Drawn(index, np.ones(index.shape))


def _kth_largest(values: np.ndarray, k: int) -> float:
    """Return the k-th largest number, which is in the k groups with the largest maxima (see `catalogue.largest`)."""
    groups = len(values) // GROUP
    if groups > k:
        whole = values[: groups * GROUP].reshape(GROUP, groups)
        best = np.argpartition(whole.max(0), groups - k)[groups - k :]
        values = np.concatenate([whole[:, best].ravel(), values[groups * GROUP :]])
    return float(np.partition(values, len(values) - k)[len(values) - k])


def plackett_luce(
    logits: np.ndarray,
    k: int,
    *,
    rng: np.random.Generator,
    floor: float = 0.0,
    forbidden: Sequence[np.ndarray] | None = None,
) -> Drawn:
    """Draw k items without replacement from each row of unnormalised log-probabilities [B, V]."""
    logits = _masked(logits, forbidden, k)
    weights = _Weights(logits)
    tried = weights.look_up(rng.random((len(logits), TRIES * k)))
    distinct = [list(dict.fromkeys(row))[:k] for row in tried.tolist()]
    known = np.array([len(row) for row in distinct])
    index = np.array([row + [row[0]] * (k - len(row)) for row in distinct])
    own = weights.weight[weights.rows[:, None], index].astype(np.float64)
    total = weights.sums.sum(1, keepdims=True)
    left = total - (own.cumsum(1) - own)
    with np.errstate(divide="ignore"):  # rows in which nothing is left are among the rest
        propensity = own / left
    explored = rng.random(index.shape) < floor if check_floor(floor) else np.zeros(index.shape, bool)
    known[explored.any(1)] = 0
    rest = np.flatnonzero((known < k) | (left[:, -1] < LEAST_LEFT * total[:, 0]))
    if len(rest):
        weights = _Weights(logits[rest])
        for place in range(k):
            item = weights.look_up(rng.random((len(rest), 1)))[:, 0]
            item = np.where(place < known[rest], index[rest, place], item)
            if len(rows := np.flatnonzero(explored[rest, place])):
                item[rows] = weights.any_left(rows, rng.random(len(rows)))
            index[rest, place], propensity[rest, place] = item, weights.remove(item)
    return Drawn(index, _with_floor(propensity, floor, logits))


def _with_floor(propensity: np.ndarray, floor: float, logits: np.ndarray) -> np.ndarray:
    """(1 - ε) p + ε / n at each place [B, K], n being the number of items left there."""
    if not floor:
        return propensity
    left = (logits > -np.inf).sum(1, keepdims=True) - np.arange(propensity.shape[1])
    return np.asarray((1 - floor) * propensity + floor / left)


def conditional_propensities(
    logits: np.ndarray, index: np.ndarray, *, floor: float = 0.0, forbidden: Sequence[np.ndarray] | None = None
) -> np.ndarray:
    """Return the propensities [B, K] with which `plackett_luce` would have drawn these lists: for audits."""
    logits = _masked(logits, forbidden, index.shape[1])
    weights, propensity = _Weights(logits), np.empty(index.shape)
    for position in range(index.shape[1]):
        propensity[:, position] = weights.remove(index[:, position])
    return _with_floor(propensity, check_floor(floor), logits)


def transforms(
    logits: np.ndarray,
    index: np.ndarray,
    *,
    rng: np.random.Generator,
    floor: float = 0.0,
    forbidden: Sequence[np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Randomised probability integral transforms [2, B, K] of lists, and whether each place took the best left [B, K].

    At each place, given those above: the probability of all items before the one that was taken, plus a uniform share
    of its own. If and only if `plackett_luce` drew the lists, they are independent and uniform on (0, 1) (Rosenblatt
    1952; randomised for discrete laws as in Rüschendorf 2009). Items come in two orders, for faults look different in
    each: the more probable first, and by index.
    """
    logits = _masked(logits, forbidden, index.shape[1])
    weights = _Weights(logits)
    uniform, best = np.empty((2, *index.shape)), np.empty(index.shape, bool)
    for position in range(index.shape[1]):
        item, left = index[:, position], weights.probabilities(check_floor(floor))
        own = left[weights.rows, item][:, None]
        better = np.where(left > own, left, 0).sum(1)
        equal = np.where(left == own, left, 0).sum(1)
        before = np.where(np.arange(weights.size) < item[:, None], left, 0).sum(1)
        share = rng.random((2, len(index)))
        uniform[0, :, position] = better + share[0] * equal
        uniform[1, :, position] = before + share[1] * own[:, 0]
        best[:, position] = better == 0
        weights.remove(item)
    return uniform.clip(0, 1), best


def first_place(logits: np.ndarray, *, floor: float = 0.0, forbidden: Sequence[np.ndarray] | None = None) -> np.ndarray:
    """Return the probability [B, V] of each item at the first place."""
    return _Weights(_masked(logits, forbidden, 1)).probabilities(check_floor(floor))


def _masked(logits: np.ndarray, forbidden: Sequence[np.ndarray] | None, k: int) -> np.ndarray:
    """Return the scores in float32, with -inf at forbidden items; a copy only if there are any."""
    logits = np.atleast_2d(np.asarray(logits, np.float32))
    if not (np.isfinite(logits.max()) and np.isfinite(logits.min())):  # NaN is both
        raise RunError("the policy gave a score that is not a finite number; the list was not drawn.")
    gone = [np.unique(items) for items in forbidden or ()]
    if any(len(items) for items in gone):
        logits = logits.copy()
        for row, items in enumerate(gone):
            logits[row, items] = -np.inf
    check_length(k, min((logits.shape[1] - len(items) for items in gone), default=logits.shape[1]))
    return logits


class _Weights:
    """Weights of the items not drawn yet, of B rows, and their sums over blocks. The scores are not changed."""

    def __init__(self, logits: np.ndarray) -> None:
        self.logits = logits
        rows, size = logits.shape
        self.size, self.block = size, min(BLOCK, size)
        self.blocks = -(-size // self.block)
        self.weight = np.empty((rows, self.blocks * self.block), np.float32)
        self.weight[:, size:] = 0
        self.sums = np.empty((rows, self.blocks))
        self.rows = np.arange(rows)
        self.drawn: list[np.ndarray] = []  # [B] items, place by place
        np.subtract(logits, logits.max(1, keepdims=True), out=self.weight[:, :size])
        np.exp(self.weight[:, :size], out=self.weight[:, :size])
        self._sum(self.rows)

    def _left(self, rows: np.ndarray) -> np.ndarray:
        """Mask of the items left in these rows: [R, V]."""
        left = self.logits[rows] > -np.inf
        for items in self.drawn:
            left[np.arange(len(rows)), items[rows]] = False
        return np.asarray(left)

    def any_left(self, rows: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Return an item that is left in each of these rows, at random, by uniform numbers [R]."""
        upto = self._left(rows).cumsum(1)
        return np.asarray((upto > np.floor(uniform * upto[:, -1])[:, None]).argmax(1))

    def probabilities(self, floor: float) -> np.ndarray:
        """Return the probability of each item at the next place [B, V]."""
        share = self.weight[:, : self.size] / self.sums.sum(1, keepdims=True)
        if not floor:
            return np.asarray(share)
        left = self._left(self.rows)
        return np.asarray(np.where(left, (1 - floor) * share + floor / left.sum(1, keepdims=True), 0))

    def _scale_up(self, faint: np.ndarray) -> None:
        """Rescale the remaining weights of these rows relative to their largest, against underflow."""
        left = self.logits[faint]
        for items in self.drawn:
            left[np.arange(len(faint)), items[faint]] = -np.inf
        largest = left.max(1, keepdims=True)
        some = np.isfinite(largest[:, 0])  # else no item is left, and the list is complete
        self.weight[faint[some], : self.size] = np.exp(left[some] - largest[some])
        self._sum(faint[some])

    @property
    def _blocked(self) -> np.ndarray:
        """The weights as [B, blocks, block]."""
        return self.weight.reshape(len(self.rows), self.blocks, self.block)

    def _sum(self, rows: np.ndarray) -> None:
        weight = self.weight if len(rows) == len(self.rows) else self.weight[rows]
        self.sums[rows] = weight.reshape(len(rows), self.blocks, self.block).sum(2, dtype=np.float64)

    def look_up(self, uniform: np.ndarray) -> np.ndarray:
        """Return the items [B, M] at which the cumulative remaining weight passes `uniform` [B, M] of its total."""
        upto = self.sums.cumsum(1)
        aim = uniform * upto[:, -1:]
        block = _first_above(upto[:, None], aim, self.sums[:, None])
        rows = self.rows[:, None]
        before = np.where(block > 0, upto[rows, block - 1], 0.0)
        inside = self._blocked[rows, block].astype(np.float64)
        within = _first_above(inside.cumsum(2), aim - before, inside)
        return np.asarray(block * self.block + within)

    def remove(self, item: np.ndarray) -> np.ndarray:
        """Remove these items [B] and return the share of the remaining weight that each had."""
        share = self.weight[self.rows, item] / self.sums.sum(1)
        self.weight[self.rows, item] = 0
        self.drawn.append(item)
        block = item // self.block
        self.sums[self.rows, block] = self._blocked[self.rows, block].sum(1, dtype=np.float64)
        # A peaked policy leaves next to nothing after its first places.
        faint = np.flatnonzero(self.sums.sum(1) < UNDERFLOW)
        if len(faint):
            self._scale_up(faint)
        return np.asarray(share)


def _first_above(upto: np.ndarray, aim: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Return the first column [B, M] whose cumulative sum [B, M or 1, n] exceeds the aim [B, M].

    If rounding leaves none, return the last part above 0.
    """
    column: np.ndarray = (upto > aim[..., None]).argmax(-1)
    late = ~(upto[..., -1] > aim)
    if late.any():
        last = parts.shape[-1] - 1 - (parts[..., ::-1] > 0).argmax(-1)
        column[late] = np.broadcast_to(last, column.shape)[late]
    return column
