"""Reward-weighted cross-entropy, 𝓛_μ(π) (the paper's equations 4 to 6, after Ma et al. 2019).

A lower bound of J(π) for r >= 0, tight at π = μ; its optimum is π ∝ μ r. A shift of the rewards would change that
optimum to μ (r + c), so negative rewards are refused, not shifted. Departures: none.
"""

from __future__ import annotations

from localpolicy.objectives.objective import Objective, weighted
from localpolicy.types import Readout, Terms


class RewardWeighted(Objective):
    """Cross-entropy weighted by the reward."""

    name = "reward_weighted"
    capturable = True
    non_negative = True

    def terms(self, readout: Readout) -> Terms:
        """-r log π(a|x)."""
        return weighted(readout.logp, readout.reward)
