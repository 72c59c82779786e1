"""The critic's loss, shared by all objectives that have one: squared error to a constant target.

Bandit: the target is r, and the critic is r̂ (Dudik et al. 2011, the direct method). Markov decision process: the
target is r + γ V(x') (the paper's equation 11), with double Q-learning after van Hasselt (2010): a coin picks the
head that is fitted, the other evaluates. `target=max` is the paper's and estimates Q*; `target=expected` estimates
Q_μ, of which alone the improvement guarantee speaks. Departures: the target is detached and read without dropout.
"""

from __future__ import annotations

from torch import Tensor

from localpolicy.objectives.config import ObjectiveConfig
from localpolicy.types import Readout


def td_reads(config: ObjectiveConfig) -> frozenset[str]:
    """What the TD loss reads."""
    reads = frozenset({"q_fit", "next_value"})
    return reads | {"logp_logging"} if config.target == "expected" else reads


def td_target(readout: Readout, config: ObjectiveConfig) -> Tensor:
    """r + γ V(x'), and r alone at a sequence's end."""
    return (readout.reward + config.gamma * readout.need("next_value")).detach()


def squared_error(prediction: Tensor, target: Tensor) -> Tensor:
    """(prediction - target)², the target a constant."""
    return (prediction - target.detach()) ** 2


def td_loss(readout: Readout, config: ObjectiveConfig) -> Tensor:
    """λ (Q(x,a) - (r + γ V(x')))²."""
    return config.td_weight * squared_error(readout.need("q_fit"), td_target(readout, config))
