"""Self-supervised Q-learning (Xin et al. 2020): cross-entropy with a TD loss on the same backbone.

The weights are 1, so the policy head estimates μ, helped by what Q teaches the backbone; with Q beside it, it is
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
        """The TD loss's numbers."""
        return self.td_reads()

    def terms(self, readout: Readout) -> Terms:
        """-log π(a|x) + λ TD²."""
        return unweighted(readout.logp, td=self.td_loss(readout), **logging_loss(readout))
