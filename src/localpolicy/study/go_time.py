"""The time of `go`: how long things take on this machine with this log, and what is left out to keep the minutes.

Minutes are counted from the command's start. What is measured as it goes: steps and a validation before the plan is
made, and one measurement of a trained policy before all are judged. What is cut, in this order: sequences that are held
out of a large log, epochs, the second estimate of the logging policy, and test sequences that are judged.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from localpolicy.data.batches import Windows
from localpolicy.data.store import Prepared
from localpolicy.measure.score import score
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.training.trainer import Trainer
from localpolicy.training.validation import validate

TRAINING_SHARE = 0.6  # of what reading and preparing leave; the rest is for judging
REPORT_SHARE = 0.1  # of the minutes, for the page
LEAST_SHARE = 0.2  # of the minutes, for training and for judging, whatever came before
HELD_OUT = 1000  # sequences a minute, for validation and for the test each; of fewer than this a tenth is taken
TENTH = 0.1
FEW, LEAST_HELD_OUT = 100, 3  # sequences
SIDE_BY_SIDE = 3.0  # minutes below which starting processes costs more than it saves
PROBE = 6  # steps that are timed; the first two warm up
PROBED = 64  # sequences of the validation that is timed, and of the measurement
# In validations: what runs take beside their steps (β is chosen among a dozen), and a measurement against estimates.
OF_AN_ESTIMATE, OF_THE_IMPROVEMENT, ALL_OF_IT = 3, 8, 2.5
PASSES = 10  # that judging all of them costs, in measurements of one policy against the estimates
FEWEST_JUDGED = 100  # sequences
LEAST_TRAINING = 1.0  # seconds


@dataclass(frozen=True)
class Clock:
    """When it began, by time.monotonic(), and how many minutes it has."""

    began: float
    minutes: float

    @property
    def total(self) -> float:
        """In seconds."""
        return 60 * self.minutes

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        """Seconds until the page must be written; never less than a share, whatever came before."""
        return max(self.total * (1 - REPORT_SHARE) - self.spent, LEAST_SHARE * self.total)


def held_out(sequences: int, minutes: float) -> int | None:
    """How many sequences validation and test get each, where a tenth is more than the minutes allow to score.

    Of few sequences a tenth is counted: at random it might be none.
    """
    if 0 < sequences < FEW:
        return max(LEAST_HELD_OUT, round(TENTH * sequences))
    most = math.ceil(HELD_OUT * max(minutes, 1.0))
    return most if TENTH * sequences > most else None


def epoch_seconds(data: Prepared, config: Config) -> tuple[float, float]:
    """How long an epoch takes here, and a pass over the validation split: a few steps and a part of one, timed."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer.start(data, Run(folder), config)
        batches = trainer.windows.shuffled(config.train.batch_size, seed=0, epoch=0)
        trainer.network.train()
        began, steps = time.perf_counter(), 0
        for number, batch in zip(range(PROBE), batches, strict=False):
            if number == 2:
                began, steps = time.perf_counter(), 0
            if len(batch.scored):
                trainer.step(batch, number)
            steps += 1
        step = (time.perf_counter() - began) / max(steps, 1)
        every, scoring = len(trainer.held_out), math.inf
        part = trainer.held_out.only(_spread(every))
        for _ in range(2):  # the first also pays for imports
            began = time.perf_counter()
            validate(trainer.policy(), part, config, data=data, step=0, ranks=trainer.ranks)
            scoring = min(scoring, time.perf_counter() - began)
        whole = scoring * every / max(len(part), 1)
        return step * trainer.batches + whole, whole


def affordable(data: Prepared, config: Config, run: Run, references: Sequence[Run], clock: Clock) -> int | None:
    """How many test sequences can be judged in the time that is left, by one measurement; None: all of them."""
    every = len(data["test"])
    if every <= FEWEST_JUDGED:
        return None
    device = config.train.device
    policy, others = run.policy(), {each.folder.name: each.policy() for each in references}
    for each in (policy, *others.values()):
        each.network.to(device)
    part = Windows(data, "test", config.data, device=device).only(_spread(every))
    began = time.monotonic()
    score(policy, part, events=data.events, references=others, min_history=config.train.min_history, lists=20)
    seconds = (time.monotonic() - began) / len(part)  # of one sequence
    fitting = max(int(clock.left / (PASSES * seconds)), FEWEST_JUDGED)
    return None if fitting >= every else fitting


def _spread(every: int) -> np.ndarray:
    """A few of so many, evenly spaced."""
    return np.unique(np.linspace(0, max(every - 1, 0), min(every, PROBED)).astype(np.int64))
