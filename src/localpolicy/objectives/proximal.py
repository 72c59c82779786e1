"""A proximal clip towards the logging policy, after PRPO (Gupta et al. 2024) and PPO (Schulman et al. 2017).

Climb E_μ[f(ρ, r)], ρ = π/μ̂, with f = min(ρ, ε) r for r >= 0 and max(ρ, 1/ε) r below. Since f <= ρ r it is a lower bound
of J, equal to it wherever no ratio is clipped. So its maximiser has J(π) >= J(μ), and nothing is gained by a ratio
beyond ε. For r >= 0 the maximiser is known: ρ = ε on the best actions that hold 1/ε of μ's probability, nothing
elsewhere, whatever the noise of the rewards. Hence KL(π‖μ) <= log ε.

Unlike `ips`, whose clipped actions keep a weight of c r, a clipped one has none: the gradient of a constant is 0.
Departures: PRPO clips ratios of a ranking's exposure; here one item is shown, and the ratio is of its probability.
"""

from __future__ import annotations

from pydantic import Field

from localpolicy.objectives.importance import ByRatio
from localpolicy.objectives.logging_policy import logging_loss
from localpolicy.objectives.objective import weighted
from localpolicy.types import Readout, Terms


class Proximal(ByRatio):
    """Importance weighting without an incentive to leave the logging policy's neighbourhood."""

    name = "proximal"
    capturable = True
    non_negative = False
    clip: float = Field(3.0, gt=1, description="ε: ratios π/μ̂ above it (below 1/ε, where r < 0) are not pushed on")

    def terms(self, readout: Readout) -> Terms:
        """-1[not clipped] ρ r log π."""
        ratio, reward = self.ratio(readout), readout.reward
        clipped = (ratio > self.clip).where(reward >= 0, ratio < 1 / self.clip)
        weight = (ratio * reward).where(~clipped, 0.0)
        return weighted(readout.logp, weight, clipped=clipped, **logging_loss(readout))
