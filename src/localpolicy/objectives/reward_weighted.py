"""Reward-weighted cross-entropy, 𝓛_μ(π) (the paper's equations 4 to 6, after Ma et al. 2019).

A lower bound of J(π) for r >= 0, tight at π = μ; its optimum is π ∝ μ r. A shift of the rewards would change that
optimum to μ (r + c), so negative rewards are refused, not shifted. Departures: none.
"""

from __future__ import annotations

from localpolicy.objectives.config import ObjectiveConfig
from localpolicy.objectives.objective import weighted
from localpolicy.types import Readout, Terms


def reward_weighted(readout: Readout, config: ObjectiveConfig) -> Terms:
    """-r log π(a|x)."""
    return weighted(readout.logp, readout.reward)
