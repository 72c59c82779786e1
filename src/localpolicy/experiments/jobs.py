"""Many runs, several at a time: one process per core, one thread each. What is done already is not done again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch

from localpolicy.data.store import Prepared
from localpolicy.train.config import Config
from localpolicy.train.loop import train
from localpolicy.train.run import Run
from localpolicy.train.setup import resolve
from localpolicy.vocabulary.errors import RunError

Say = Callable[[str], None]
MOST = 8  # processes that are started unasked


@dataclass(frozen=True)
class Job:
    """One run to be trained."""

    name: str
    data: Path
    out: Path
    config: Config


def train_all(jobs: Sequence[Job], *, processes: int | None = None, say: Say = lambda text: None) -> dict[str, Run]:
    """Train what is not finished, going on where a run stopped; by name, in the order given.

    A finished run is taken as it is, and refused where its settings or its data were others. Small networks gain
    nothing from a second thread, and with one thread each run gives the same bytes on any number of cores.
    """
    for job in jobs:
        _refuse_other(job)
    waiting = [job for job in jobs if not Run(job.out).finished]
    for job in jobs:
        if job not in waiting:
            say(f"{job.name}: done before")
    for done, job in enumerate(_trained(waiting, processes or cores()), start=1):
        say(f"{job.name}: trained ({done} of {len(waiting)})")
    return {job.name: Run(job.out) for job in jobs}


def cores() -> int:
    """Cores this process may use, within reason."""
    free = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(free, MOST))


def _trained(jobs: Sequence[Job], processes: int) -> Iterator[Job]:
    """Each job when it is done."""
    if not jobs:
        return
    pool = ProcessPoolExecutor(
        min(processes, len(jobs)),
        mp_context=get_context("spawn"),
        initializer=torch.set_num_threads,
        initargs=(1,),
    )
    with pool:
        waiting = {pool.submit(_train_one, job): job for job in jobs}
        try:
            for future in as_completed(waiting):
                future.result()
                yield waiting[future]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _train_one(job: Job) -> None:
    train(job.data, out=job.out, config=job.config, resume=True)


def _refuse_other(job: Job) -> None:
    """A finished run must be the one that is wanted."""
    run = Run(job.out)
    if not run.finished:
        return  # an unfinished one is checked when it goes on
    data = Prepared(job.data)
    config, _ = resolve(job.config, data)
    if run.manifest["data"]["digest"] != data.digest:
        raise RunError(f"{job.out} was trained on other data; choose another folder, or remove it.")
    if run.config != config:
        raise RunError(f"{job.out} was trained with other settings; choose another folder, or remove it.")
