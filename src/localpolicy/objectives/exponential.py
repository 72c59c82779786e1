"""exp(r/λ)-weighted likelihood of observed rewards (Chidambaram et al. 2026, arXiv 2603.10279).

No critic, no propensities. Its optimum is π ∝ μ E[e^{R/λ}|x,a] = μ e^{c/λ}, which maximises E_π[c] - λ KL(π‖μ) with
c(x,a) = λ log E[e^{R/λ}|x,a]. c is r(x,a) where rewards have no noise, and above it where they have: a coin of 1 or 0
beats a certain 0.6 at small λ. For rewards in a range b, r <= c <= r + b²/(8λ) (Hoeffding's lemma), so

    J(π) >= J(μ) + λ KL(π‖μ) - b²/(8λ):

λ bounds what noise can cost, and what can be gained. With rewards of 0 and 1 the optimum is μ (1 + (e^{1/λ} - 1) r), a
path from μ to `reward_weighted`'s μ r and never beyond it. Departures: the weight is capped. It fine-tunes where
`train.warm_start` names an `mle` run, and starts from random weights otherwise.
"""

from __future__ import annotations

from math import log

from pydantic import Field

from localpolicy.objectives.objective import Objective, weighted
from localpolicy.types import Readout, Terms


class ExpWeighted(Objective):
    """Cross-entropy weighted by the exponential of the observed reward."""

    name = "exp_weighted"
    capturable = True
    temperature: float = Field(0.5, gt=0, description="λ: smaller moves further from the log, and seeks more risk")
    cap: float = Field(20.0, gt=1, description="largest exp(r/λ)")

    def terms(self, readout: Readout) -> Terms:
        """-min(exp(r/λ), cap) log π."""
        exponent = readout.reward / self.temperature
        # Capped as an exponent: exp of a large reward would overflow first.
        return weighted(readout.logp, exponent.clamp(max=log(self.cap)).exp(), clipped=exponent > log(self.cap))
