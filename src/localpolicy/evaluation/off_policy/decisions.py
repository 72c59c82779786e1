"""Logged decisions as an estimator reads them: one importance weight and one reward each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from localpolicy.errors import DataError, nearest
from localpolicy.evaluation.score import Scores


class Decisions(NamedTuple):
    """n decisions of μ. All [n]."""

    weight: np.ndarray  # π(a|x) / μ(a|x)
    reward: np.ndarray
    sequence: np.ndarray  # decisions of one sequence are not independent
    value_taken: np.ndarray | None = None  # r̂(x, a)
    value_expected: np.ndarray | None = None  # Σ_a π(a|x) r̂(x, a)

    def at(self, chosen: np.ndarray) -> Decisions:
        """Those of some positions."""
        return Decisions(*(None if column is None else column[chosen] for column in self))  # type: ignore[arg-type]


def decisions(scores: Scores, *, propensities: str | None = None) -> Decisions | None:
    """The decisions a policy was scored on. None where the log has no propensities.

    `propensities` names a reference μ̂ whose probabilities stand for logged ones: an interaction log's μ̂ is the
    distribution of what users did, so the estimate then speaks of rewards given that they did something.
    """
    if propensities is not None:
        if propensities not in scores.logp_reference:
            raise DataError(f"no reference '{propensities}'{nearest(propensities, scores.logp_reference)}")
        log_mu = scores.logp_reference[propensities].astype(np.float64)
    elif scores.propensity is not None:
        log_mu = np.log(scores.propensity.astype(np.float64))
    else:
        return None
    logp = scores.logp.astype(np.float64)
    if scores.above is not None and propensities is None:
        logp = conditional(logp, scores.above, scores.sequence, scores.history)
    known = ~np.isnan(log_mu) & ~np.isnan(logp)
    if not known.any():
        return None
    model = [
        None if values is None else values.astype(np.float64) for values in (scores.value_taken, scores.value_expected)
    ]
    return Decisions(np.exp(logp - log_mu), scores.reward.astype(np.float64), scores.sequence, *model).at(known)


def conditional(logp: np.ndarray, above: np.ndarray, sequence: np.ndarray, history: np.ndarray) -> np.ndarray:
    """log π(a_j|x) / (1 - Σ_{i<j} π(a_i|x)): of place j of a list, given the places above it, as its propensity is.

    All places share one context, so what π gives the items above is what it was scored with at their own rows. NaN
    where one of those rows is not among the scored.
    """
    row = np.arange(len(logp))
    first = row - above
    whole = (first >= 0) & (sequence[first] == sequence) & (history[first] == history - above)
    upto = np.concatenate([[0.0], np.exp(logp).cumsum()])
    taken = upto[row] - upto[np.maximum(first, 0)]
    left = np.log1p(-np.minimum(taken, 1 - 1e-12))
    return np.where(whole, logp - np.where(above > 0, left, 0.0), np.nan)
