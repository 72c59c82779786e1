"""Local policy improvement by what was observed: no critic, no propensities (`lpi_observed`, `reward_weighted`).

The weight is of the reward R that was logged, or of the return G where the objective looks ahead, above the smallest:
z = (R - r_min)/β, with z = 0 and so π = μ at β = ∞. It has two forms:

  affine       w = 1 + z. E[w|x,a] = 1 + (r(x,a) - r_min)/β whatever the noise of R, so the optimum is
               π ∝ μ (1 + (r - r_min)/β), the first-order tilt of LPI, with
               J(π) - J(μ) = Var_μ(r) / (β + E_μ[r] - r_min) >= 0 in each context. It ends at β = 0, w = R - r_min.
  exponential  w = exp(z). Where R has two values, r_min and r_min + Δ, the second with probability p(x,a),
               E[w|x,a] = 1 + p (exp(Δ/β) - 1): the affine form at another β, so J(π) >= J(μ). With more values it
               seeks risk: a coin of 1 or 0 beats a sure 0.6 at small β, and J(π) may fall below J(μ). For rewards in
               a range b, J(π) >= J(μ) + β KL(π‖μ) - b²/(8β) by Hoeffding's lemma. Chidambaram et al. 2026
               (arXiv 2603.10279) weigh by exp(r/β).

A third form makes β a dial of one run:

  power        π ∝ μ̂ (π_0/μ̂)^(1/β), π_0 being the affine end in a network of its own. π_0 ∝ μ r̄(x,a), with r̄ the mean
               reward above 0, so π ∝ μ exp(log r̄/β): LPI in closed form with the advantage log r̄, and no critic. It
               increases in r̄ at every β whatever the noise, so J(π) >= J(μ), and J rises as β falls. β = ∞ is μ̂, 1 the
               end, less goes further.

So, unless one is named, the form is exponential where the log's rewards have two values, and affine elsewhere.
`reward_weighted`, 𝓛_μ(π) of the paper's equations 4 to 6 (after Ma et al. 2019), is the affine end with r_min = 0. With
`td_weight` a TD loss trains the same backbone, as in SQN. It fine-tunes an `mle` run that `train.warm_start` names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field

from localpolicy.errors import ConfigError
from localpolicy.objectives.critic import TDObjective
from localpolicy.objectives.logging_policy import logging_loss
from localpolicy.objectives.mle import MLE
from localpolicy.objectives.objective import Fitting, Objective, weighted
from localpolicy.types import Readout, Reads, Terms

if TYPE_CHECKING:
    from torch import Tensor


class LPIObserved(TDObjective):
    """Local policy improvement by observed rewards, or returns."""

    name = "lpi_observed"
    capturable = True
    beta: float = Field(
        1.0, ge=0, description="β: the price of divergence; smaller moves further from the log, 0 to where the affine "
        "form ends"
    )  # fmt: skip
    form: Literal["exponential", "affine", "power"] | None = Field(
        None, description="exp(z) or 1 + z, z = (R - r_min)/β (default: exponential where R has two values, and so "
        "does not seek risk; affine elsewhere); or power: a dial, μ̂^(1 - 1/β) π_0^(1/β), between μ̂ and the end of the "
        "affine form, each a network of its own"
    )  # fmt: skip
    returns: bool = Field(False, description="weigh by the return G = Σ γ^k r, not by the reward")
    smallest: float | None = Field(None, description="r_min (default: the log's)")
    cap: float = Field(20.0, gt=1, description="largest exp(z)")
    td_weight: float = Field(0.0, ge=0, description="λ: weight of an additional TD loss, on the same backbone")

    def model_post_init(self, context: object) -> None:
        """Raise ConfigError for a setting that changes nothing."""
        if self.form in ("exponential", "power") and not self.beta:
            raise ConfigError("objective.beta: 0 is the end of the affine form. Set a larger β, or form=affine.")
        if not (self.returns or self.td_weight) and self.gamma != type(self).model_fields["gamma"].default:
            raise ConfigError("objective.gamma: only returns=true and td_weight use it. Leave it out.")

    def scaled(self, *, rewards: Callable[[], Sequence[float]]) -> Self:
        """Fill in the smallest reward or return, and the form."""
        if self.form is not None and self.smallest is not None:
            return self
        values = rewards()
        smallest = min(values) / (1 - self.gamma) if self.returns and min(values) < 0 else min(values)
        if self.form == "power":  # a smallest reward above 0 has a weight, too
            smallest = min(smallest, 0.0)
        two = len(values) == 2 and self.beta > 0 and not self.returns
        return self.model_copy(
            update={
                "form": self.form or ("exponential" if two else "affine"),
                "smallest": smallest if self.smallest is None else self.smallest,
            }
        )

    def fit(self, fitting: Fitting) -> Any:
        """Train one network; in the power form μ̂ and a second network, which together give every β."""
        if self.form != "power":
            return fitting.network()
        logging = fitting.policy("logging", MLE())
        end = fitting.policy("end", self.model_copy(update={"form": "affine", "beta": 0.0}), 1)
        return fitting.improved(self, logging, [end])

    def undialled(self) -> Self | None:
        """Settings of the power form at β = 1; None for the other forms, whose networks depend on β."""
        return self.model_copy(update={"beta": 1.0}) if self.form == "power" else None

    @property
    def described(self) -> str:
        """Short text on the power form, for lists of runs; the other forms are not assembled and show none."""
        return "power form; from the logging policy to observed weights"

    @property
    def largest_factor(self) -> None:
        """None: the factor of the power form, (π_0/μ̂)^(1/β), is not capped."""

    def beta_of(self, manifest: Mapping[str, Any]) -> float | None:
        """The β that the run was trained at."""
        return self.beta

    def reads(self) -> Reads:
        """Fields of the return and of the TD loss, if they are used."""
        reads = self.td_reads() if self.td_weight else Reads(gamma=self.gamma)
        return reads._replace(fields=reads.fields | {"return_to_go"}) if self.returns else reads

    def terms(self, readout: Readout) -> Terms:
        """-w(R) log π(a|x), w = 1 + z or min(exp(z), cap), z = (R - r_min)/β; and λ TD²."""
        observed = readout.need("return_to_go") if self.returns else readout.reward
        excess = observed - (self.smallest or 0.0)
        auxiliary = {"td": self.td_loss(readout), **logging_loss(readout)} if self.td_weight else {}
        if self.form == "exponential":
            exponent, most = excess / self.beta, log(self.cap)
            # Capped as an exponent: exp of a large reward would overflow first.
            weight = exponent.clamp(max=most).exp()
            return weighted(readout.logp, weight, clipped=exponent > most, **auxiliary)
        return weighted(readout.logp, affine(excess, self.beta), **auxiliary)


class RewardWeighted(Objective):
    """Cross-entropy weighted by the reward: the affine end, from a smallest reward of 0.

    A lower bound of J(π) for r >= 0, tight at π = μ; its optimum is π ∝ μ r. A shift of the rewards would change that
    to μ (r + c), so negative rewards are refused, not shifted.
    """

    name = "reward_weighted"
    capturable = True
    non_negative = True

    def terms(self, readout: Readout) -> Terms:
        """-r log π(a|x)."""
        return weighted(readout.logp, affine(readout.reward, 0.0))


def affine(excess: Tensor, beta: float) -> Tensor:
    """1 + (R - r_min)/β, and R - r_min at β = 0; 0 below r_min."""
    weight = 1 + excess / beta if beta else excess
    return weight.clamp(min=0)
