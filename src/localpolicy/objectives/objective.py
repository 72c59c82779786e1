"""What an objective is: a pure function from per-position numbers to named per-position losses.

It reads the fields of a `Readout` that it declares, and nothing else: so it cannot get a reduction wrong, knows
nothing of the catalogue's size, and its tests need no model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from localpolicy.objectives.config import ObjectiveConfig
from localpolicy.types import Readout, Terms


class Formula(Protocol):
    """An objective's equation."""

    def __call__(self, readout: Readout, config: ObjectiveConfig) -> Terms: ...


@dataclass(frozen=True)
class Objective:
    """An equation, what it reads, and what it asks of the data."""

    formula: Formula
    reads: Callable[[ObjectiveConfig], frozenset[str]] = lambda config: frozenset()  # beyond logp and reward
    settings: frozenset[str] = frozenset()  # fields of the config that it uses
    critic: str | None = None  # 'reward' (r̂, one head) or 'q' (double Q)
    non_negative: bool = False  # its bound needs r >= 0
    uses_reward: bool = True
    advantages: tuple[str, ...] = ()  # the default first


def weighted(logp: Tensor, weight: Tensor, *, clipped: Tensor | None = None, **auxiliary: Tensor) -> Terms:
    """-w log π(a|x), w constant; and auxiliary losses by name."""
    weight = weight.detach()
    return Terms({"policy": -weight * logp, **auxiliary}, weight, clipped)


def unweighted(logp: Tensor, **auxiliary: Tensor) -> Terms:
    """-log π(a|x); and auxiliary losses by name."""
    return weighted(logp, torch.ones_like(logp), **auxiliary)
