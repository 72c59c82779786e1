"""Two tests of a rollout's rewards: that the candidate does harm, and that it loses no more than a margin.

Both bet on units in the order of their first lists, at any moment (see `sequential`). A is the arm, p its probability,
R the unit's reward, at least `low`. m and s² are mean and variance of the rewards before it, those of the log among
them; a loss is a share of `scale`, which is m unless it is stated.

- harm, against "the candidate earns no less, where rewards are cut at b": y = -(A - p)(min(R, b) - m). Without a log's
  quantile b is the largest reward before, which a bet may know: what a list can bring at most is far more than it does.
- no harm, against "μ₁ <= μ₀ - d·scale": for the candidate R' = R, for the current policy an upper bound of what it may
  be compared with: R' = (1 - d)(min(R, b) + e), or min(R, b) + e - d·scale where the scale is stated. e is at least
  E max(R - b, 0) of the current policy. y = (A - p)(R' - c), c between both means. E[y | past] =
  p(1 - p)(μ₁ - E R'₀) <= 0 under the hypothesis. Larger rewards of the candidate only raise y: it needs no range.

Margins are nested: who has lost no more than d has lost no more than 2d. So a candidate that loses x passes any of the
margins up to x with probability α at most, over all stages and without a correction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from localpolicy.serving.sequential import before, log_wealth

LOSSES = 0.025 * 2.0 ** np.arange(6)  # that the bets on harm are made for, as shares of the scale
NEAR = np.array([0.5, 1.0, 2.0])  # of the margin: advantages over it that the bets on no harm are made for
LEAST_REWARDED = 30  # units with a reward, before anything is bet
TINY = 1e-12


@dataclass(frozen=True)
class Known:
    """Prior knowledge of a rollout's rewards: their range, cut and excess, and the log's sums."""

    cut: float  # b
    excess: float = 0.0  # e
    tail: bool = False  # whether the current policy's rewards may lie above b, by e on average
    low: float = 0.0  # the least that a unit can bring
    scale: float | None = None  # what losses are shares of; None: the mean so far
    units: int = 0  # of the log
    total: float = 0.0  # of their rewards
    squares: float = 0.0
    rewarded: int = 0
    largest: float = 0.0


@dataclass(frozen=True)
class Level:
    """Running mean, variance and scale of the rewards before each unit, and after the last: [n + 1]."""

    mean: np.ndarray
    variance: np.ndarray
    scale: np.ndarray
    on: np.ndarray  # whether enough is known to bet

    @property
    def cv2(self) -> float | None:
        """s² / scale² after the last unit; None if too few units had a reward."""
        return float(self.variance[-1] / self.scale[-1] ** 2) if self.on[-1] else None


def level(reward: np.ndarray, known: Known) -> Level:
    """Compute running mean, variance and scale, those of the log included."""
    reward = np.append(reward, 0.0)  # its own place is not counted: the last row is after all units
    units = np.maximum(before(np.ones_like(reward), known.units), 1)
    mean = before(reward, known.total) / units
    variance = np.maximum(before(reward**2, known.squares) / units - mean**2, TINY + 0.01 * mean**2)
    on = before(reward != 0, known.rewarded) >= LEAST_REWARDED
    return Level(mean, variance, mean if known.scale is None else np.full_like(mean, known.scale), on)


def harm(arm: np.ndarray, probability: np.ndarray, reward: np.ndarray, known: Known) -> np.ndarray:
    """log wealth [n] against "cut at b, the candidate earns no less"."""
    mean, bets = _bets(reward, known, LOSSES)
    cut = known.cut if known.tail else np.minimum(known.cut, _largest_before(reward, known.largest))
    y = -(arm - probability) * (np.minimum(reward, cut) - mean)
    most = (1 - probability) * np.maximum(cut - mean, 0), probability * np.maximum(mean - known.low, 0)
    return log_wealth(y, bets, -np.maximum(*most) - TINY)


def no_harm(arm: np.ndarray, probability: np.ndarray, reward: np.ndarray, known: Known, *, margin: float) -> np.ndarray:
    """log wealth [n] against "the candidate earns less than the current policy by the margin, or by more"."""
    mean, bets = _bets(reward, known, margin * NEAR)
    kept, lost = (1 - margin, 0.0) if known.scale is None else (1.0, margin * known.scale)
    allowed = kept * (np.minimum(reward, known.cut) + known.excess) - lost
    most = kept * (known.cut + known.excess) - lost
    centre = (1 + kept) / 2 * mean - lost / 2
    y = (arm - probability) * (np.where(arm == 1, reward, allowed) - centre)
    lowest = np.maximum(probability * (most - centre), (1 - probability) * (centre - known.low))
    return log_wealth(y, bets, -np.maximum(lowest, 0) - TINY)


def _largest_before(reward: np.ndarray, start: float) -> np.ndarray:
    """Return the largest reward before each unit, at least `start`."""
    return np.maximum.accumulate(np.concatenate([[start], reward]))[: len(reward)]


def _bets(reward: np.ndarray, known: Known, effects: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean before each unit [n], and the bet on each effect, g·scale/s² [n, J]."""
    found = level(reward, known)
    size = found.on * found.scale / found.variance
    return found.mean[:-1], size[:-1, None] * effects
