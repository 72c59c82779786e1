"""Checks that losses and weights are finite; errors name the step, the place, and the remedy."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from localpolicy.errors import TrainingError
from localpolicy.runtime.ranks import Ranks
from localpolicy.training.epoch_log import LARGEST, EpochLog
from localpolicy.types import Terms

ADVICE = "The last checkpoint is untouched. Lower train.learning_rate, or clip the gradient (train.gradient_clip)."
WEIGHTS = 1e3  # above it the objective's weights are the likely cause


def refuse_broken_terms(means: dict[str, Tensor], terms: Terms, number: int) -> None:
    """Raise TrainingError if a loss term of this step is NaN or infinite."""
    for name, value in means.items():
        if not torch.isfinite(value):
            largest = float(terms.weight.max()) if len(terms.weight) else 0.0
            raise TrainingError(f"step {number}: the term '{name}' is {value.item()} {_weights(largest)}")


def refuse_broken_sums(log: EpochLog, first: int, last: int) -> None:
    """Raise TrainingError if a loss of one of these steps was NaN or infinite, which its sum shows."""
    broken = [name for name, value in log.losses.items() if not torch.isfinite(value)]
    if broken:
        raise TrainingError(
            f"steps {first} to {last}: the term '{broken[0]}' is no longer finite "
            f"{_weights(float(log.moments[LARGEST]))}"
        )


def _weights(largest: float) -> str:
    """Text on the largest weight, with a remedy if it is huge."""
    lighter = " Weights that large come from a small β, a high cap or small propensities: raise β or lower the cap."
    return f"(largest weight {largest:g}). {ADVICE}{lighter if not largest <= WEIGHTS else ''}"


def refuse_broken_weights(network: nn.Module, logp: float, step: int, ranks: Ranks) -> None:
    """Raise TrainingError on all ranks if weights to be kept are not finite: no loss follows an epoch's last step.

    Weights that are finite may still be too large to compute with: then `logp`, their mean on validation, is not.
    """
    (broken,) = ranks.summed(sum(not torch.isfinite(weight).all() for weight in network.parameters()))
    if broken or not math.isfinite(logp):
        raise TrainingError(
            f"step {step}: the weights are no longer finite, or too large to compute with (mean logp on validation: "
            f"{logp:g}). {ADVICE}"
        )
