"""Mean losses: sums over positions, divided by the count of all ranks; no other mean is taken."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def mean_losses(losses: Mapping[str, Tensor], *, count: float | Tensor) -> dict[str, Tensor]:
    """Σ_n loss_n / count, by name. `count` is the positions of all ranks, so that one GPU and eight agree."""
    return {name: loss.sum() / count for name, loss in losses.items()}


def total(losses: Mapping[str, Tensor]) -> Tensor:
    """Σ over the named losses."""
    first, *rest = losses.values()
    for loss in rest:
        first = first + loss
    return first
