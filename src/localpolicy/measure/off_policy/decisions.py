"""Logged decisions as an estimator reads them: one importance weight and one reward each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from localpolicy.errors import DataError, nearest
from localpolicy.measure.score import Scores


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

    Where the log has lists or filters, π and μ̂ are those among what could be chosen, as logged propensities are.
    Decisions under a filter whose items the log does not state are left out.
    """
    if propensities is not None:
        if propensities not in scores.logp_reference:
            raise DataError(f"no reference '{propensities}'{nearest(propensities, scores.logp_reference)}")
        log_mu = (scores.logp_open_reference or scores.logp_reference)[propensities].astype(np.float64)
    elif scores.propensity is not None:
        log_mu = np.log(scores.propensity.astype(np.float64))
    else:
        return None
    logp = (scores.logp if scores.logp_open is None else scores.logp_open).astype(np.float64)
    known = ~np.isnan(log_mu) & ~np.isnan(logp)
    if not known.any():
        return None
    model = [
        None if values is None else values.astype(np.float64) for values in (scores.value_taken, scores.value_expected)
    ]
    return Decisions(np.exp(logp - log_mu), scores.reward.astype(np.float64), scores.sequence, *model).at(known)
