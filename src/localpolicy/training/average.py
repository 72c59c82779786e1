"""Running average of the weights, which is validated and kept (Polyak and Juditsky 1992).

θ̄_t = d_t θ̄_{t-1} + (1 - d_t) θ_t, d_t = min(d, t / (t + 9)) after t steps of a parameter: a run of few steps is not
held at its start. It is stored in the optimiser's state, so that checkpoints hold it and a captured step updates it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

KEY = "average"
RISE = 9  # steps over which the average begins to be one


def keep_average(optimiser: torch.optim.Optimizer, share: float) -> None:
    """Update the average after every step; do nothing with a share of 0."""
    if share:
        optimiser.register_step_post_hook(lambda stepped, *_: _update(stepped, share))


@torch.no_grad()
def _update(optimiser: torch.optim.Optimizer, share: float) -> None:
    states: list[tuple[Tensor, dict[str, Any]]] = [(each, state) for each, state in optimiser.state.items() if state]
    for parameter, state in states:
        if KEY not in state:
            state[KEY] = parameter.detach().clone()
        # Its own count: a coin leaves some parameters out of a step, and a resumed run holds them in another order.
        step = state["step"]
        if step.is_cuda:  # a captured step reads the count where it is
            state[KEY].lerp_(parameter, 1 - (step / (step + RISE)).clamp(max=share))
        else:
            count = float(step)
            state[KEY].lerp_(parameter, 1 - min(share, count / (count + RISE)))


@contextmanager
def averaged(optimiser: torch.optim.Optimizer) -> Iterator[None]:
    """Context manager: the parameters have the values of their averages, if there are any, in the same memory."""
    pairs = [(each.detach(), state[KEY]) for each, state in optimiser.state.items() if KEY in state]
    _swap(pairs)
    try:
        yield
    finally:
        _swap(pairs)


@torch.no_grad()
def _swap(pairs: list[tuple[Tensor, Tensor]]) -> None:
    for one, other in pairs:
        kept = one.clone()
        one.copy_(other)
        other.copy_(kept)
