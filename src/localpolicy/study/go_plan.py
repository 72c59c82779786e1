"""The plan of `go`: settings that fit the log, and as many runs and epochs as fit the time; noted in OUT/go.yaml.

Minutes are counted from the command's start. What is measured as it goes: steps and a validation before the plan is
made, and one measurement of a trained policy before all are judged. What is cut, in this order: sequences that are held
out of a large log, epochs, the second estimate of the logging policy, and test sequences that are judged.
"""

from __future__ import annotations

import logging
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import TypeAdapter, ValidationError

from localpolicy.data.batches import Windows
from localpolicy.data.guess.guess import Guess
from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.errors import RunError
from localpolicy.measure.metrics import question_of
from localpolicy.measure.score import score
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.files import read_yaml, sha256, write_text
from localpolicy.runtime.folders import remove_abandoned
from localpolicy.runtime.processes import cores
from localpolicy.study.measured import REFERENCE_SEEDS
from localpolicy.training.setup import resolve
from localpolicy.training.trainer import Trainer
from localpolicy.training.validation import validate

LOG = logging.getLogger(__name__)
FEWEST_EPOCHS, ENOUGH_EPOCHS = 3, 40  # of a run: fewer teach little; most runs have found their best by then
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


@dataclass(frozen=True)
class Plan:
    """What will be trained, and how long it will take."""

    config: Config  # of the estimates; the improvement differs in its objective alone
    improve: str | None  # the objective; None where no event is worth more than another
    runs: int
    epoch_seconds: float  # of one run
    seconds: float  # of all, at most: early stopping may end them sooner
    scoring_seconds: float = 0.0  # of one pass over the validation split
    seeds: tuple[int, ...] = REFERENCE_SEEDS  # of the estimates: the second one is left out where time is short
    side_by_side: bool = True  # whether the estimates are trained at the same time
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """How many runs, and how long they take."""
        took = f"{self.seconds:.0f} s" if self.seconds < 90 else f"{self.seconds / 60:.0f} min"
        most = f"about {took} at most ({self.epoch_seconds:.1f} s an epoch)"
        return f"{self.runs} runs of at most {counted(self.config.train.epochs, 'epoch')}: {most}"


PLAN = TypeAdapter(Plan)  # reads and writes it, in go.yaml


def prepare_log(log: Path, out: Path, guessed: Guess, *, seed: int) -> Prepared:
    """The data set under `out`, or the one that is there of the same log and the same meaning."""
    folder, noted = out / "data", out / "go.yaml"
    asked = {"log": sha256(log), "source": guessed.source, **guessed.settings(), "seed": seed}
    remove_abandoned(folder)
    if (folder / "manifest.json").exists():
        if not noted.exists() or _noted(noted).get("prepare") != asked:
            raise RunError(f"{out} holds another log, or the same one read otherwise: choose another --out.")
        LOG.info("%s: prepared before", folder)
        return Prepared(folder)
    # First: data that a kill left without a note could not be known again.
    write_text(noted, yaml.safe_dump({"prepare": asked}, sort_keys=False))
    return prepare(log, source=guessed.source, out=folder, seed=seed, **guessed.settings())


def plan(
    data: Prepared, out: Path, *, clock: Clock, seed: int, changes: Sequence[str] = (), device: str = "auto"
) -> Plan:
    """The plan of an earlier call with the same wishes, or a new one: times differ from call to call."""
    noted = out / "go.yaml"
    content = _noted(noted)
    asked = {"minutes": clock.minutes, "seed": seed, "changes": list(changes)}
    if "plan" in content:
        if content.get("asked") != asked:
            raise RunError(f"{out} was begun with {content.get('asked')}, now {asked}: choose another --out.")
        try:
            return PLAN.validate_python(content["plan"])
        except ValidationError:
            raise RunError(f"{noted} was altered: its plan cannot be read. Choose another --out.") from None
    made = make_plan(data, clock=clock, seed=seed, changes=changes, device=device)
    content |= {"asked": asked, "plan": PLAN.dump_python(made, mode="json")}
    write_text(noted, yaml.safe_dump(content, sort_keys=False))
    return made


def _noted(path: Path) -> dict[str, Any]:
    """What go.yaml says."""
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise RunError(f"{path} was altered: it holds no settings. Choose another --out.")
    return content


