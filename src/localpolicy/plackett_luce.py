"""Lists drawn from given scores, with the probability of every place: numpy alone, in tens of microseconds.

The distribution is Plackett and Luce's: with logits l, place j takes open item a with probability

    exp(l(a)) / Σ_{b open} exp(l(b)).

An exponential clock of rate exp(l(a)) for every item draws from it: the order in which they ring is the list (Yellott
1977). Noise and sums stay in logarithms, so no temperature is too small. Whole catalogues: see `serving/sampling.py`.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np

from localpolicy.errors import ConfigError, DataError, deprecated

FARTHEST = 1e150  # of scores from each other: squares of more overflow
_own: list[np.random.Generator] = []  # generator of this process: a forked one must not repeat its parent's draws
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_own.clear)


class Ranked(NamedTuple):
    """A list, and the probability of each of its places."""

    order: np.ndarray  # [k] positions among the candidates
    propensities: np.ndarray  # [k] of each place, given the places above it; 1 at pinned places


def rerank(
    scores: Any,
    k: int,
    *,
    temperature: float,
    pinned: int = 0,
    smoothing: float = 0.0,
    exclude: Any = None,
    standardise: bool = False,
    rng: np.random.Generator | None = None,
    floor: float = 0.0,
) -> Ranked:
    """Draw k of the candidates by softmax(scores / temperature), without replacement; with their propensities.

    The best `pinned` keep their places. `exclude` holds positions that may not be shown (sold out, seen): leave them
    out here, never after the draw, and log the others as candidates. `standardise` divides scores by their standard
    deviation within this request first; temperature 0.1 then costs about 1 % of the clicks.

    `smoothing` s draws by p = (1 - s) softmax + s / n instead, place by place without replacement; log p as the
    candidates' `probabilities` then. Below the first places of a peaked ranker little is left of softmax, and s rules:
    it is not the service's `floor`, a share of every place. `floor` is its old name here.
    """
    if floor:
        deprecated("rerank(floor=…)", instead="smoothing=…, the same under its own name", until="0.4")
        smoothing = floor
    try:
        given = np.asarray(scores, np.float64)
    except (TypeError, ValueError):
        raise DataError("scores must be numbers, one for each candidate.") from None
    if given.ndim != 1:
        raise DataError(f"scores must be one list of numbers, got an array of shape {given.shape}.")
    open_ = None if exclude is None else np.setdiff1d(np.arange(len(given)), checked_positions(exclude, len(given)))
    logits = law(given if open_ is None else given[open_], temperature=temperature, standardise=standardise)
    check_places(k, pinned, len(logits))
    pins = best(logits, pinned) if pinned else None
    order, propensities = draw(logits if not smoothing else _smoothed(logits, smoothing), k, pins=pins, rng=rng)
    return Ranked(order if open_ is None else open_[order], propensities)


def law(scores: np.ndarray, *, temperature: float, standardise: bool = False) -> np.ndarray:
    """Logits of given scores: (s - max s) / τ, after standardising s within the request if `standardise`."""
    if isinstance(temperature, str) or not 0 < temperature < np.inf:
        raise ConfigError(
            f"temperature must be a number greater than 0, got {temperature}. For your own order without a draw: "
            "pinned=k."
        )
    if not len(scores):
        raise DataError("no candidate is left: pass at least one score, or exclude fewer.")
    largest = scores.max()
    span = float(largest) - float(scores.min())
    if not span <= FARTHEST:  # NaN included
        where = np.flatnonzero(~np.isfinite(scores))
        which = f"score {where[0]} is {scores[where[0]]}" if len(where) else "they are too far apart"
        raise DataError(f"scores must be finite numbers: {which}. Leave such candidates out.")
    if standardise:
        if span == 0 and len(scores) > 1:
            raise DataError("all scores are equal, so there is no scale to standardise by: pass standardise=False.")
        temperature *= scores.std() or 1.0
    logits: np.ndarray = (scores - largest) / temperature
    if not np.isfinite(span / temperature):
        raise ConfigError(f"temperature {temperature:g} is too small for scores that lie {span:g} apart.")
    return logits


def draw(
    logits: np.ndarray,
    k: int,
    *,
    pins: np.ndarray | None = None,
    rng: np.random.Generator | None = None,
) -> Ranked:
    """Draw k positions: `pins` first, in their order, then by exp(logits) among the others."""
    if pins is None:
        return _drawn(logits, k, rng)
    rest = np.setdiff1d(np.arange(len(logits)), pins)
    order, propensities = _drawn(logits[rest], k - len(pins), rng)
    return Ranked(np.concatenate([pins, rest[order]]), np.concatenate([np.ones(len(pins)), propensities]))


def _drawn(logits: np.ndarray, k: int, rng: np.random.Generator | None) -> Ranked:
    if not k:
        return Ranked(np.empty(0, np.int64), np.empty(0))
    keys = clocks(len(logits), rng) - logits
    chosen = keys.argpartition(k - 1) if k < len(keys) else np.arange(len(keys))
    order = chosen[:k]
    order = order[keys[order].argsort()]
    return Ranked(order, chances(logits[order], logits[chosen[k:]]))


def clocks(size: int, rng: np.random.Generator | None = None) -> np.ndarray:
    """Logarithms of exponential times of rate 1: minus l, those of rate exp(l). The smallest rings first."""
    if rng is None:
        rng = _own[0] if _own else None
        if rng is None:
            _own.append(rng := np.random.default_rng())
    return -rng.gumbel(size=size)


def chances(taken: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """P(place j | places above) of a list with logits `taken` [k]; `rest` holds the logits of the other open items."""
    left = np.empty(len(taken) + 1)
    left[0] = -np.inf
    if len(rest):
        largest = rest.max()
        left[0] = largest + np.log(np.exp(rest - largest).sum())
    left[1:] = taken[::-1]
    left = np.logaddexp.accumulate(left)[:0:-1]
    return np.exp(taken - left)


def _smoothed(logits: np.ndarray, smoothing: float) -> np.ndarray:
    """log((1 - s) softmax(l) + s / n)."""
    if not 0 <= smoothing <= 1:
        raise ConfigError(f"smoothing must be a share between 0 and 1, got {smoothing}.")
    weight = np.exp(logits - logits.max())
    mixed: np.ndarray = np.log((1 - smoothing) * weight / weight.sum() + smoothing / len(weight))
    return mixed


def best(scores: np.ndarray, count: int) -> np.ndarray:
    """Positions of the `count` best scores, best first; of equal ones the earlier."""
    found: np.ndarray = np.argsort(-scores, kind="stable")[:count]
    return found


def check_places(k: int, pinned: int, left: int) -> None:
    """Raise DataError unless k places, some of them pinned, can be filled from the candidates that are left."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer):
        raise DataError(f"k must be a whole number, got {k!r}.")
    if not 1 <= k <= left:
        raise DataError(f"k must be between 1 and {left} (the candidates that may be shown), got {k}.")
    if not 0 <= pinned <= k:
        raise DataError(f"pinned must be between 0 and k = {k}, got {pinned}.")


def checked_positions(positions: Any, size: int) -> np.ndarray:
    """Positions of candidates, given as positions or as a mask; DataError for anything else."""
    found = np.asarray(positions)
    if found.dtype == bool:
        if found.shape != (size,):
            raise DataError(f"exclude as a mask must have one entry per score ({size}), got shape {found.shape}.")
        return np.flatnonzero(found)
    if not len(found):
        return np.empty(0, np.int64)
    if found.dtype.kind not in "iu" or found.min() < 0 or found.max() >= size:
        raise DataError(f"exclude must hold positions from 0 to {size - 1}, or be a mask.")
    return found
