"""The critic's loss, shared by all objectives that have one: squared error to a constant target.

Bandit: the target is r, and the critic is r̂ (Dudik et al. 2011, the direct method). Markov decision process: the
target is r + γ V(x') (the paper's equation 11), with double Q-learning after van Hasselt (2010): a coin picks the
head that is fitted, the other evaluates. `target=max` is the paper's and estimates Q*; `target=expected` estimates
Q_μ, of which alone the improvement guarantee speaks. Departures: the target is detached and read without dropout.

In a list the place has its part in the reward: r(x, a, place) = e(place) · r(x, a), with e = 1 at the first place (see
`data.position_bias`). A critic is of the item alone: its target has r/e in place of r, and its squared error the weight
e². In a bandit that is (e r̂ - r)².
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from localpolicy.objectives.objective import Objective, ones_like
from localpolicy.types import Readout, Reads, Terms

if TYPE_CHECKING:
    from torch import Tensor

LOGGING = "μ̂: 'head' (trained with the policy), or the folder of a run (items newer than it have probability 0)"


class TDObjective(Objective):
    """Settings of every objective with a TD loss."""

    gamma: float = Field(0.5, ge=0, lt=1, description="γ: discount of later rewards")
    td_weight: float = Field(1.0, ge=0, description="λ: weight of the TD loss")
    target: Literal["max", "expected"] = Field("max", description="value of the next state in the TD target")
    logging: str = Field("head", description=LOGGING)

    def td_reads(self) -> Reads:
        """Fields that the TD loss reads."""
        fields = {"q_fit", "next_value"} | ({"logp_logging"} if self.target == "expected" else set())
        return Reads(frozenset(fields), "q", self.gamma, self.target, logging=self.logging)

    def td_target(self, readout: Readout) -> Tensor:
        """r/e + γ V(x'), and r/e alone at a sequence's end."""
        return (at_first_place(readout) + self.gamma * readout.need("next_value")).detach()

    def td_loss(self, readout: Readout) -> Tensor:
        """λ e² (Q(x,a) - (r/e + γ V(x')))²."""
        return self.td_weight * critic_error(readout, self.td_target(readout))


class Critic(Objective):
    """A critic alone, in a network of its own: the second stage of the closed form. No policy is trained."""

    name = "critic"
    capturable = True
    default_selection = "-1*return_error"
    kind: Literal["reward", "q"] = Field("q", description="r̂(x,a), or Q_μ(x,a)")
    gamma: float = Field(0.5, ge=0, lt=1, description="γ: discount of later rewards")
    logging: str = Field(description="the folder of μ̂")
    meetings: bool = Field(False, description="of first meetings, each with all its later rewards")

    def reads(self) -> Reads:
        """Fields of the loss: Q at the taken action and, for kind `q` alone, its mean under μ̂ at the next context."""
        fields = {"q_fit"} | ({"next_value"} if self.kind == "q" else set())
        return Reads(
            frozenset(fields), self.kind, self.gamma, "expected", logging=self.logging, policy=False,
            meetings=self.meetings,
        )  # fmt: skip

    def terms(self, readout: Readout) -> Terms:
        """e² (Q(x,a) - (r/e + γ Σ_a μ̂(a|x') Q(x',a)))², and r/e alone for r̂ and at a sequence's end."""
        target = at_first_place(readout)
        if self.kind == "q":
            target = target + self.gamma * readout.need("next_value")
        return Terms({"critic": critic_error(readout, target)}, ones_like(readout.logp))


def at_first_place(readout: Readout) -> Tensor:
    """r/e: the item's reward at the first place of its list."""
    return readout.reward if readout.examined is None else readout.reward / readout.examined


def critic_error(readout: Readout, target: Tensor) -> Tensor:
    """e² (q - target)², the target a constant."""
    error = squared_error(readout.need("q_fit"), target)
    return error if readout.examined is None else readout.examined**2 * error


def squared_error(prediction: Tensor, target: Tensor) -> Tensor:
    """(prediction - target)², the target a constant."""
    return (prediction - target.detach()) ** 2
