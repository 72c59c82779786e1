"""Maximum likelihood: the estimate μ̂ of the logging policy (the paper's "Logging" row; section 4.1).

Trained to convergence on a log drawn from μ it returns μ: E_μ[-log π] is KL(μ‖π) plus a constant. A log that states the
probability of every action it took says more. With ρ = π(a|x)/μ(a|x), E_μ[ρ] = 1 whatever π is, so

    KL(μ‖π)  =  E_μ[-log ρ]  =  E_μ[ρ - 1 - log ρ]

and the last form is never negative and exactly 0 at π = μ, position by position: its gradient has no noise there, while
that of -log ρ has all of its own. Both have the same mean, so the optimum is the same in every class of policies, even
if μ knew more than the history shows. ρ - 1 is a control variate: its mean is 0, and a log in which it stays away from
0 states wrong propensities. Departure: above ρ = c (10) it continues as its tangent in log ρ, so that a single action
that μ hardly ever takes does not throw the policy off.
"""

from __future__ import annotations

from math import log
from typing import Literal

from pydantic import Field

from localpolicy.objectives.objective import Objective, unweighted
from localpolicy.types import Readout, Reads, Terms


class MLE(Objective):
    """Maximum likelihood: an estimate of the logging policy."""

    name = "mle"
    capturable = True
    uses_reward = False
    estimates_logging = True
    calibrated = True
    default_selection = "logp"
    propensities: Literal["logged", "unused"] | None = Field(
        None, description="whether the logged μ(a|x) takes the noise out of the likelihood (default: where the log "
        "states it)"
    )  # fmt: skip
    clip: float = Field(10.0, gt=1, description="with propensities: largest weight of a ratio π/μ")

    def resolved(self, *, propensities: bool) -> MLE:
        """Resolve `propensities`: as set, else used if the log has any."""
        if self.propensities is not None:
            return self
        return self.model_copy(update={"propensities": "logged" if propensities else "unused"})

    def reads(self) -> Reads:
        """Field of the logged propensities, if they are used."""
        return Reads(frozenset({"logged_propensity"}) if self.propensities == "logged" else frozenset())

    def terms(self, readout: Readout) -> Terms:
        """-log π(a|x), and with propensities ρ - 1, ρ = π/μ; 0 at positions without a propensity."""
        if self.propensities != "logged":
            return unweighted(readout.logp)
        stated, limit = readout.need("logged_propensity").detach(), log(self.clip)
        known = stated > 0  # not where it is missing (NaN)
        exponent = readout.logp - stated.where(known, 1.0).log()
        ratio = exponent.clamp(max=limit).exp() + self.clip * (exponent - limit).clamp(min=0)
        return unweighted(readout.logp, control=(ratio - 1).where(known, 0.0))