def make_plan(data: Prepared, *, clock: Clock, seed: int, changes: Sequence[str] = (), device: str = "auto") -> Plan:
    """The settings that fit the log, and as many epochs as fit the time; a few steps are timed for it."""
    alone = int(np.diff(data["train"].offsets).max()) == 1  # each decision by itself
    question = question_of(data)
    improve = None if question.kind == "nothing" else "lpi_cb" if alone or question.kind == "liking" else "lpi_rl"
    notes = [] if improve else [f"{question.why}: models are ranked, and nothing is decided"]
    # Half of the validation split chooses epochs, the other half β of the improvement.
    train = {"seed": seed, "device": device, "min_history": 0 if alone else 1, "choose_on": "half"}
    config = resolve(Config.parse({"objective": {"name": "mle"}, "train": train}).with_changes(changes), data)
    epoch, scoring = epoch_seconds(data, config)
    side_by_side = clock.minutes >= SIDE_BY_SIDE and config.train.device == "cpu" and cores() > 1
    seeds: tuple[int, ...] = REFERENCE_SEEDS
    minutes = counted(clock.minutes, "minute")
    asked = any(change.startswith("train.epochs=") for change in changes)
    budget = TRAINING_SHARE * clock.left
    # One epoch of every run: the improvement's critic comes after the estimates.
    together = epoch * ((1 if side_by_side else len(seeds)) + (improve is not None))
    if budget < FEWEST_EPOCHS * together and not asked:
        seeds, together = REFERENCE_SEEDS[:1], epoch * (1 + (improve is not None))
        notes.append(
            f"there is little time ({minutes}) for this log on this machine: the second estimate of the "
            "logging policy is left out, so how far two seeds differ (the noise floor) is not known"
        )
    most = fitting = config.train.epochs
    if not asked:
        wanted, fitting = min(most, ENOUGH_EPOCHS), int(np.clip(budget / together, 1, most))
        if fitting < wanted:
            needed = math.ceil(wanted * together / (60 * TRAINING_SHARE * (1 - REPORT_SHARE)))
            too_few = fitting < FEWEST_EPOCHS
            weak = "too few to learn much" if too_few else "the policies may be weaker than they could be"
            notes.append(
                f"there is time ({minutes}) for about {counted(fitting, 'epoch')} a run, where `lpi train` takes up to "
                f"{most} and often needs {wanted}: {weak}. --minutes {needed} allows {wanted}"
            )
        # Where even the fewest do not fit the clock ends the runs: the gate knows then why they have learned so little.
        config = config.trained_with(epochs=max(fitting, min(FEWEST_EPOCHS, most)))
    judging = judging_seconds(data, scoring, min(len(data["test"]), FEWEST_JUDGED))
    passes = len(seeds) * OF_AN_ESTIMATE + (improve is not None) * OF_THE_IMPROVEMENT
    least = (clock.spent + passes * scoring + judging) / 60 + REPORT_SHARE * clock.minutes
    if least > clock.minutes:
        kept = f"even the least takes about {math.ceil(least)} minutes for this log on this machine"
        notes.insert(0, f"{kept}: {minutes} cannot be kept")
    runs = len(seeds) + (improve is not None)
    return Plan(config, improve, runs, epoch, together * fitting, scoring, seeds, side_by_side, tuple(notes))


def counted(number: float, what: str) -> str:
    """1 epoch, 2 epochs."""
    return f"1 {what}" if number == 1 else f"{number:g} {what}s"


# ---------------------------------------------------------------------- how long things take here


@dataclass(frozen=True)
class Clock:
    """When it began, by time.monotonic(), and how many minutes it has."""

    began: float
    minutes: float

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        """Seconds until the page must be written; never less than a share, whatever came before."""
        return max(60 * self.minutes * (1 - REPORT_SHARE) - self.spent, LEAST_SHARE * 60 * self.minutes)


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


def judging_seconds(data: Prepared, scoring: float, sequences: int) -> float:
    """How long judging on so many sequences takes, by the pass over the validation split that was timed."""
    return PASSES * ALL_OF_IT * scoring * sequences / max(len(data["validation"]), 1)


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
