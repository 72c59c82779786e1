"""The plan of `go`: settings that fit the log, and as many runs and epochs as fit the time; noted in OUT/go.yaml.

The plan follows from counts and from the kept speed of this machine (`speed`), and no clock changes it afterwards: the
same log, seed and minutes give the same plan and the same verdict, next to other work too, where all takes longer. What
is cut, in this order: sequences that are held out of a large log, items that a training step sums over, epochs, the
second estimate of the logging policy, and test sequences that are judged. Where nothing can be decided, one estimate is
enough: it is ranked with the simple baselines. Every stage is counted as work of one core: reading, measuring the
speed, fitting the baselines, training, choosing β, judging.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import TypeAdapter, ValidationError

from localpolicy.data.guess.guess import Guess
from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.errors import RunError
from localpolicy.judge.checks.order import order_check
from localpolicy.measure.metrics import Question, question_of
from localpolicy.model.counts import LONGEST
from localpolicy.runs.config import Config
from localpolicy.runtime.files import read_yaml, sha256, write_text
from localpolicy.runtime.folders import remove_abandoned
from localpolicy.runtime.processes import cores
from localpolicy.study.measured import REFERENCE_SEEDS
from localpolicy.study.speed import probe_seconds, speed_of
from localpolicy.training.setup import resolve
from localpolicy.training.train import improving_objective

LOG = logging.getLogger(__name__)
FEWEST_EPOCHS, ENOUGH_EPOCHS = 3, 40  # of a run: fewer teach little; most runs have found their best by then
TRAINING_SHARE = 0.6  # of what reading and preparing leave; the rest is for judging
REPORT_SHARE = 0.1  # of the minutes, for the page
LEAST_SHARE = 0.2  # of the minutes, for training and for judging, whatever came before
HELD_OUT = 1000  # sequences a minute, for validation and for the test each; of fewer than this a tenth is taken
TENTH = 0.1
FEW, LEAST_HELD_OUT = 100, 3  # sequences
# Decisions that the test should have: the gate needs an effective sample of 100, and a policy that is worth a step has
# a fifth of the decisions. No more than a fifth of the sequences is held out for them.
TO_JUDGE, FIFTH = 600, 0.2
SIDE_BY_SIDE = 3.0  # minutes below which starting processes costs more than it saves
STARTING, READ_EVENTS = 10.0, 100_000  # seconds until a log is read, and events that are prepared in one
LADDER = (*range(1, 7), 8, 10, 12, 15, 20, 25, 30, 40, 50, 65, 80, 100, 125, 160, 200)  # epochs
# In validations: what runs take on top of their steps (β is chosen among a dozen), and a measurement against estimates.
OF_AN_ESTIMATE, OF_THE_IMPROVEMENT, ALL_OF_IT = 3, 8, 2.5
PASSES, OF_ONE = 13, 9  # that judging all of them costs, in measurements of one policy against the estimates; by one
FITTED_PAIRS = 12_000  # items of sequences (the last LONGEST of each) that ALS and item-kNN are fitted to in a second
FEWEST_JUDGED = 100  # sequences
WIDE, LEAST_SAMPLE = 10_000, 2_000  # items: of a catalogue that training may sample, and of a sample


@dataclass(frozen=True)
class Plan:
    """Training plan of a `go` call: configuration, number of runs and estimated time."""

    config: Config  # of the estimates; the improvement differs in its objective alone
    improve: str | None  # the objective; None where all events have the same reward
    runs: int
    epoch_seconds: float  # of one run
    seconds: float  # of all, at most: early stopping may end them sooner
    seeds: tuple[int, ...] = REFERENCE_SEEDS  # of the estimates: the second one is left out where time is short
    side_by_side: bool = True  # whether the estimates are trained at the same time
    judged: int | None = None  # test sequences; None: all of them
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """Text with the number of runs and the time they take."""
        took = f"{self.seconds:.0f} s" if self.seconds < 90 else f"{self.seconds / 60:.0f} min"
        most = f"about {took} at most ({self.epoch_seconds:.1f} s an epoch)"
        return f"{counted(self.runs, 'run')} of at most {counted(self.config.train.epochs, 'epoch')}: {most}"


PLAN = TypeAdapter(Plan)  # reads and writes it, in go.yaml


def prepare_log(log: Path, out: Path, guessed: Guess, *, seed: int) -> Prepared:
    """Prepare the log under `out`, or reuse the data set there if log and settings are equal."""
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
    data: Prepared, out: Path, *, minutes: float, seed: int, changes: Sequence[str] = (), device: str = "auto"
) -> Plan:
    """Load the plan of an earlier call with equal arguments, or make a new one and store it in go.yaml."""
    noted = out / "go.yaml"
    content = _noted(noted)
    asked = {"minutes": minutes, "seed": seed, "changes": list(changes)}
    if "plan" in content:
        if content.get("asked") != asked:
            raise RunError(f"{out} was begun with {content.get('asked')}, now {asked}: choose another --out.")
        try:
            return PLAN.validate_python(content["plan"])
        except ValidationError:
            raise RunError(f"{noted} was altered: its plan cannot be read. Choose another --out.") from None
    made = make_plan(data, minutes=minutes, seed=seed, changes=changes, device=device)
    content |= {"asked": asked, "plan": PLAN.dump_python(made, mode="json")}
    write_text(noted, yaml.safe_dump(content, sort_keys=False))
    return made


def _noted(path: Path) -> dict[str, Any]:
    """Content of go.yaml."""
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise RunError(f"{path} was altered: it holds no settings. Choose another --out.")
    return content


def make_plan(data: Prepared, *, minutes: float, seed: int, changes: Sequence[str] = (), device: str = "auto") -> Plan:
    """Choose the settings that fit the log, and as many epochs as fit the time on this machine."""
    question = question_of(data)
    improve = None if question.kind == "nothing" else improving_objective(data)[0]
    notes: list[str] = []
    # Half of the validation split chooses epochs, the other half β of the improvement.
    train = {"seed": seed, "device": device, "choose_on": "half"}
    config = resolve(Config.parse({"objective": {"name": "mle"}, "train": train}).with_changes(changes), data)
    side_by_side = minutes >= SIDE_BY_SIDE and config.train.device == "cpu" and cores() > 1
    seeds: tuple[int, ...] = REFERENCE_SEEDS if improve else REFERENCE_SEEDS[:1]
    given, left = counted(minutes, "minute"), time_left(minutes, sum(split.events for split in data.splits.values()))
    left -= fitting_seconds(data)
    judging = ALL_OF_IT * (PASSES if improve else OF_ONE)
    asked = any(change.startswith("train.epochs=") for change in changes)
    test, stages = len(data["test"]), (1 if side_by_side else len(seeds)) + (improve is not None)
    # Validations that runs make next to those of their epochs.
    passes = (1 if side_by_side else len(seeds)) * OF_AN_ESTIMATE + (improve is not None) * OF_THE_IMPROVEMENT

    def timed(config: Config) -> tuple[float, float, float]:
        """Seconds of an epoch, of a sequence that is scored, and for training."""
        nonlocal left
        step, each = speed_of(data, config)
        left -= probe_seconds(data, config, step, each)
        validation = each * len(data["validation"])
        epoch = step * math.ceil(len(data["train"]) / config.train.batch_size) + validation
        rest = left - passes * validation
        return epoch, each, max(rest - judging * each * test, TRAINING_SHARE * rest)

    epoch, each, budget = timed(config)
    if min(config.train.epochs, ENOUGH_EPOCHS) * epoch * stages > budget and (size := sample_size(data, config)):
        config = config.model_copy(update={"train": config.train.model_copy(update={"sampled": size})})
        epoch, each, budget = timed(config)
        notes.append(
            f"to stay within the time ({given}), training sums over {size:,} of {data.n_items:,} items at each step, "
            "drawn and weighed by their chances; everything is measured over all items"
        )
    scoring = each * len(data["validation"])
    together = epoch * stages  # one epoch of every run: the improvement's critic comes after the estimates
    if budget < FEWEST_EPOCHS * together and not asked:
        seeds, together = REFERENCE_SEEDS[:1], epoch * (1 + (improve is not None))
        notes.append(
            f"there is little time ({given}) for this log on this machine: the second estimate of the "
            "logging policy is left out, so how far two seeds differ (the noise floor) is not known"
        )
    most = trained = config.train.epochs
    if not asked:
        wanted, fitting = min(most, ENOUGH_EPOCHS), on_ladder(int(np.clip(budget / together, 1, most)))
        trained = max(fitting, min(FEWEST_EPOCHS, most))
        if fitting < wanted:
            needed = math.ceil(wanted * together / (60 * TRAINING_SHARE * (1 - REPORT_SHARE)))
            too_few = fitting < FEWEST_EPOCHS
            weak = "too few to learn much" if too_few else "the policies may be weaker than they could be"
            notes.append(
                f"there is time ({given}) for about {counted(fitting, 'epoch')} a run, where `lpi train` takes up to "
                f"{most} and often needs {wanted}: {weak}. --minutes {needed} allows {wanted}"
            )
        config = config.trained_with(epochs=trained)
    training = together * trained
    left -= passes * scoring
    judged = judged_within(max(left - training, (1 - TRAINING_SHARE) * left), judging * each, test)
    if judged is not None:
        notes.append(f"only {judged:,} of {test:,} test sequences are judged, to stay within the time")
    fewest = together * min(trained, FEWEST_EPOCHS)
    least = (fewest + judging * each * min(test, FEWEST_JUDGED) + 60 * minutes - left) / 60
    if least > minutes:
        kept = f"even the least takes about {counted(math.ceil(least), 'minute')} for this log on this machine"
        notes.insert(0, f"{kept}: {given} cannot be kept")
    runs = len(seeds) + (improve is not None)
    notes = [*known_first(data, question), *notes]
    return Plan(config, improve, runs, epoch, training, seeds, side_by_side, judged, tuple(notes))


def known_first(data: Prepared, question: Question) -> tuple[str, ...]:
    """Notes on answers that no training can change: nothing to decide, or rows in no order of time."""
    begins = "known before any training: the answer will be"
    if question.kind == "nothing":
        return (
            f"{begins} 'nothing to decide', since {question.why}. What follows only ranks models by what was taken",
        )
    order = order_check(data)
    return () if order is None else (f"{begins} 'cannot tell', since {order.because}",)


def sample_size(data: Prepared, config: Config) -> int | None:
    """Items to draw for each training step; None if all are summed over (a narrow catalogue, lists, a GPU)."""
    lists = "above" in data["train"].arrays or data.filters is not None
    if data.n_items < WIDE or lists or config.train.device != "cpu" or config.train.sampled is not None:
        return None
    return max(LEAST_SAMPLE, data.n_items // 16)


def counted(number: float, what: str) -> str:
    """Text of a count with its noun in the right number: 1 epoch, 2 epochs."""
    return f"1 {what}" if number == 1 else f"{number:g} {what}s"


# ---------------------------------------------------------------------- how long things take here


def held_out(sequences: int, minutes: float, *, decisions: int = 0) -> int | None:
    """Number of sequences for validation and for the test each; None: a tenth, drawn one by one.

    Fewer if the minutes do not allow to score a tenth; up to a fifth if a tenth of the `decisions` with propensities
    says too little to the gate. Of few sequences the number is fixed: a tenth at random might be none.
    """
    share = min(FIFTH, max(TENTH, TO_JUDGE / decisions)) if decisions else TENTH
    if 0 < sequences < FEW:
        return max(LEAST_HELD_OUT, round(share * sequences))
    most = math.ceil(HELD_OUT * max(minutes, 1.0))
    if TENTH * sequences > most:
        return most
    return None if share == TENTH else min(most, round(share * sequences))


def time_left(minutes: float, events: int) -> float:
    """Seconds for training and judging: without reading the log, and without the page."""
    reading = STARTING + events / READ_EVENTS
    return max(60 * minutes * (1 - REPORT_SHARE) - reading, LEAST_SHARE * 60 * minutes)


def on_ladder(epochs: int) -> int:
    """Largest of a few fixed numbers of epochs that is at most `epochs`, so that plans repeat."""
    return max((step for step in LADDER if step <= epochs), default=1)


def fitting_seconds(data: Prepared) -> float:
    """Seconds for ALS and item-kNN, by the number of items that they are fitted to."""
    return float(np.minimum(np.diff(data["train"].offsets), LONGEST).sum()) / FITTED_PAIRS


def judged_within(seconds: float, each: float, every: int) -> int | None:
    """Number of test sequences that can be judged in this time at `each` seconds a sequence; None: all."""
    fitting = max(int(seconds / each), FEWEST_JUDGED)
    return None if fitting >= every else fitting
