"""Local policy improvement as the paper has it: a weighted cross-entropy (equation 8; section 3.2), on one backbone.

`lpi_cb_weighted` in a contextual bandit, `lpi_rl_weighted` in a Markov decision process: they differ in the critic
alone. The optimum of -exp(A/β) log π under μ is π ∝ μ exp(A/β), the policy that `lpi` forms directly.

Advantage A(x,a) = q(x,a) - g(x). The baseline g: `expected` = Σ_a μ̂ q (the paper's, the default), `policy` the same
under the current π, `max`, `value` = a V(x) head, `none`. A tabular, uncapped optimum does not depend on g; with shared
parameters g reweights contexts, and with a cap it decides what is capped.

What stands for q(x,a):
  direct       (bandit) r̂(x,a), the direct method. Right in general.
  observed     (bandit) the logged r. Right only where rewards are deterministic given (x,a): with noisy ones it
               converges to π ∝ μ E[e^{R/β}|x,a], which seeks risk, and J can fall below J(μ). With baseline `none`
               this is the plain exp(r/β) form of the paper, which `lpi_observed` has with its limits.
  td           (process) Q(x,a) from double Q-learning; `target=expected` for the guarantee.
  monte_carlo  (process) the observed return G; shares the defect of `observed`, and right-censored logs cut returns.
  sampled      (process) Q(x,a) minus its mean over the taken and a few random items (Xin et al. 2022, SA2C): cheap,
               but random items are unlike those of μ.

Departures: exp(A/β) is capped (20): without a cap, small β puts all weight on a handful of positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from localpolicy.errors import ConfigError
from localpolicy.objectives.critic import LOGGING, TDObjective, at_first_place, critic_error, squared_error
from localpolicy.objectives.logging_policy import logging_loss
from localpolicy.objectives.objective import Objective, weighted
from localpolicy.types import Readout, Reads, Terms

if TYPE_CHECKING:
    from torch import Tensor

Baseline = Literal["expected", "policy", "max", "value", "none"]
BASELINE_FIELD = {
    "expected": "q_expected",
    "policy": "q_policy",
    "max": "q_max",
    "value": "value",
    "none": None,
}


class Weighted(Objective):
    """Settings and weights of `lpi_cb_weighted` and `lpi_rl_weighted`."""

    beta: float = Field(1.0, gt=0, description="β: the price of divergence; smaller moves further from the log")
    logging: str = Field("head", description=LOGGING)
    cap: float = Field(20.0, gt=0, description="largest exp(A/β)")
    baseline: Baseline = Field("expected", description="g(x) of the advantage")
    td_weight: float = Field(1.0, ge=0, description="λ, weight of the critic's loss (TD, or squared error of r̂)")

    def beta_of(self, manifest: Mapping[str, Any]) -> float | None:
        """The β that the run was trained at."""
        return self.beta

    def baseline_reads(self) -> frozenset[str]:
        """Fields that the baseline g(x) reads."""
        field = BASELINE_FIELD[self.baseline]
        fields = {field} if field else set()
        if self.baseline == "expected":
            fields.add("logp_logging")  # the logging head is trained by its own likelihood
        return frozenset(fields)

    def advantage_of(self, value: Tensor, readout: Readout) -> Tensor:
        """A(x,a) = q(x,a) - g(x), a constant."""
        field = BASELINE_FIELD[self.baseline]
        return (value - readout.need(field)).detach() if field else value.detach()

    def improved(self, readout: Readout, advantage: Tensor, *, target: Tensor, **auxiliary: Tensor) -> Terms:
        """-min(exp(A/β), cap) log π, and the losses of the heads that A needs."""
        if readout.value is not None:
            auxiliary["value"] = squared_error(readout.value, target)
        # The cap is applied to the exponent: exp of a large advantage would overflow before it could be capped.
        exponent = advantage / self.beta
        weight = exponent.clamp(max=log(self.cap)).exp()
        return weighted(readout.logp, weight, clipped=exponent > log(self.cap), **auxiliary, **logging_loss(readout))


class LPIWeightedBandit(Weighted):
    """Local policy improvement in a contextual bandit, as the paper has it: on one backbone."""

    name = "lpi_cb_weighted"
    capturable = True
    advantage: Literal["direct", "observed"] = Field("direct", description="A from r̂(x,a), or from the logged r")

    def reads(self) -> Reads:
        """Fields of the baseline, and of r̂ if it is needed."""
        fields = self.baseline_reads()
        if self.advantage == "direct":
            fields |= {"q", "q_fit"}
        elif fields & {"q_expected", "q_policy", "q_max"}:
            fields |= {"q_fit"}
        return Reads(fields, "reward", logging=self.logging)

    def terms(self, readout: Readout) -> Terms:
        """-min(exp((r̂(x,a) - g(x))/β), cap) log π(a|x) + λ (r̂(x,a) - r)²."""
        auxiliary = {}
        if readout.q_fit is not None:
            auxiliary["reward"] = self.td_weight * critic_error(readout, at_first_place(readout))
        value = readout.reward if self.advantage == "observed" else readout.need("q")
        return self.improved(readout, self.advantage_of(value, readout), target=readout.reward, **auxiliary)


class LPIWeighted(Weighted, TDObjective):
    """Local policy improvement in a Markov decision process, as the paper has it: on one backbone."""

    name = "lpi_rl_weighted"
    capturable = True
    advantage: Literal["td", "monte_carlo", "sampled"] = Field(
        "td", description="A from Q(x,a), from the observed return, or against random items"
    )
    negatives: int = Field(10, ge=1, description="random items in the sampled advantage")

    def reads(self) -> Reads:
        """Fields of the critic, and of the baseline."""
        reads = self.td_reads()._replace(negatives=self.negatives)
        if self.advantage == "sampled":
            return reads._replace(fields=reads.fields | {"q", "q_sampled"})
        if self.advantage == "monte_carlo":
            return reads._replace(fields=self.baseline_reads() | {"q_fit", "return_to_go"})
        return reads._replace(fields=reads.fields | self.baseline_reads() | {"q"})

    def model_post_init(self, context: object) -> None:
        """Raise ConfigError for a setting that changes nothing."""
        if self.advantage == "sampled" and self.baseline != "expected":
            raise ConfigError("objective.baseline: the sampled advantage is its own baseline. Leave baseline out.")

    def terms(self, readout: Readout) -> Terms:
        """-min(exp((Q(x,a) - g(x))/β), cap) log π(a|x) + λ TD²."""
        if self.advantage == "monte_carlo":
            target = readout.need("return_to_go")
            fitted = self.td_weight * squared_error(readout.need("q_fit"), target)
            return self.improved(readout, self.advantage_of(target, readout), target=target, td=fitted)
        q = readout.need("q")
        advantage = (
            (q - readout.need("q_sampled")).detach() if self.advantage == "sampled" else self.advantage_of(q, readout)
        )
        return self.improved(readout, advantage, target=self.td_target(readout), td=self.td_loss(readout))
