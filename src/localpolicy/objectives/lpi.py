"""Local policy improvement: `lpi_cb` (the paper's equation 8) and `lpi_rl` (section 3.2).

π ∝ μ exp(A/β) is the policy that maximises J(π) - β KL(π‖μ). The two objectives differ in the critic alone: r̂(x,a) in
a bandit, Q(x,a) in a Markov decision process; with γ = 0 they are equal. Two ways lead to that policy:

  closed    (the default) μ̂ and the critics are networks of their own, and the policy is the formula itself. See
            `training.closed`. Departures: the critic estimates Q_μ, starts from μ̂'s weights, and is multiplied by its
            held-out calibration; β is chosen on held-out sequences unless it is given.
  weighted  the paper's: a weighted cross-entropy that has this optimum, and the critic's loss, on one backbone. What
            follows speaks of it.

Advantage A(x,a) = q(x,a) - g(x). The baseline g: `expected` = Σ_a μ̂ q (the paper's, the default), `policy` the same
under the current π, `max`, `value` = a V(x) head, `expectile` = the same head fitted by the expectile loss of IQL, so
that g lies between the mean of q under μ (τ = 1/2) and its maximum (τ = 1), `none`. A tabular, uncapped optimum does
not depend on g; with shared parameters g reweights contexts, and with a cap it decides what is capped.

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
from typing import Literal

from pydantic import Field
from torch import Tensor

from localpolicy.errors import ConfigError
from localpolicy.objectives.critic import LOGGING, Critic, TDObjective, squared_error
from localpolicy.objectives.expectile import expectile_loss
from localpolicy.objectives.logging_policy import logging_loss
from localpolicy.objectives.objective import Objective, weighted
from localpolicy.types import Readout, Reads, Terms

Baseline = Literal["expected", "policy", "max", "value", "expectile", "none"]
BASELINE_FIELD = {
    "expected": "q_expected",
    "policy": "q_policy",
    "max": "q_max",
    "value": "value",
    "expectile": "value",
    "none": None,
}
CRITIC_DROPOUT = 0.3
REPEATED = 10.0  # the cap where one visitor meets many choices
FAR = 0.15  # JS from μ̂
AGAIN = 0.05  # JS from μ̂ where that is an improved policy, so that one round follows another
WEIGHTED = (
    "baseline",
    "expectile",
    "td_weight",
    "advantage",
    "negatives",
)  # settings that the closed form does not read
DIAL = ("beta", "max_js", "believe", "cap")  # closed: settings that read the same networks in another way
CLOSED = ("critics", "critic_rate", "critic_dropout", "believe", "max_js")


class Improvement(Objective):
    """Settings and weights of both objectives."""

    improve: Literal["closed", "weighted"] = Field(
        "closed", description="how: the closed form μ̂ exp(Â/β) from networks of their own, or the paper's weighted "
        "cross-entropy on one backbone"
    )  # fmt: skip
    beta: float | None = Field(
        None, gt=0, description="β: the price of divergence; smaller moves further from the log (default: chosen on "
        "held-out sequences; 1 where weighted)"
    )  # fmt: skip
    logging: str = Field("head", description=LOGGING)
    critics: int = Field(1, ge=1, description="closed: how many critics are averaged")
    critic_rate: float = Field(
        0.3, gt=0, description="closed: a critic's learning rate, relative to train.learning_rate: it starts from μ̂"
    )
    critic_dropout: float | None = Field(
        None, ge=0, lt=1, description="closed: dropout of the critics (default: 0.3 for lpi_rl, the model's for lpi_cb)"
    )
    believe: bool = Field(
        False, description="closed: tilt by the critic as it is, also where held-out actions say that it knows nothing"
    )
    max_js: float | None = Field(
        None, gt=0, description="closed: ceiling of the divergence from μ̂, in nats of JS (default: none; for a β that "
        "lpi_rl chooses 0.15, since estimates of one step say less the further a whole visit goes; 0.05 for a β that "
        "is chosen on an improved policy's own log)"
    )  # fmt: skip
    cap: float | None = Field(
        None, gt=0, description="largest exp(A/β) (default: 20 where weighted; closed: 10 for lpi_rl, none for lpi_cb)"
    )  # fmt: skip
    baseline: Baseline = Field("expected", description="weighted: g(x) of the advantage")
    expectile: float = Field(
        0.7, gt=0, lt=1, description="weighted, baseline=expectile: τ; 0.5 is the mean of q under μ, 1 its maximum"
    )
    td_weight: float = Field(
        1.0, ge=0, description="weighted: λ, weight of the critic's loss (TD, or squared error of r̂)"
    )

    @property
    def closed(self) -> bool:
        """Whether it is trained in stages (see `training.closed`) rather than by its terms."""
        return self.improve == "closed"

    def undialled(self) -> Improvement:
        """The same at the dial's defaults: what decides the networks of the closed form."""
        return self.model_copy(update={name: type(self).model_fields[name].default for name in DIAL})

    @property
    def weighted_cap(self) -> float:
        """The cap of the weighted form."""
        return 20.0 if self.cap is None else self.cap

    @property
    def tower_dropout(self) -> float | None:
        """Dropout of the critics; None: the model's."""
        return self.critic_dropout

    @property
    def closed_cap(self) -> float | None:
        """The cap of the closed form: none, unless one is given."""
        return self.cap

    def ceiling(self, *, again: bool) -> float | None:
        """The largest JS from μ̂ of a β that is chosen, not given; `again`: the log is an improved policy's own.

        Where rounds follow each other, a step that is too short is made up for in the next, and one that is too long
        is not: a log of the policy beyond tells little of the way back.
        """
        return AGAIN if self.max_js is None and again else self.max_js

    @property
    def weighted_beta(self) -> float:
        """β of the weighted form."""
        return 1.0 if self.beta is None else self.beta

    def critic_objective(self, logging: str) -> Critic:
        """What the critics of the closed form minimise, μ̂ being the run in the folder `logging`."""
        raise NotImplementedError

    def model_post_init(self, context: object) -> None:
        """A setting that changes nothing is a mistake."""
        if self.closed and self.cap is not None and self.cap <= 1:
            raise ConfigError(f"objective.cap: the closed form needs a cap above 1, got {self.cap:g}.")
        other, unread = ("weighted", WEIGHTED) if self.closed else ("closed", CLOSED)
        for name in unread:
            field = type(self).model_fields.get(name)
            if field is not None and getattr(self, name) != field.default:
                raise ConfigError(
                    f"objective.{name}: only improve={other} uses it, and this is improve={self.improve}. Leave it "
                    f"out, or set objective.improve={other}."
                )
        if self.baseline != "expectile" and self.expectile != type(self).model_fields["expectile"].default:
            raise ConfigError("objective.expectile: only baseline=expectile uses it. Leave it out.")

    def baseline_reads(self) -> frozenset[str]:
        """What g(x) is read from."""
        field = BASELINE_FIELD[self.baseline]
        fields = {field} if field else set()
        if self.baseline == "expected":
            fields.add("logp_logging")  # the logging head is trained by its own likelihood
        return frozenset(fields)

    def advantage_of(self, value: Tensor, readout: Readout) -> Tensor:
        """A(x,a) = q(x,a) - g(x), a constant."""
        field = BASELINE_FIELD[self.baseline]
        return (value - readout.need(field)).detach() if field else value.detach()

    def value_loss(self, value: Tensor, q: Tensor, target: Tensor) -> Tensor:
        """(V(x) - target)², whose minimum is E_μ[q|x]; or the expectile loss of q(x,a), as IQL has it."""
        if self.baseline == "expectile":
            return expectile_loss(value, q, expectile=self.expectile)
        return squared_error(value, target)

    def improved(self, readout: Readout, advantage: Tensor, *, q: Tensor, target: Tensor, **auxiliary: Tensor) -> Terms:
        """-min(exp(A/β), cap) log π, and the losses of the heads that A needs."""
        if readout.value is not None:
            auxiliary["value"] = self.value_loss(readout.value, q, target)
        # The cap is applied to the exponent: exp of a large advantage would overflow before it could be capped.
        exponent = advantage / self.weighted_beta
        weight = exponent.clamp(max=log(self.weighted_cap)).exp()
        return weighted(
            readout.logp, weight, clipped=exponent > log(self.weighted_cap), **auxiliary, **logging_loss(readout)
        )


