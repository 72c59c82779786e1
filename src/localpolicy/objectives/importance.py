"""Importance-weighted learning: `ips` (the paper's equation 9, after Chen et al. 2019) and `ips_pg` (section 4.2).

Where nothing is clipped, the gradient of -min(ρ, c) r log π with ρ = π/μ̂ held constant is that of the importance-
weighted estimate of J. There is no interior optimum: the weights follow the policy. Departures: the clip is on the
ratio (30, as in the paper); no top-K correction. μ̂ is a head trained beside the policy, a frozen run, or the
propensities of the log (`propensities=logged`). Where a frozen run cannot have taken the action, the weight is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from localpolicy.objectives.config import ObjectiveConfig
from localpolicy.objectives.logging_policy import logging_loss
from localpolicy.objectives.objective import weighted
from localpolicy.types import Readout, Terms


def reads_propensities(config: ObjectiveConfig) -> frozenset[str]:
    """Where μ(a|x) comes from."""
    return frozenset({"logged_propensity" if config.propensities == "logged" else "logp_logging"})


def _importance_weighted(readout: Readout, config: ObjectiveConfig, reward: Tensor) -> Terms:
    """-min(π/μ̂, c) · reward · log π, 0 where μ̂ = 0; and -log μ̂ where μ̂ is a head."""
    logged = config.propensities == "logged"
    log_logging = readout.need("logged_propensity").log() if logged else readout.need("logp_logging")
    ratio = (readout.logp - log_logging).detach().exp()
    # An action that a frozen μ̂ cannot take (the item is newer) was not drawn from it: there is no ratio to weigh by.
    possible = log_logging.detach() > -torch.inf
    weight = torch.where(possible, ratio.clamp(max=config.clip) * reward, 0.0)
    return weighted(readout.logp, weight, clipped=possible & (ratio > config.clip), **logging_loss(readout))


def ips(readout: Readout, config: ObjectiveConfig) -> Terms:
    """-min(π/μ̂, c) r log π."""
    return _importance_weighted(readout, config, readout.reward)


def ips_pg(readout: Readout, config: ObjectiveConfig) -> Terms:
    """-min(π/μ̂, c) G log π, G_t = Σ_k γ^k r_{t+k}: one-step correction of the policy gradient."""
    return _importance_weighted(readout, config, readout.need("return_to_go"))
