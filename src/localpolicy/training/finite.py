"""Numbers that are no longer finite end a run: with the step, the place, and what to do."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from localpolicy.errors import TrainingError
from localpolicy.runtime.ranks import Ranks
from localpolicy.training.epoch_log import LARGEST, EpochLog
from localpolicy.types import Terms

ADVICE = (
    "The last checkpoint is untouched. Lower the learning rate, raise beta, or clip the gradient (train.gradient_clip)."
)


def refuse_broken_terms(means: dict[str, Tensor], terms: Terms, number: int) -> None:
    """Before a step: none of its losses may be broken."""
    for name, value in means.items():
        if not torch.isfinite(value):
            largest = float(terms.weight.max()) if len(terms.weight) else 0.0
            raise TrainingError(
                f"step {number}: the term '{name}' is {value.item()} (largest weight {largest:g}). {ADVICE}"
            )


def refuse_broken_sums(log: EpochLog, first: int, last: int) -> None:
    """After several steps: a loss that broke in one of them has broken its sum."""
    broken = [name for name, value in log.losses.items() if not torch.isfinite(value)]
    if broken:
        raise TrainingError(
            f"steps {first} to {last}: the term '{broken[0]}' is no longer finite (largest weight "
            f"{float(log.moments[LARGEST]):g}). {ADVICE}"
        )


def refuse_broken_weights(network: nn.Module, logp: float, step: int, ranks: Ranks) -> None:
    """Before weights are kept, on all ranks alike: an epoch's last step can break them, and no loss comes after it.

    Weights that are finite may still be too large to compute with: then `logp`, their mean on validation, is not.
    """
    (broken,) = ranks.summed(sum(not torch.isfinite(weight).all() for weight in network.parameters()))
    if broken or not math.isfinite(logp):
        raise TrainingError(
            f"step {step}: the weights are no longer finite, or too large to compute with (mean logp on validation: "
            f"{logp:g}). {ADVICE}"
        )
