"""Runs that end in the midst of training."""

from __future__ import annotations

import pytest

from localpolicy.training.train import train
from localpolicy.training.trainer import Trainer


class Killed(Exception):
    """What ends them: nothing in training catches it."""


def train_until(stop, data, *, out, config, objective=None):
    """Train, and die before step `stop` (of the stage with that objective)."""
    step = Trainer.step

    def dies(self, batch, number, **options):
        if number == stop and objective in (None, self.config.objective.name):
            raise Killed
        return step(self, batch, number, **options)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Trainer, "step", dies)
        train(data, out=out, config=config)
