"""Importance-weighted learning: `ips` (the paper's equation 9, after Chen et al. 2019) and `ips_pg` (section 4.2).

Where nothing is clipped, the gradient of -min(ρ, c) r log π with ρ = π/μ̂ held constant is that of the importance-
weighted estimate of J. There is no interior optimum: the weights follow the policy. Departures: the clip is on the
ratio (30, as in the paper); no top-K correction. μ̂ is a head trained with the policy, another run, or the
propensities of the log (`propensities=logged`). Where another run cannot have taken the action, the weight is 0.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from localpolicy.objectives.critic import LOGGING
from localpolicy.objectives.logging_policy import logging_loss
from localpolicy.objectives.objective import Objective, weighted
from localpolicy.types import Readout, Reads, Terms

if TYPE_CHECKING:
    from torch import Tensor


class ByRatio(Objective):
    """Settings of every objective that weighs by π/μ̂."""

    non_negative = True
    weighs_by_ratio = True
    propensities: Literal["estimated", "logged"] = Field(
        "estimated", description="where μ(a|x) comes from: the logging policy's estimate, or the log"
    )
    logging: str = Field("head", description=LOGGING)

    def reads(self) -> Reads:
        """Fields that give μ(a|x): a head, a frozen run, or the log's propensities."""
        field = "logged_propensity" if self.propensities == "logged" else "logp_logging"
        return Reads(frozenset({field}), logging=self.logging)

    def ratio(self, readout: Readout) -> Tensor:
        """ρ = π/μ̂, a constant; 0 if μ̂ = 0: such an action (the item is newer) was not drawn from μ̂."""
        if self.propensities == "logged":
            ratio = (readout.logp - readout.need("logged_propensity").log()).detach().exp()
            return ratio.where(~ratio.isnan(), 0.0)  # the log does not say what could be
        log_logging = readout.need("logp_logging")
        possible = log_logging.detach() > -inf
        return (readout.logp - log_logging).detach().exp().where(possible, 0.0)


class ImportanceWeighted(ByRatio):
    """Settings and weights of `ips` and `ips_pg`."""

    clip: float = Field(30.0, gt=0, description="largest importance ratio π/μ̂")

    def _importance_weighted(self, readout: Readout, reward: Tensor) -> Terms:
        """-min(π/μ̂, c) · reward · log π; and -log μ̂ if μ̂ is a head."""
        ratio = self.ratio(readout)
        weight = ratio.clamp(max=self.clip) * reward
        return weighted(readout.logp, weight, clipped=ratio > self.clip, **logging_loss(readout))


class IPS(ImportanceWeighted):
    """Inverse propensity scoring of single rewards."""

    name = "ips"
    capturable = True

    def terms(self, readout: Readout) -> Terms:
        """-min(π/μ̂, c) r log π."""
        return self._importance_weighted(readout, readout.reward)


class IPSPG(ImportanceWeighted):
    """The policy gradient with a one-step importance correction."""

    name = "ips_pg"
    capturable = True
    gamma: float = Field(0.5, ge=0, lt=1, description="γ: discount of later rewards")

    def reads(self) -> Reads:
        """Fields of the return, and of μ(a|x)."""
        reads = super().reads()
        return reads._replace(fields=reads.fields | {"return_to_go"}, gamma=self.gamma)

    def terms(self, readout: Readout) -> Terms:
        """-min(π/μ̂, c) G log π, G_t = Σ_k γ^k r_{t+k}: one-step correction of the policy gradient."""
        return self._importance_weighted(readout, readout.need("return_to_go"))
