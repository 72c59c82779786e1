"""Self-supervised actor-critic (Xin et al. 2020): cross-entropy weighted by Q, with a TD loss.

Its optimum is π ∝ μ max(Q, 0). Departures: Q < 0 is common at the start, and a negative weight would unlearn what
users chose: the weight is clamped at 0. `warmup` steps with weight 1 are an option, as in the authors' code.
"""

from __future__ import annotations

from pydantic import Field

from localpolicy.objectives.critic import TDObjective
from localpolicy.objectives.logging_policy import logging_loss
from localpolicy.objectives.objective import unweighted, weighted
from localpolicy.types import Readout, Reads, Terms


class SAC(TDObjective):
    """Cross-entropy weighted by Q, with a TD loss."""

    name = "sac"
    capturable = True
    non_negative = True
    warmup: int = Field(0, ge=0, description="steps with weight 1 before Q is trusted")

    def reads(self) -> Reads:
        """Fields of the TD loss, and Q."""
        reads = self.td_reads()
        return reads._replace(fields=reads.fields | {"q"})

    def phase(self, step: int) -> int:
        """0 before the end of the warm-up, then 1."""
        return int(step >= self.warmup)

    def terms(self, readout: Readout) -> Terms:
        """-max(Q(x,a), 0) log π(a|x) + λ TD²."""
        auxiliary = {"td": self.td_loss(readout), **logging_loss(readout)}
        if readout.step < self.warmup:
            return unweighted(readout.logp, **auxiliary)
        q = readout.need("q")
        return weighted(readout.logp, q.clamp(min=0.0), clipped=q < 0, **auxiliary)
