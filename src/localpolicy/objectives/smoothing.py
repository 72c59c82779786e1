"""Logarithmic smoothing (Sakhi et al. 2024): climb E_μ[log(1 + λ ρ r)] / λ, ρ = π/μ̂, instead of E_μ[ρ r] = J(π).

For r >= 0 it is a lower bound of J at every λ > 0, since log(1 + z) <= z, and tends to J as λ falls to 0. Its gradient
is that of importance weighting with ρ r replaced by ρ r / (1 + λ ρ r) < 1/λ: large ratios saturate instead of being cut
off. Departures: none; λ is `smoothing`. μ̂ comes from where `ips` has it.
"""

from __future__ import annotations

from pydantic import Field

from localpolicy.objectives.importance import ByRatio
from localpolicy.objectives.logging_policy import logging_loss
from localpolicy.objectives.objective import weighted
from localpolicy.types import Readout, Terms


class LogSmoothing(ByRatio):
    """Importance weighting of single rewards, smoothed by a logarithm."""

    name = "log_smoothing"
    capturable = True
    smoothing: float = Field(0.1, gt=0, description="λ: larger trusts large ratios π/μ̂ less")

    def terms(self, readout: Readout) -> Terms:
        """-(ρ r / (1 + λ ρ r)) log π."""
        earned = self.ratio(readout) * readout.reward
        return weighted(readout.logp, earned / (1 + self.smoothing * earned), **logging_loss(readout))
