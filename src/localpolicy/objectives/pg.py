"""Policy gradient as weighted cross-entropy: the weight is the reward-to-go (the paper's PG, section 4.2).

By design an on-policy method; off-policy its optimum is π ∝ μ E[G|x,a]. Departures: none.
"""

from __future__ import annotations

from localpolicy.objectives.config import ObjectiveConfig
from localpolicy.objectives.objective import weighted
from localpolicy.types import Readout, Terms


def pg(readout: Readout, config: ObjectiveConfig) -> Terms:
    """-G log π(a|x), G_t = Σ_k γ^k r_{t+k}."""
    return weighted(readout.logp, readout.need("return_to_go"))
