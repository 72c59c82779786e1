"""Quality of a critic: a plain model to compare it with, and its calibration on held-out actions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from localpolicy.data.batches import Windows
from localpolicy.measure.estimate import CONFIDENCE, cluster_sums, credible_means, finite, sequences_of, t_quantile
from localpolicy.measure.score import PRIOR
from localpolicy.model.readout import critic_targets
from localpolicy.types import Reads

ROUNDING = 1e-6  # relative: a few units in the last place of float32, in which critics are evaluated


class ReturnsLog(NamedTuple):
    """Decisions with rewards and returns, in order within their sequences: all [n]."""

    sequence: np.ndarray
    item: np.ndarray
    reward: np.ndarray  # as at the first place of a list
    returns: np.ndarray  # as at the first place, too: see `critic_targets`
    weight: np.ndarray  # weight of the squared error
    history: np.ndarray  # actions before this one, or before its list


class PlainCritic(NamedTuple):
    """Baseline critic: item mean return plus c times the user's past surplus reward."""

    mean_return: np.ndarray  # [V]
    mean_reward: np.ndarray  # [V]
    generosity: float  # c

    def __call__(self, log: ReturnsLog) -> np.ndarray:
        """Ĝ of every decision: [n]."""
        return np.asarray(self.mean_return[log.item] + self.generosity * _generosity(log, self.mean_reward))


class CriticError(NamedTuple):
    """Held-out mean squared errors to the observed return, of a critic and of plainer models."""

    critic: float
    plain: float
    constant: float

    @property
    def warning(self) -> str | None:
        """Warning if the critic predicts returns no better than item and user means, else None."""
        if self.critic < self.plain:
            return None
        return (
            f"the critic does not predict returns better than item and user means do (held-out squared error "
            f"{self.critic:.4g}, theirs {self.plain:.4g}): more data or a smaller network may help."
        )


def credited(windows: Windows, critic: Reads, *, repeats: bool = False) -> Windows:
    """Windows with rewards as a critic credits them: row by row, or by first interactions."""
    return windows.of_first_meetings(repeats=repeats) if critic.meetings else windows


def read_decisions(windows: Windows, *, gamma: float, batch_size: int = 4096) -> ReturnsLog:
    """Decisions of these windows, with their discounted returns."""
    columns: list[tuple[Tensor, ...]] = []
    for batch in windows.in_order(batch_size):
        at = batch.scored
        returns, weight = critic_targets(batch, gamma=gamma)
        reward = batch.credited[at] / weight.sqrt()
        history = batch.history[at if batch.context is None else batch.context[at]]
        columns.append((batch.owners[batch.row[at]], batch.item[at], reward, returns, weight, history))
    joined = (np.concatenate([part.cpu().numpy() for part in column]) for column in zip(*columns, strict=True))
    return ReturnsLog(*(each if each.dtype.kind == "i" else each.astype(np.float64) for each in joined))


def fit_plain(log: ReturnsLog, *, n_items: int) -> PlainCritic:
    """Fit the plain critic (item means and c) to training decisions."""
    mean_return, mean_reward = (
        credible_means(log.item, values, n_items=n_items, weight=log.weight) for values in (log.returns, log.reward)
    )
    user, residual = _generosity(log, mean_reward), log.returns - mean_return[log.item]
    squares = float((log.weight * user) @ user)
    return PlainCritic(
        mean_return, mean_reward, float((log.weight * user) @ residual) / squares if squares > 0 else 0.0
    )


def _generosity(log: ReturnsLog, mean_reward: np.ndarray) -> np.ndarray:
    """u(x): surplus of the rewards before each decision over the mean rewards of their items."""
    excess = log.reward - mean_reward[log.item]
    before = np.cumsum(excess) - excess
    starts = np.flatnonzero(np.r_[True, log.sequence[1:] != log.sequence[:-1]]) if len(excess) else np.zeros(0, int)
    lengths = np.diff(np.r_[starts, len(excess)])
    first = np.repeat(starts, lengths)
    return np.asarray((before - before[first]) / (np.arange(len(excess)) - first + PRIOR))


class Calibration(NamedTuple):
    """Regression of G - g(x) on Â(x,a) over held-out actions; errors are clustered by sequence."""

    slope: float
    se: float
    low: float  # lower confidence bound of the slope
    r2: float  # 1 - Var(G - g - Â) / Var(G - g): what Â explains beyond g(x), as it stands; negative: it misleads
    spread: float  # standard deviation of Â over actions of μ
    error: float  # mean squared error of Q to the return
    n: int
    sequences: int

    @property
    def factor(self) -> float:
        """Factor of Â: the lower bound of the slope, between 0 and 1."""
        return min(1.0, max(0.0, self.low)) if np.isfinite(self.low) else 0.0

    def json(self) -> dict[str, Any]:
        """The calibration as an entry of the manifest and of `--json`."""
        return {name: finite(value) for name, value in self._asdict().items()} | {"factor": self.factor}


def calibrate(
    returns: np.ndarray,
    baseline: np.ndarray,
    values: np.ndarray,
    sequence: np.ndarray,
    *,
    weight: np.ndarray | None = None,
    place: np.ndarray | None = None,
) -> Calibration:
    """b of G - g = c + b Â + e, with se² = Σ_c (Σ_{i in c} u_i e_i)² · C/(C-1) / (Σ u²)², u being Â less its mean.

    In lists c is the place's own, and squared errors have a `weight` (see `critic_targets`).
    """
    observed, advantage = returns - baseline, values - baseline
    n, sequences = len(observed), sequences_of(sequence)
    weight = np.ones(n) if weight is None else weight
    place = np.zeros(n, np.int64) if place is None else place
    error = float(np.mean(weight * (returns - values) ** 2)) if n else np.nan
    nothing = Calibration(0.0, np.inf, -np.inf, 0.0, 0.0, error, n, sequences)
    if sequences < 3:
        return nothing
    centred, outcome = (column - _means(column, weight, place)[place] for column in (advantage, observed))
    weighted = weight * centred
    squares = float(weighted @ centred)
    spread = float(np.sqrt(squares / weight.sum()))
    if not spread > ROUNDING * max(np.abs(values).max(), np.abs(returns).max()):
        return nothing  # a critic that says the same of all items: what is left is its arithmetic
    slope = float(weighted @ outcome) / squares
    sums, _ = cluster_sums(weighted * (outcome - slope * centred), sequence)
    se = float(np.sqrt((sums**2).sum() * sequences / (sequences - 1))) / squares
    low = slope - t_quantile(CONFIDENCE, sequences - 1) * se
    total = float((weight * outcome) @ outcome)
    unexplained = float((weight * (outcome - centred) ** 2).sum())
    r2 = 1 - unexplained / total if total > 0 else 0.0
    return Calibration(slope, se, low, r2, spread, error, n, sequences)


def _means(column: np.ndarray, weight: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Weighted mean of `column` over the rows of each place: one number a place."""
    if not place.any():  # summed pairwise: rounding matters less the more rows there are
        return np.array([np.average(column, weights=weight)])
    total = np.bincount(place, weights=weight)
    return np.bincount(place, weights=weight * column) / np.where(total > 0, total, 1.0)
