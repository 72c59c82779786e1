"""Policy gradient as weighted cross-entropy: the weight is the reward-to-go (the paper's PG, section 4.2).

By design an on-policy method; off-policy its optimum is π ∝ μ E[G|x,a]. Departures: none.
"""

from __future__ import annotations

from pydantic import Field

from localpolicy.objectives.objective import Objective, weighted
from localpolicy.types import Readout, Reads, Terms


class PG(Objective):
    """Cross-entropy weighted by the reward-to-go."""

    name = "pg"
    capturable = True
    non_negative = True
    gamma: float = Field(0.5, ge=0, lt=1, description="γ: discount of later rewards")

    def reads(self) -> Reads:
        """Field of the return."""
        return Reads(frozenset({"return_to_go"}), gamma=self.gamma)

    def terms(self, readout: Readout) -> Terms:
        """-G log π(a|x), G_t = Σ_k γ^k r_{t+k}."""
        return weighted(readout.logp, readout.need("return_to_go"))
