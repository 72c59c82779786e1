"""Local policy improvement: `lpi_cb` (the paper's equation 8) and `lpi_rl` (section 3.2).

The weighted cross-entropy whose optimum is π ∝ μ exp(A/β), the policy that maximises J(π) - β KL(π‖μ). The two
differ in the critic alone: r̂(x,a) in a bandit, Q(x,a) in a Markov decision process; with γ = 0 they are equal.

Advantage A(x,a) = q(x,a) - g(x). The baseline g: `expected` = Σ_a μ̂ q (the paper's, the default), `policy` the same
under the current π, `max`, `value` = a V(x) head, `none`. A tabular, uncapped optimum does not depend on g; with
shared parameters g reweights contexts, and with a cap it decides what is capped.

What stands for q(x,a):
  direct       (lpi_cb) r̂(x,a), the direct method. Right in general.
  observed     (lpi_cb) the logged r. Right only where rewards are deterministic given (x,a): with noisy ones it
               converges to π ∝ μ E[e^{R/β}|x,a], which seeks risk, and J can fall below J(μ). With baseline `none`
               this is the plain exp(r/β) form of the paper.
  td           (lpi_rl) Q(x,a) from double Q-learning; `target=expected` for the guarantee.
  monte_carlo  (lpi_rl) the observed return G; shares the defect of `observed`, and right-censored logs cut returns.
  sampled      (lpi_rl) Q(x,a) minus its mean over the taken and a few random items (Xin et al. 2022, SA2C): cheap,
               but random items are unlike those of μ.

Departures: exp(A/β) is capped (20): without a cap, small β puts all weight on a handful of positions.
"""

from __future__ import annotations

from math import log

from torch import Tensor

from localpolicy.objectives.config import ObjectiveConfig
from localpolicy.objectives.critic import squared_error, td_loss, td_reads, td_target
from localpolicy.objectives.logging_policy import logging_loss
from localpolicy.objectives.objective import weighted
from localpolicy.types import Readout, Terms

BASELINE_FIELD = {
    "expected": "q_expected",
    "policy": "q_policy",
    "max": "q_max",
    "value": "value",
    "none": None,
}


def _reads_baseline(config: ObjectiveConfig) -> set[str]:
    field = BASELINE_FIELD[config.baseline]
    reads = {field} if field else set()
    if config.baseline == "expected":
        reads.add("logp_logging")  # the logging head is trained by its own likelihood
    return reads


def reads_bandit(config: ObjectiveConfig) -> frozenset[str]:
    """What lpi_cb reads."""
    reads = _reads_baseline(config)
    if config.advantage == "direct":
        reads |= {"q", "q_fit"}
    elif reads & {"q_expected", "q_policy", "q_max"}:
        reads |= {"q_fit"}
    return frozenset(reads)


def reads_process(config: ObjectiveConfig) -> frozenset[str]:
    """What lpi_rl reads."""
    if config.advantage == "sampled":
        return td_reads(config) | {"q", "q_sampled"}
    if config.advantage == "monte_carlo":
        return frozenset(_reads_baseline(config) | {"q_fit", "return_to_go"})
    return td_reads(config) | _reads_baseline(config) | {"q"}


def advantage(readout: Readout, config: ObjectiveConfig) -> Tensor:
    """A(x,a) = q(x,a) - g(x), a constant."""
    if config.advantage == "sampled":
        return (readout.need("q") - readout.need("q_sampled")).detach()
    source = {"observed": "reward", "monte_carlo": "return_to_go"}.get(config.advantage or "", "q")
    value = readout.need(source)
    field = BASELINE_FIELD[config.baseline]
    return (value - readout.need(field)).detach() if field else value.detach()


def _improved(readout: Readout, config: ObjectiveConfig, target: Tensor, **auxiliary: Tensor) -> Terms:
    """-min(exp(A/β), cap) log π, and the losses of the heads that A needs."""
    if readout.value is not None:
        auxiliary["value"] = squared_error(readout.value, target)
    # The cap is applied to the exponent: exp of a large advantage would overflow before it could be capped.
    exponent = advantage(readout, config) / config.beta
    weight = exponent.clamp(max=log(config.cap)).exp()
    return weighted(readout.logp, weight, clipped=exponent > log(config.cap), **auxiliary, **logging_loss(readout))


def lpi_cb(readout: Readout, config: ObjectiveConfig) -> Terms:
    """-min(exp((r̂(x,a) - g(x))/β), cap) log π(a|x) + λ (r̂(x,a) - r)²."""
    auxiliary = {}
    if readout.q_fit is not None:
        auxiliary["reward"] = config.td_weight * squared_error(readout.q_fit, readout.reward)
    return _improved(readout, config, readout.reward, **auxiliary)


def lpi_rl(readout: Readout, config: ObjectiveConfig) -> Terms:
    """-min(exp((Q(x,a) - g(x))/β), cap) log π(a|x) + λ TD²."""
    if config.advantage == "monte_carlo":
        target = readout.need("return_to_go")
        fitted = config.td_weight * squared_error(readout.need("q_fit"), target)
        return _improved(readout, config, target, td=fitted)
    return _improved(readout, config, td_target(readout, config), td=td_loss(readout, config))
