"""The plain model beside every critic: an item's mean return, and how generous this sequence has been so far.

    Ĝ(x,a) = m(a) + c · u(x),    u(x) = Σ_{k<t} (r_k - r̄(a_k)) / (t + 20)

m and r̄ are items' mean returns and rewards in the training split, shrunk to those of all (see `credibility`); c is
fitted there by least squares. A critic is a network. Where it does not predict held-out returns better than this, it
has learnt nothing that two columns of averages do not say.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from localpolicy.data.batches import Windows
from localpolicy.measure.credibility import credible_means
from localpolicy.measure.estimate import finite
from localpolicy.measure.off_policy.reward_model import PRIOR
from localpolicy.model.readout import critic_targets


class ReturnsLog(NamedTuple):
    """One number per decision, in order within its sequence: all [n]."""

    sequence: np.ndarray
    item: np.ndarray
    reward: np.ndarray  # as at the first place of a list
    returns: np.ndarray  # likewise: see `critic_targets`
    weight: np.ndarray  # of a squared error


class PlainCritic(NamedTuple):
    """The model, fitted."""

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
    def said(self) -> str | None:
        """A warning, where one is due."""
        if self.critic < self.plain:
            return None
        return (
            f"the critic does not predict returns better than item and user means do (held-out squared error "
            f"{self.critic:.4g}, theirs {self.plain:.4g}): more data, a smaller network or another gamma may help."
        )

    def json(self) -> dict[str, float | None]:
        """For the manifest."""
        return {name: finite(value) for name, value in self._asdict().items()}


def read_decisions(windows: Windows, *, gamma: float, batch_size: int = 4096) -> ReturnsLog:
    """The decisions of these windows, with their discounted returns."""
    columns = []
    for batch in windows.in_order(batch_size):
        at = batch.scored
        returns, weight = critic_targets(batch, gamma=gamma)
        reward = batch.reward[at] / weight.sqrt()
        columns.append((batch.sequences[batch.row[at]], batch.item[at], reward, returns, weight))
    sequence, item, *numbers = (
        np.concatenate([part.cpu().numpy() for part in column]) for column in zip(*columns, strict=True)
    )
    return ReturnsLog(sequence, item, *(column.astype(np.float64) for column in numbers))


def fit_plain(log: ReturnsLog, *, n_items: int) -> PlainCritic:
    """Means and c from training decisions."""
    mean_return, mean_reward = (
        credible_means(log.item, values, n_items=n_items, weight=log.weight) for values in (log.returns, log.reward)
    )
    user, residual = _generosity(log, mean_reward), log.returns - mean_return[log.item]
    squares = float((log.weight * user) @ user)
    return PlainCritic(
        mean_return, mean_reward, float((log.weight * user) @ residual) / squares if squares > 0 else 0.0
    )


def _generosity(log: ReturnsLog, mean_reward: np.ndarray) -> np.ndarray:
    """u(x): by how much the rewards before this decision exceeded those of their items."""
    excess = log.reward - mean_reward[log.item]
    before = np.cumsum(excess) - excess
    starts = np.flatnonzero(np.r_[True, log.sequence[1:] != log.sequence[:-1]]) if len(excess) else np.zeros(0, int)
    lengths = np.diff(np.r_[starts, len(excess)])
    first = np.repeat(starts, lengths)
    return np.asarray((before - before[first]) / (np.arange(len(excess)) - first + PRIOR))
