"""Self-supervised Q-learning (Xin et al. 2020): cross-entropy with a TD loss on the same backbone.

The weights are 1, so the policy head estimates μ, while Q trains the backbone, too; with Q on the same backbone it is
the natural carrier of the β dial. Departures: all positions are trained; see also `critic`.
"""

from __future__ import annotations

from localpolicy.objectives.critic import TDObjective
from localpolicy.objectives.logging_policy import logging_loss
from localpolicy.objectives.objective import unweighted
from localpolicy.types import Readout, Reads, Terms


class SQN(TDObjective):
    """Cross-entropy, with a TD loss on the same backbone."""

    name = "sqn"
    capturable = True
    estimates_logging = True

    def reads(self) -> Reads:
        """Fields of the TD loss."""
        return self.td_reads()

    def terms(self, readout: Readout) -> Terms:
        """-log π(a|x) + λ TD²."""
        return unweighted(readout.logp, td=self.td_loss(readout), **logging_loss(readout))
