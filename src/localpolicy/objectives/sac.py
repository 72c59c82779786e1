"""Self-supervised actor-critic (Xin et al. 2020): cross-entropy weighted by Q, with a TD loss.

Its optimum is π ∝ μ max(Q, 0). Departures: Q < 0 is common at the start, and a negative weight would unlearn what
users chose: the weight is clamped at 0. `warmup` steps with weight 1 are an option, as in the authors' code.
"""

from __future__ import annotations

from localpolicy.objectives.config import ObjectiveConfig
from localpolicy.objectives.critic import td_loss
from localpolicy.objectives.logging_policy import logging_loss
from localpolicy.objectives.objective import unweighted, weighted
from localpolicy.types import Readout, Terms


def sac(readout: Readout, config: ObjectiveConfig) -> Terms:
    """-max(Q(x,a), 0) log π(a|x) + λ TD²."""
    auxiliary = {"td": td_loss(readout, config), **logging_loss(readout)}
    if readout.step < config.warmup:
        return unweighted(readout.logp, **auxiliary)
    q = readout.need("q")
    return weighted(readout.logp, q.clamp(min=0.0), clipped=q < 0, **auxiliary)
