"""Local policy improvement in closed form: `lpi_cb` in a contextual bandit, `lpi_rl` in a Markov decision process.

π ∝ μ exp(A/β) is the policy that maximises J(π) - β KL(π‖μ). Here it is the formula itself: μ̂ and the critics are
networks of their own, fitted one after another. The two objectives differ in the critic alone: r̂(x,a) in a bandit,
Q(x,a) otherwise; with γ = 0 they are equal. The paper's own way to this policy is in `lpi_weighted`.

On a log of actions, such as views and purchases, a purchase follows the view of the same product whatever is shown. Row
by row, a critic learns that the product just viewed is bought, and the policy shows it again, which earns nothing. So
the critics learn from first meetings there, each credited with all rewards of the item (see `data.first_meetings`): the
choices that the gate judges by.

Departures from the paper: the critic estimates Q_μ, starts from μ̂'s weights, and is multiplied by its held-out
calibration; β is chosen on held-out sequences unless it is given (see `training.closed_form` and
`training.beta_selection`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Self

from pydantic import Field

from localpolicy.errors import ConfigError
from localpolicy.objectives.critic import Critic
from localpolicy.objectives.objective import Fitting, Objective
from localpolicy.types import Reads

CRITIC_DROPOUT = 0.3
REPEATED = 10.0  # the cap where one visitor meets many choices
DISCOUNT = 0.5  # γ
FAR = 0.3  # JS from μ̂
AGAIN = 0.05  # JS from μ̂ where that is an improved policy, so that one round follows another
DIAL = ("beta", "max_js", "calibrate_critic", "cap")  # settings that read the same networks in another way


class ClosedForm(Objective):
    """Settings and stages of `lpi_cb` and `lpi_rl`."""

    beta: float | None = Field(
        None, gt=0, description="β: the price of divergence; smaller moves further from the log (default: chosen on "
        "held-out sequences)"
    )  # fmt: skip
    logging: str = Field("head", description="μ̂: 'head' (estimated first), or the folder of a run")
    critics: int = Field(1, ge=1, description="how many critics are averaged")
    critic_rate: float = Field(
        0.3, gt=0, description="a critic's learning rate, relative to train.learning_rate: it starts from μ̂"
    )
    critic_dropout: float | None = Field(
        None, ge=0, lt=1, description="dropout of the critics (default: 0.3 for lpi_rl, the model's for lpi_cb)"
    )
    calibrate_critic: bool = Field(
        True, description="scale the critic's advantage by its calibration on held-out actions, to 0 if it is not "
        "informative; false: tilt by the critic as it is"
    )  # fmt: skip
    max_js: float | None = Field(
        None, gt=0, description="ceiling of the divergence from μ̂, in nats of JS (default: none; for a β that lpi_rl "
        "chooses 0.3, since estimates of one step say less the further a whole visit goes; 0.05 for a β that is "
        "chosen on an improved policy's own log)"
    )  # fmt: skip
    cap: float | None = Field(
        None, gt=0, description="largest exp(A/β) (default: 10 for lpi_rl, none for lpi_cb)"
    )  # fmt: skip
    credit: Literal["rows", "meetings"] | None = Field(
        None, description="what the critics credit: 'rows', each action with its own reward; 'meetings', the first "
        "time that a sequence meets an item, with all that it then earned by it (default: meetings on logs of actions "
        "without propensities whose kinds differ in reward, rows on others)"
    )  # fmt: skip

    def model_post_init(self, context: object) -> None:
        """Raise ConfigError unless `cap` is above 1."""
        if self.cap is not None and self.cap <= 1:
            raise ConfigError(f"objective.cap: the closed form needs a cap above 1, got {self.cap:g}.")

    def crediting(self, *, meetings: Callable[[], bool]) -> Self:
        """Resolve `credit`: as set, else `meetings` if the gate judges this log by them, else `rows`."""
        credit = self.credit or ("meetings" if meetings() else "rows")
        return self.model_copy(update={"credit": credit})

    def fit(self, fitting: Fitting) -> Any:
        """Train μ̂, then the critics, each from μ̂'s weights; return the policy that they make."""
        logging = fitting.logging_policy(self.logging)
        critics = []
        for number in range(self.critics):
            critic = fitting.critic(
                self.critic_objective(str(logging.folder)),
                number,
                dropout=self.tower_dropout,
                rate=self.critic_rate,
            )
            critics.append(critic)
        return fitting.improved(self, logging, critics)

    def undialled(self) -> Self:
        """Settings with those of `DIAL` (β, budget, calibration, cap) at their defaults: these need no training."""
        return self.model_copy(update={name: type(self).model_fields[name].default for name in DIAL})

    def beta_of(self, manifest: Mapping[str, Any]) -> float | None:
        """The β that the run chose, or was given."""
        return float(manifest["improvement"]["beta"])

    def critic_objective(self, logging: str) -> Critic:
        """Objective of the critics, for μ̂ in the folder `logging`."""
        raise NotImplementedError

    @property
    def described(self) -> str:
        """Short description of the policy: closed form, with the rewards that its critics credit and their discount."""
        if self.credit == "meetings":
            return "closed form; first meetings, undiscounted"
        gamma = self.critic_objective("").gamma
        return f"closed form; rewards discounted by {gamma:g} a step" if gamma else "closed form; the next reward"

    @property
    def tower_dropout(self) -> float | None:
        """Dropout of the critics; None: the model's."""
        return self.critic_dropout

    @property
    def largest_factor(self) -> float | None:
        """Cap of exp(A/β); None without a cap."""
        return self.cap

    def ceiling(self, *, again: bool) -> float | None:
        """The largest JS from μ̂ of a β that is chosen, not given; `again`: the log is an improved policy's own.

        If rounds follow each other, a step that is too short is made up for in the next, and one that is too long is
        not: a log of the policy beyond is little evidence about the way back.
        """
        return AGAIN if self.max_js is None and again else self.max_js


