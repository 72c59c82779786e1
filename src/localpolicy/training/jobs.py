"""Jobs: runs trained in parallel, each in a process. Finished ones are not trained again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localpolicy.data.store import Prepared
from localpolicy.errors import RunError, TrainingError
from localpolicy.runs.config import COMPUTED_BY, Config
from localpolicy.runs.run import Run
from localpolicy.runtime.processes import in_processes
from localpolicy.training.setup import resolve
from localpolicy.training.train import tidy, training

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """A run to be trained: its name, data, folder and configuration."""

    name: str
    data: Path
    out: Path
    config: Config


def train_all(jobs: Sequence[Job], *, processes: int | None = None, label: str = "") -> dict[str, Run]:
    """Train the unfinished runs, resuming stopped ones; return all runs by name, in the order given.

    A finished run is taken as it is, and refused if its settings or its data differ. Small networks gain nothing from a
    second thread, and with one thread each run gives the same bytes on any number of cores. A run whose training fails
    costs the others nothing: its reason is raised at the end. `label` begins each message.
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
    """Train one run to its end, with networks that it shares with others; return the reason if that failed, or None."""
    try:
        training(Prepared(job.data), Run(job.out), job.config, resume=True, towers=towers)
    except TrainingError as error:
        return str(error)
    return None


def refuse_other(job: Job) -> None:
    """Raise RunError if the folder holds a finished run of other data or settings."""
    if (run := Run(job.out)).finished:
        data = Prepared(job.data)
        same_data = run.manifest["data"]["digest"] == data.digest
        refuse_unlike(job.out, "trained", same_data, run.config, resolve(job.config, data))


def refuse_unlike(folder: Path, made: str, same_data: bool, before: Config, wanted: Config) -> None:
    """Raise RunError if a folder's content (`made`) has other data or settings, wherever it was computed."""
    left_out: dict[str, Any] = {"auto": True, "train": COMPUTED_BY}
    then, now = (config.model_dump(mode="json", exclude=left_out) for config in (before, wanted))
    others = [] if same_data else ["on other data"]
    for group, settings in then.items():
        for key, value in settings.items():
            if value != (there := now[group].get(key)):
                others.append(f"with another {group}.{key} ({value}, now {there})")
    if others:
        raise RunError(f"{folder} was {made} {others[0]}; choose another folder, or remove it.")
