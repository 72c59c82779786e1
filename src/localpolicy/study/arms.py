"""The arms of an experiment: each is trained, measured against the references, and remembered in small files.

OUT/runs/<arm>/                  the run with its weights
OUT/figures/<arm>/arm.json       settings, selection, figures on validation and test; or why it failed
OUT/figures/<arm>/test.parquet   of each test position: sequence, event, repeat, rank, JS from the references

What lies under `figures` suffices to go on and to test for significance: weights need not be kept, nor carried from
one machine to the next. Nothing is measured or trained twice.
"""

from __future__ import annotations

import logging
import shutil
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from localpolicy.data.store import Prepared
from localpolicy.errors import RunError, Stopped, TrainingError
from localpolicy.measure.candidates import family_of
from localpolicy.measure.divergence import noise_floor
from localpolicy.measure.estimate import Estimate
from localpolicy.measure.evaluate import world_of
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.files import read_json
from localpolicy.runtime.processes import in_processes
from localpolicy.study.jobs import Job, Task, different, measure_all, networks_of, refuse_other
from localpolicy.study.measured import SPLITS, Measured
from localpolicy.study.settings import Point
from localpolicy.training.setup import resolve

LOG = logging.getLogger(__name__)
TOWERS = "towers"  # under `out`, while arms that share them are at work
Then = Callable[[Mapping[str, Measured]], Sequence["Arm"]]  # from what is known to the arms that follow
Ended = Callable[[Sequence[str]], Sequence["Arm"]]  # from the names of arms that ended to those to begin


@dataclass(frozen=True)
class Arm:
    """One policy of an experiment, at one seed."""

    name: str  # also its folder's
    config: Config
    given: Path | None = None  # a run of the user's, which is measured as it is

    @classmethod
    def at(cls, objective: str, point: Point, config: Config) -> Arm:
        """Named by its objective, its point of a grid and its seed."""
        words = [objective, *point.name.split(), f"seed={config.train.seed}"]
        return cls("-".join(words).replace("/", "_"), config)


