"""Exact probability of each item at each place of a drawn list, for the value of lists of another law.

Every item has an exponential clock of rate exp(l(a)); the order in which they ring is the list. Item a stands at place
j if it rings while exactly j - 1 others have: P(a at j) = ∫ w_a e^{-w_a t} P(j - 1 of the others rang before t) dt. How
many others rang follows a Poisson binomial law. The integral is a sum over log t.

A list's value by places assumes that place k is examined with probability c_k whatever stands elsewhere:
E Σ_j W r_j with W = Σ_k c_k π(a at k) / Σ_k c_k μ(a at k). Weights are capped plainly: that can only lower a value.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

STEP = 0.4  # of log t
BEFORE, AFTER = 16.0, 4.0  # of log t, around the times at which the first and the last place are taken
NEVER = 1e-10  # items with a smaller probability of ringing are left out
CELLS = 1 << 16


def place_chances(logits: np.ndarray, asked: np.ndarray, places: int) -> np.ndarray:
    """P(item at place) [B, S, K] of items `asked` [B, S] (-1: none) under the law with logits [B, C]."""
    found = np.zeros((*asked.shape, places))
    step = max(1, CELLS // (places * 128))
    for start in range(0, len(logits), step):
        found[start : start + step] = _chances(logits[start : start + step], asked[start : start + step], places)
    return found


def _chances(logits: np.ndarray, asked: np.ndarray, places: int) -> np.ndarray:
    weight = np.exp(logits - logits.max(1, keepdims=True))  # [B, C]; 0 at what may not stand anywhere
    here = np.maximum(asked, 0)
    mine = np.where(asked >= 0, np.take_along_axis(weight, here, 1), 0.0)  # [B, S]
    last = np.log(_time_of(weight, places).max())
    time = np.exp(np.arange(-BEFORE, last + AFTER, STEP))
    np.put_along_axis(weight, here, np.where(asked >= 0, 0.0, np.take_along_axis(weight, here, 1)), 1)
    others = -np.sort(-weight, axis=1)
    counts = np.zeros((places, len(logits), len(time)))
    counts[0] = 1.0
    for item in range(np.count_nonzero(others.max(0) * time[-1] > NEVER)):  # how many of those not asked for rang
        _ring(counts, -np.expm1(-others[:, item, None] * time))
    rang = -np.expm1(-mine.T[:, :, None] * time)  # [S, B, T]
    found = np.zeros((*asked.shape, places))
    for item, rest in _left_out(counts, rang, np.arange(asked.shape[1])):
        rate = mine[:, item, None] * time
        found[:, item] = np.einsum("bt,kbt->bk", rate * np.exp(-rate) * STEP, rest)
    return found


def _ring(counts: np.ndarray, chance: np.ndarray) -> None:
    """Add a clock that rang with probability `chance` [B, T] to the distribution of the number that rang [K, B, T]."""
    moved = counts * chance
    counts -= moved
    counts[1:] += moved[:-1]


def _left_out(counts: np.ndarray, rang: np.ndarray, items: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield, for each of some items, the distribution of the number of all others that rang."""
    if len(items) == 1:
        yield int(items[0]), counts
        return
    left, right = np.array_split(items, 2)
    for mine, others in ((left, right), (right, left)):
        rest = counts.copy()
        for other in others:
            _ring(rest, rang[other])
        yield from _left_out(rest, rang, mine)


def _time_of(weight: np.ndarray, places: int) -> np.ndarray:
    """Return the time [B] at which `places` clocks are expected to have rung: about when the last place is taken."""
    low, high = np.zeros(len(weight)), np.full(len(weight), 60.0)  # of log t
    aim = np.minimum(places, 0.999 * (weight > 0).sum(1))
    for _ in range(30):
        middle = (low + high) / 2
        short = -np.expm1(-weight * np.exp(middle)[:, None]).sum(1) < aim
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return np.asarray(np.exp(high))
