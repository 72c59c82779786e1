"""Self-supervised Q-learning (Xin et al. 2020): cross-entropy with a TD loss on the same backbone.

The weights are 1, so the policy head estimates μ, helped by what Q teaches the backbone; with Q beside it, it is
the natural carrier of the β dial. Departures: all positions are trained; see also `critic`.
"""

from __future__ import annotations

from localpolicy.objectives.config import ObjectiveConfig
from localpolicy.objectives.critic import td_loss
from localpolicy.objectives.logging_policy import logging_loss
from localpolicy.objectives.objective import unweighted
from localpolicy.types import Readout, Terms


def sqn(readout: Readout, config: ObjectiveConfig) -> Terms:
    """-log π(a|x) + λ TD²."""
    return unweighted(readout.logp, td=td_loss(readout, config), **logging_loss(readout))