@dataclass
class Study:
    """Arms on one data set, and the references they are measured against."""

    data: Prepared
    out: Path
    references: Sequence[Arm] = ()  # μ̂ of other seeds: all trained here, or all given
    processes: int | None = None
    deadline: float | None = None
    keep: str = "runs"  # or "figures": what stays on disk of an arm once it is measured
    imputation: Path | None = None
    truth: bool = False  # also J(π), where the data was simulated and holds it
    exclude_seen: bool = False  # items that a sequence held before are never ranked
    stopped: list[str] = field(default_factory=list)  # arms that the time limit left over

    def measure(self, arms: Sequence[Arm], *, then: Then = lambda known: ()) -> dict[str, Measured]:
        """Train and measure what is not there yet; by name, failed ones too, less those the time limit left over.

        `then` says which arms follow from what is known so far: they are begun as soon as it names them.
        """
        wanted: dict[str, Arm] = {}
        known: dict[str, Measured] = {}

        def look(name: str) -> None:
            if (measured := self._known(wanted[name])) is not None:
                known[name] = measured

        def begun(arms: Sequence[Arm]) -> list[Arm]:
            """These arms and those that follow, less what is known already."""
            before = set(wanted)
            while new := [arm for arm in arms if arm.name not in wanted]:
                for arm in new:
                    wanted[arm.name] = arm
                    look(arm.name)
                arms = then(known)
            return [arm for name, arm in wanted.items() if name not in before and name not in known]

        def ended(names: Sequence[str]) -> list[Arm]:
            for name in names:
                look(name)
            return begun(then(known))

        waiting = begun(arms)
        if known:
            LOG.info("%d of %d arms were done before", len(known), len(wanted))
        self._do(waiting, ended)
        self.stopped = [name for name in wanted if name not in known]
        if not self.stopped:
            shutil.rmtree(self.out / TOWERS, ignore_errors=True)
        return {name: known[name] for name in wanted if name in known}

    def floor(self) -> dict[str, Estimate] | None:
        """JS between the references on each split: None unless they differ in seed alone, or where time was short.

        Noise is what differs between seeds: two references trained in different ways tell nothing of it.
        """
        families = {family for family, _ in self._kinds.values()}
        seeds = {seed for _, seed in self._kinds.values()}
        if len(families) != 1 or len(seeds) < max(2, len(self.references)):
            return None
        self._do([arm for arm in self.references if self._known(arm) is None])
        known = [measured for arm in self.references if (measured := self._known(arm)) is not None]
        floors = {split: noise_floor(self._between(known, split)) for split in SPLITS}
        return {split: floor for split, floor in floors.items() if floor is not None} or None

    def _between(self, references: Sequence[Measured], split: str) -> list[Estimate]:
        """JS of each pair of references. Each pair is met from both sides, with the same figure."""
        pairs = {
            frozenset((measured.name, other)): js
            for measured in references
            for other, js in measured.js_by_reference(split).items()
        }
        return list(pairs.values())

    def _do(self, waiting: Sequence[Arm], ended: Ended = lambda names: ()) -> None:
        """Train and measure these and what follows from them, or as many as the time limit allows.

        The references are trained beside the arms; an arm that is trained before them is held, and measured when they
        are there.
        """
        if not waiting:
            return
        references = {arm.name: self._job(arm, needed=True) for arm in self.references}
        runs = [job.out for job in references.values()]
        untrained = [job for job in references.values() if not Run(job.out).finished]
        asked = {arm.name for arm in waiting}
        tasks = [self._task(arm, runs) for arm in waiting]
        tasks += [Task(job) for job in untrained if job.name not in asked]
        if untrained:
            LOG.info("references first: %s", ", ".join(job.name for job in untrained))
        tasks.sort(key=lambda task: task.job.name not in references)
        queue, held, done = deque(self._groups(tasks)), list[Task](), 0
        try:
            for group, outcomes in in_processes(measure_all, queue, processes=self.processes, deadline=self.deadline):
                over = []
                for task, outcome in zip(group, outcomes, strict=True):
                    name = task.job.name
                    if outcome.failed is not None and name in references:
                        raise TrainingError(f"{name}, a reference, could not be trained: {outcome.failed}")
                    if outcome.held:
                        held.append(task)
                        continue
                    done += 1
                    state = "trained" if task.figures is None else "measured" if outcome.failed is None else "FAILED"
                    LOG.info("%s: %s (%d done)", name, state, done)
                    if task.figures is not None:
                        over.append(name)
                # First: others may wait for them in turn.
                queue.extendleft(reversed(self._groups([self._task(arm, runs) for arm in ended(over)])))
                if held and all(Run(run).finished for run in runs):
                    queue.extendleft((task,) for task in reversed(held))
                    held.clear()
        except Stopped as stop:
            if self.deadline is None:
                raise
            LOG.info("%s", stop)

    def _groups(self, tasks: Sequence[Task]) -> list[tuple[Task, ...]]:
        """Arms whose networks are the same are done one after another: the first trains them, all dial them."""
        by_networks: dict[str, list[Task]] = {}
        for task in tasks:
            by_networks.setdefault(networks_of(task), []).append(task)
        groups = []
        for key, group in by_networks.items():
            towers = self.out / TOWERS / key
            shared = len(group) > 1 or towers.exists()  # the others may have been done before a kill
            groups.append(tuple(replace(task, towers=towers) for task in group) if shared else tuple(group))
        return groups

    def _job(self, arm: Arm, *, needed: bool = False) -> Job:
        """The arm's run, refused where it was trained here as another; trained again if its weights are `needed`."""
        job = Job(arm.name, self.data.path, arm.given or self.out / "runs" / arm.name, arm.config)
        if arm.given is None:
            if needed and Run(job.out).finished and not (job.out / "policy.safetensors").exists():
                shutil.rmtree(job.out)  # it came here without its weights
            refuse_other(job)
        return job

    def _task(self, arm: Arm, references: Sequence[Path]) -> Task:
        job = self._job(arm)
        return Task(
            job,
            self.out / "figures" / arm.name,
            # A run is never its own reference.
            tuple(run for run in references if run.resolve() != job.out.resolve()),
            arm.given is not None,
            "runs" if job.out in references else self.keep,
            self.imputation,
            self.truth,
            self.exclude_seen,
        )

    @cached_property
    def _kinds(self) -> dict[str, tuple[str, int]]:
        """Of each reference by its name: how it was trained, and its seed."""
        configs = {arm.name: self._resolved(arm) for arm in self.references}
        return {name: (family_of(config), config.train.seed) for name, config in configs.items()}

    def _resolved(self, arm: Arm) -> Config:
        return resolve(arm.config, self.data) if arm.given is None else arm.config

    def _known(self, arm: Arm) -> Measured | None:
        """What was measured before, against the same references; refused where it was another policy, or other data."""
        folder = self.out / "figures" / arm.name
        if not (folder / "arm.json").exists():
            return None
        about = read_json(folder / "arm.json")
        if not isinstance(about, dict) or not about.keys() >= {"name", "data", "config"}:
            raise RunError(f"{folder / 'arm.json'} was altered; remove it, and it is made again.")
        if about["data"] != self.data.digest:
            raise RunError(f"{folder} was measured on other data; choose another --out, or remove it.")
        if arm.given is None and (other := different(Config.parse(about["config"]), self._resolved(arm))):
            raise RunError(f"{folder} was measured with another {other}; choose another --out, or remove it.")
        measured = Measured(arm.name, about, folder)
        if measured.failed:
            return measured
        if arm.given is not None and about["run"]["policy_sha256"] != Run(arm.given).manifest["policy_sha256"]:
            return None  # another run of the user's, by the same name
        if not self._same_references(arm, about["against"]):
            return None
        if bool(about["test"]["settings"].get("exclude_seen")) != self.exclude_seen:
            return None
        lacks_truth = self.truth and measured.truth is None and world_of(self.data, None) is not None
        return None if lacks_truth else measured

    def _same_references(self, arm: Arm, before: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the arm was measured against those of today, its own run never being one.

        Those that are trained here may be trained again on another machine, where sums end in other last digits: they
        are the same if settings and seed are. Runs of the user's are told by their weights.
        """
        others = [reference for reference in self.references if reference.name != arm.name]
        if any(reference.given for reference in others):
            weights = {Run(reference.given).manifest["policy_sha256"] for reference in others if reference.given}
            return weights == {reference["weights"] for reference in before}
        kinds = {self._kinds[reference.name] for reference in others}
        return kinds == {(reference["family"], reference["seed"]) for reference in before}
