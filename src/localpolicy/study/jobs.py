"""What one process does: train a run, and measure it as an arm. What is done already is not done again.

figures/<arm>/arm.json       settings, selection, figures on validation and test; or why it failed
figures/<arm>/test.parquet   of each test position: sequence, event, repeat, rank, JS from the references
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from localpolicy.data.store import Prepared
from localpolicy.errors import RunError, TrainingError
from localpolicy.measure.candidates import open_run, window_of
from localpolicy.measure.estimate import as_json
from localpolicy.measure.evaluate import measure, world_of
from localpolicy.measure.evaluate import settings_of as evaluation_settings
from localpolicy.measure.imputation import imputation_at
from localpolicy.measure.opening import refuse_incomparable
from localpolicy.measure.truth import true_value
from localpolicy.model.newer_catalogue import device_of
from localpolicy.runs.config import COMPUTED_BY, Config
from localpolicy.runs.run import Run
from localpolicy.runtime.devices import give_back_memory
from localpolicy.runtime.files import write_json
from localpolicy.runtime.processes import in_processes
from localpolicy.simulation.truth import load_world
from localpolicy.study.measured import SPLITS, save_positions
from localpolicy.training.setup import resolve
from localpolicy.training.train import tidy, training
from localpolicy.training.validation import ON_A_GPU

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """One run to be trained."""

    name: str
    data: Path
    out: Path
    config: Config


def train_all(jobs: Sequence[Job], *, processes: int | None = None, label: str = "") -> dict[str, Run]:
    """Train what is not finished, going on where a run stopped; by name, in the order given.

    A finished run is taken as it is, and refused where its settings or its data were others. Small networks gain
    nothing from a second thread, and with one thread each run gives the same bytes on any number of cores.
    A run that training cannot go on with costs the others nothing: its reason is raised at the end. `label` begins
    each message.
    """
    for job in jobs:
        refuse_other(job)
    waiting = [job for job in jobs if not Run(job.out).finished]
    for job in jobs:
        if job not in waiting:
            tidy(Run(job.out))
            LOG.info("%s%s: done before", label, job.name)
    failed: dict[str, str] = {}
    trained = in_processes(train_job, waiting, processes=processes)
    for done, (job, reason) in enumerate(trained, start=1):
        if reason is not None:
            failed[job.name] = reason
        LOG.info("%s%s: %s (%d of %d)", label, job.name, "trained" if reason is None else "FAILED", done, len(waiting))
    if failed:
        lines = "\n".join(f"  {name}: {reason}" for name, reason in failed.items())
        raise TrainingError(
            f"{len(failed)} of {len(jobs)} runs could not be trained; the others are finished.\n{lines}"
        )
    return {job.name: Run(job.out) for job in jobs}


def train_job(job: Job, *, towers: Path | None = None) -> str | None:
    """Train one run to its end, with networks that it shares with others; why it could not be trained, or None."""
    try:
        training(Prepared(job.data), Run(job.out), job.config, resume=True, towers=towers)
    except TrainingError as error:
        return str(error)
    return None


def refuse_other(job: Job) -> None:
    """A finished run must be the one that is wanted; the device it was trained on is all the same."""
    run = Run(job.out)
    if not run.finished:
        return  # an unfinished one is checked when it goes on
    data = Prepared(job.data)
    if run.manifest["data"]["digest"] != data.digest:
        raise RunError(f"{job.out} was trained on other data; choose another folder, or remove it.")
    if other := different(run.config, resolve(job.config, data)):
        raise RunError(f"{job.out} was trained with another {other}; choose another folder, or remove it.")


def different(first: Config, second: Config) -> str | None:
    """The first setting in which they differ, with both values; where and how they are computed is all the same."""
    for name, group in first.model_dump(mode="json", exclude={"auto"}).items():
        for key, value in group.items():
            there = getattr(getattr(second, name), key)
            computed = name == "train" and key in COMPUTED_BY
            if not computed and getattr(getattr(first, name), key) != there:
                return f"{name}.{key} ({value}, now {there})"
    return None


# ---------------------------------------------------------------------- measured


@dataclass(frozen=True)
class Task:
    """One arm for one process."""

    job: Job
    figures: Path | None = None  # None: trained alone
    against: tuple[Path, ...] = ()
    given: bool = False  # a run of the user's: measured as it is
    keep: str = "runs"
    imputation: Path | None = None
    truth: bool = False
    exclude_seen: bool = False
    towers: Path | None = None  # networks that arms share which differ in the dial alone


class Outcome(NamedTuple):
    """What came of a task."""

    failed: str | None = None  # why it could not be trained
    held: bool = False  # trained, but its references are not there yet


def networks_of(task: Task) -> str:
    """What decides the networks of an arm that has a dial; of any other arm, all there is."""
    config = task.job.config
    undialled = config.objective.undialled()
    if undialled is None or task.given:
        return task.job.name
    config = config.model_copy(update={"objective": undialled})
    return hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:16]


def measure_all(tasks: Sequence[Task]) -> list[Outcome]:
    """Arms of the same networks, in turn; these go when all are done."""
    outcomes = [_measure_one(task) for task in tasks]
    for towers in {task.towers for task in tasks if task.towers is not None}:
        shutil.rmtree(towers, ignore_errors=True)
    return outcomes


def _measure_one(task: Task) -> Outcome:
    """Train one arm; measure it if its references are there."""
    job, data = task.job, Prepared(task.job.data)
    config = resolve(job.config, data)
    about: dict[str, Any] = {"name": job.name, "data": data.digest, "config": config.model_dump(mode="json")}
    failed = None if task.given else train_job(job, towers=task.towers)
    if failed is not None and task.figures is not None:
        write_json(task.figures / "arm.json", {**about, "failed": failed})
    if failed is not None or task.figures is None:
        return Outcome(failed)
    if not all(Run(path).finished for path in task.against):
        return Outcome(held=True)
    run, device = Run(job.out), config.train.device
    give_back_memory()  # training needs other sizes than measuring
    candidate = open_run(run, job.name, device=device)
    references = [open_run(Run(path), path.name, device=device) for path in task.against]
    refuse_incomparable([candidate, *references])
    imputation = None if task.imputation is None else imputation_at(task.imputation, data)
    for split in SPLITS:
        asked = {"split": split, "exclude_seen": task.exclude_seen}
        settings = evaluation_settings(asked, candidate)
        if device_of(candidate.policy).type == "cuda":
            settings = settings.model_copy(update={"batch_size": max(settings.batch_size, ON_A_GPU)})
        # The references are measured against each other once, not beside every arm: hence no floor.
        options: dict[str, Any] = {"config": settings, "imputation": imputation, "floor": False}
        evaluation = measure(candidate, data, references, window=window_of(candidate), **options)
        about[split] = evaluation.to_dict()
    if task.truth and (world := world_of(data, None)) is not None:
        about["truth"] = as_json(true_value(candidate.policy, load_world(world)))
    save_positions(evaluation.scores, task.figures / "test.parquet")
    curve = run.metrics()
    manifest = {key: value for key, value in run.manifest.items() if key != "data"}
    about["run"] = {**manifest, "weights": run.selected_metrics()["weights"]}
    about["curve"] = [{"epoch": line["epoch"], "selected_by": line["selected_by"]} for line in curve]
    about["against"] = [
        {**as_json(reference.origin), "weights": Run(path).manifest["policy_sha256"]}
        for reference, path in zip(references, task.against, strict=True)
    ]
    write_json(task.figures / "arm.json", about)  # last: an arm without it is not measured
    if task.keep == "figures" and not task.given:
        shutil.rmtree(job.out)
    return Outcome()