class LPIBandit(Improvement):
    """Local policy improvement in a contextual bandit."""

    name = "lpi_cb"
    advantage: Literal["direct", "observed"] = Field("direct", description="A from r̂(x,a), or from the logged r")

    def critic_objective(self, logging: str) -> Critic:
        """(r̂(x,a) - r)²."""
        return Critic(kind="reward", gamma=0.0, logging=logging)

    def reads(self) -> Reads:
        """The baseline's numbers, and r̂ where it is needed; of the closed form, what its stages read."""
        if self.closed:
            return Reads(frozenset({"q_fit", "logp_logging"}), "reward", logging=self.logging)
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
            auxiliary["reward"] = self.td_weight * squared_error(readout.q_fit, readout.reward)
        value = readout.reward if self.advantage == "observed" else readout.need("q")
        return self.improved(readout, self.advantage_of(value, readout), q=value, target=readout.reward, **auxiliary)


class LPI(Improvement, TDObjective):
    """Local policy improvement in a Markov decision process."""

    name = "lpi_rl"
    advantage: Literal["td", "monte_carlo", "sampled"] = Field(
        "td", description="A from Q(x,a), from the observed return, or against random items"
    )
    negatives: int = Field(10, ge=1, description="weighted: random items in the sampled advantage")
    target: Literal["max", "expected"] | None = Field(  # type: ignore[assignment]
        None, description="weighted: value of the next state in the TD target (default: max; closed: expected, always)"
    )

    def critic_objective(self, logging: str) -> Critic:
        """(Q(x,a) - (r + γ Σ_a μ̂ Q(x',a)))²."""
        return Critic(kind="q", gamma=self.gamma, logging=logging)

    def ceiling(self, *, again: bool) -> float | None:
        """Estimates speak of one step among μ's contexts; the visits of a policy far away hold others."""
        ceiling = super().ceiling(again=again)
        return FAR if ceiling is None else ceiling

    @property
    def tower_dropout(self) -> float | None:
        """Returns are noisier than what is taken next: a critic overfits sooner than μ̂, where it starts from."""
        return CRITIC_DROPOUT if self.critic_dropout is None else self.critic_dropout

    @property
    def closed_cap(self) -> float | None:
        """A visitor is shown item after item: one that is staked on alone wears out, and its estimate may be luck."""
        return REPEATED if self.cap is None else self.cap

    @property
    def next_state(self) -> Literal["max", "expected"]:
        """The closed form needs Q_μ; the paper's target is the largest Q."""
        return self.target or ("expected" if self.closed else "max")

    def reads(self) -> Reads:
        """The critic's numbers, and the baseline's; of the closed form, what its stages read."""
        reads = self.td_reads()._replace(negatives=self.negatives)
        if self.closed:
            return reads._replace(fields=reads.fields | {"logp_logging"})
        if self.advantage == "sampled":
            return reads._replace(fields=reads.fields | {"q", "q_sampled"})
        if self.advantage == "monte_carlo":
            return reads._replace(fields=self.baseline_reads() | {"q_fit", "return_to_go"})
        return reads._replace(fields=reads.fields | self.baseline_reads() | {"q"})

    def model_post_init(self, context: object) -> None:
        """A setting that changes nothing is a mistake."""
        super().model_post_init(context)
        if self.closed and self.target == "max":
            raise ConfigError(
                "objective.target: the closed form improves on μ by Q_μ, the expected target's. Leave target out, or "
                "set objective.improve=weighted."
            )
        if self.advantage == "sampled" and self.baseline != "expected":
            raise ConfigError("objective.baseline: the sampled advantage is its own baseline. Leave baseline out.")

    def terms(self, readout: Readout) -> Terms:
        """-min(exp((Q(x,a) - g(x))/β), cap) log π(a|x) + λ TD²."""
        if self.advantage == "monte_carlo":
            target = readout.need("return_to_go")
            fitted = self.td_weight * squared_error(readout.need("q_fit"), target)
            return self.improved(readout, self.advantage_of(target, readout), q=target, target=target, td=fitted)
        q = readout.need("q")
        advantage = (
            (q - readout.need("q_sampled")).detach() if self.advantage == "sampled" else self.advantage_of(q, readout)
        )
        return self.improved(readout, advantage, q=q, target=self.td_target(readout), td=self.td_loss(readout))