class LPIBandit(ClosedForm):
    """Local policy improvement in a contextual bandit."""

    name = "lpi_cb"

    def critic_objective(self, logging: str) -> Critic:
        """(r̂(x,a) - r)² over actions, or over first meetings."""
        return Critic(kind="reward", gamma=0.0, logging=logging, meetings=self.credit == "meetings")

    def reads(self) -> Reads:
        """Fields that the stages read: q_fit and logp_logging."""
        fields = frozenset({"q_fit", "logp_logging"})
        return Reads(fields, "reward", logging=self.logging, meetings=self.credit == "meetings")


class LPI(ClosedForm):
    """Local policy improvement in a Markov decision process."""

    name = "lpi_rl"
    gamma: float | None = Field(
        None, ge=0, lt=1, description="γ: discount of later rewards (default: 0.5; 0 where first meetings are credited)"
    )

    def model_post_init(self, context: object) -> None:
        """Raise ConfigError for a γ with first meetings, whose rewards are not discounted."""
        super().model_post_init(context)
        if self.credit == "meetings" and self.gamma:
            raise ConfigError(
                "objective.gamma: a first meeting is credited with all later rewards of its item, undiscounted. Leave "
                "gamma out, or set objective.credit=rows."
            )

    def crediting(self, *, meetings: Callable[[], bool]) -> Self:
        """Resolve `credit` and γ: a given γ means rows, and rows get the default γ."""
        chosen = super().crediting(meetings=lambda: self.gamma is None and meetings())
        return chosen.model_copy(update={} if chosen.credit == "meetings" else {"gamma": chosen.discount})

    @property
    def discount(self) -> float:
        """γ of the critic: as set, else 0 for first meetings and the default for rows."""
        if self.gamma is not None:
            return self.gamma
        return 0.0 if self.credit == "meetings" else DISCOUNT

    def critic_objective(self, logging: str) -> Critic:
        """(Q(x,a) - (r + γ Σ_a μ̂ Q(x',a)))²; for first meetings (r̂(x,a) - R)², R the sum of the item's rewards."""
        if self.credit == "meetings":
            return Critic(kind="reward", gamma=0.0, logging=logging, meetings=True)
        return Critic(kind="q", gamma=self.discount, logging=logging)

    def reads(self) -> Reads:
        """Fields that the stages read: q_fit, next_value and logp_logging."""
        fields = frozenset({"q_fit", "next_value", "logp_logging"})
        meetings = self.credit == "meetings"
        return Reads(fields, "q", self.discount, "expected", logging=self.logging, meetings=meetings)

    def ceiling(self, *, again: bool) -> float | None:
        """`FAR` unless one is set: β is chosen by values in μ's contexts, and a policy far from μ meets others."""
        ceiling = super().ceiling(again=again)
        return FAR if ceiling is None else ceiling

    @property
    def tower_dropout(self) -> float | None:
        """Dropout of the critics, larger than μ̂'s: returns are noisier than next items, so a critic overfits sooner."""
        return CRITIC_DROPOUT if self.critic_dropout is None else self.critic_dropout

    @property
    def largest_factor(self) -> float | None:
        """Largest factor of the probability of an item: as set, else 10, so that none gets nearly all of it.

        Its estimate may be luck, and an item that is shown again and again loses its effect.
        """
        return REPEATED if self.cap is None else self.cap
