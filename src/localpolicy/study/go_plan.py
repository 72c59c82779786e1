"""The plan of `go`: settings that fit the log, and as many runs and epochs as fit the time; noted in OUT/go.yaml."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from localpolicy.data.guess.guess import Guess
from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.errors import RunError
from localpolicy.judge.gate import THE_LOG
from localpolicy.measure.question import question_of
from localpolicy.runs.config import Config
from localpolicy.runtime.files import read_yaml, sha256, utf8, whole_file
from localpolicy.runtime.folders import remove_abandoned
from localpolicy.study.go_time import (
    ALL_OF_IT,
    FEWEST_JUDGED,
    OF_AN_ESTIMATE,
    OF_THE_IMPROVEMENT,
    PASSES,
    REPORT_SHARE,
    SIDE_BY_SIDE,
    TRAINING_SHARE,
    Clock,
    epoch_seconds,
)
from localpolicy.study.jobs import cores
from localpolicy.study.measured import REFERENCE_SEEDS
from localpolicy.training.setup import resolve

LOG = logging.getLogger(__name__)
IMPROVED = "improved"  # the run that is judged
FEWEST_EPOCHS, ENOUGH_EPOCHS = 3, 40  # of a run: fewer teach little; most runs have found their best by then
LISTED = ("notes", "by_log", "seeds")  # of a plan, as YAML holds them


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
    by_log: tuple[str, ...] = ()  # the word `log`, where the value of what wrote it is known
    notes: tuple[str, ...] = ()


def prepare_log(log: Path, out: Path, guessed: Guess, *, seed: int) -> Prepared:
    """The data set under `out`, or the one that is there of the same log and the same meaning."""
    folder, digest = out / "data", sha256(log)
    asked = {"log": digest, "source": guessed.source, **guessed.settings(), "seed": seed}
    noted = out / "go.yaml"
    remove_abandoned(folder)
    if (folder / "manifest.json").exists():
        if not noted.exists() or _noted(noted).get("prepare") != asked:
            raise RunError(f"{out} holds another log, or the same one read otherwise: choose another --out.")
        LOG.info("%s: prepared before", folder)
        return Prepared(folder)
    # First: data that a kill left without a note could not be known again.
    with whole_file(noted) as partial:
        partial.write_bytes(utf8(yaml.safe_dump({"prepare": asked}, sort_keys=False)))
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
            known = {**content["plan"]}
            listed = {name: tuple(known[name]) for name in LISTED}
            return Plan(**{**known, **listed, "config": Config.parse(known["config"])})
        except (KeyError, TypeError):
            raise RunError(f"{noted} was altered: its plan cannot be read. Choose another --out.") from None
    made = make_plan(data, clock=clock, seed=seed, changes=changes, device=device)
    plain = {**{name: list(getattr(made, name)) for name in LISTED}, "config": made.config.model_dump()}
    content |= {"asked": asked, "plan": {**vars(made), **plain}}
    with whole_file(noted) as partial:
        partial.write_bytes(utf8(yaml.safe_dump(content, sort_keys=False)))
    return made


def _noted(path: Path) -> dict[str, Any]:
    """What go.yaml says."""
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise RunError(f"{path} was altered: it holds no settings. Choose another --out.")
    return content


def make_plan(data: Prepared, *, clock: Clock, seed: int, changes: Sequence[str] = (), device: str = "auto") -> Plan:
    """The settings that fit the log, and as many epochs as fit the time; a few steps are timed for it."""
    notes = []
    lengths = np.diff(data["train"].offsets)
    question = question_of(data)
    bandit = question.kind == "liking" or int(lengths.max()) == 1
    improve = None if question.kind == "nothing" else "lpi_cb" if bandit else "lpi_rl"
    if improve is None:
        notes.append(f"{question.why}: models are ranked, and nothing is decided")
    settings: dict[str, Any] = {
        "objective": {"name": "mle"},
        "train": {
            "seed": seed, "device": device, "min_history": 0 if int(lengths.max()) == 1 else 1,
            "choose_on": "half",  # the other half chooses β of the improvement
        },
    }  # fmt: skip
    config = resolve(Config.parse(settings).with_changes(changes), data)
    epoch, scoring = epoch_seconds(data, config)
    side_by_side = clock.minutes >= SIDE_BY_SIDE and config.train.device == "cpu" and cores() > 1
    seeds: tuple[int, ...] = REFERENCE_SEEDS
    minutes = "1 minute" if clock.minutes == 1 else f"{clock.minutes:g} minutes"
    asked = any(change.startswith("train.epochs=") for change in changes)
    budget = TRAINING_SHARE * clock.left

    def together() -> int:
        """How many times as long as one run all of them take: the improvement's critic comes after the estimates."""
        return (1 if side_by_side else len(seeds)) + (improve is not None)

    if budget < FEWEST_EPOCHS * together() * epoch and not asked:
        seeds = REFERENCE_SEEDS[:1]
        notes.append(
            f"there is little time ({minutes}) for this log on this machine: the second estimate of the "
            "logging policy is left out, so how far two seeds differ (the noise floor) is not known"
        )
    seconds = together() * epoch * config.train.epochs
    if not asked:
        most, wanted = config.train.epochs, min(config.train.epochs, ENOUGH_EPOCHS)
        fitting = int(np.clip(budget / (together() * epoch), 1, most))
        if fitting < wanted:
            needed = math.ceil(wanted * together() * epoch / (60 * TRAINING_SHARE * (1 - REPORT_SHARE)))
            too_few = fitting < FEWEST_EPOCHS
            notes.append(
                f"there is time ({minutes}) for about {counted_epochs(fitting)} a run, where `lpi train` takes up to "
                f"{most} and often needs {wanted}: "
                f"{'too few to learn much' if too_few else 'the policies may be weaker than they could be'}. "
                f"--minutes {needed} allows {wanted}"
            )
        # Where even the fewest do not fit the clock ends the runs: the gate knows then why they have learned so little.
        epochs, seconds = max(fitting, min(FEWEST_EPOCHS, most)), together() * epoch * fitting
        config = config.model_copy(update={"train": config.train.model_copy(update={"epochs": epochs})})
    judged = min(len(data["test"]), FEWEST_JUDGED) / max(len(data["validation"]), 1)
    runs = len(seeds) + (improve is not None)
    passes = len(seeds) * OF_AN_ESTIMATE + (improve is not None) * OF_THE_IMPROVEMENT + PASSES * ALL_OF_IT * judged
    least = clock.spent + passes * scoring + REPORT_SHARE * clock.total
    if least > clock.total:
        notes.insert(
            0,
            f"even the least takes about {math.ceil(least / 60)} minutes for this log on this machine: {minutes} "
            "cannot be kept",
        )
    # What was shown with known probabilities is judged by what it earned, not by how well its log is imitated.
    by_log = (THE_LOG,) if question.kind == "value" else ()
    return Plan(config, improve, runs, epoch, seconds, scoring, seeds, side_by_side, by_log, tuple(notes))


def counted_epochs(epochs: int) -> str:
    """1 epoch, 2 epochs."""
    return "1 epoch" if epochs == 1 else f"{epochs} epochs"
