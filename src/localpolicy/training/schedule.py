"""The learning rate over the steps of a run, and what happens every so many steps."""

from __future__ import annotations

import math

from localpolicy.runs.config import TrainConfig


def learning_rate_factor(config: TrainConfig, step: int, *, steps: int) -> float:
    """A linear rise over `warmup` steps, then constant or half a cosine over all `steps`."""
    rise = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
    if config.schedule == "constant":
        return rise
    return rise * 0.5 * (1 + math.cos(math.pi * step / steps))


def due(every: int | None, step: int) -> bool:
    """Whether `step` is a multiple of `every`."""
    return every is not None and step % every == 0
