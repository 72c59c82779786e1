"""The arms of an experiment: each is trained, measured against the references, and remembered in small files.

OUT/runs/<arm>/      the run with its weights
OUT/figures/<arm>/   what was measured of it (see `measured`)

The files in `figures` suffice to continue and to test for significance: weights need not be kept, nor carried from
one machine to the next. Nothing is measured or trained twice.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from localpolicy.data.store import Prepared
from localpolicy.errors import RunError, Stopped, TrainingError
from localpolicy.measure.candidates import family_of
from localpolicy.measure.divergence import noise_floor
from localpolicy.measure.estimate import Estimate
from localpolicy.measure.evaluate import world_of
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.files import read_json, write_json
from localpolicy.runtime.formats import Format
from localpolicy.runtime.processes import in_processes
from localpolicy.study.measured import SPLITS, Measured, measure_arm
from localpolicy.study.settings import Point
from localpolicy.training.jobs import Job, refuse_other, refuse_unlike, train_job
from localpolicy.training.setup import resolve

LOG = logging.getLogger(__name__)
FORMAT = Format(1, "remove it, and it is made again")  # of arm.json
TOWERS = "towers"  # under `out`, while arms that share them are at work
Then = Callable[[Mapping[str, Measured]], Sequence["Arm"]]  # from what is known to the arms that follow
Ended = Callable[[Sequence["Arm"]], Sequence["Arm"]]  # from arms that ended to those to begin


@dataclass(frozen=True)
class Arm:
    """One training configuration at one seed, under a unique name."""

    name: str  # also its folder's
    config: Config
    given: Path | None = None  # a run of the user's, which is measured as it is

    @classmethod
    def at(cls, objective: str, point: Point, config: Config) -> Arm:
        """Build an arm named by its objective, its grid point and its seed."""
        words = [objective, *point.name.split(), f"seed={config.train.seed}"]
        return cls("-".join(words).replace("/", "_"), config)

    @property
    def networks(self) -> str:
        """Hash of the settings that decide the networks, without the dial; the arm's name if it has no dial."""
        undialled = self.config.objective.undialled()
        if undialled is None or self.given is not None:
            return self.name
        config = self.config.model_copy(update={"objective": undialled})
        return hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:16]


class Group(NamedTuple):
    """Arms for one process: they share networks, which the first trains, and differ in the dial."""

    arms: Sequence[Arm]
    towers: Path | None = None  # where these networks lie meanwhile
    measured: bool = True  # or trained alone


class Outcome(NamedTuple):
    """State of an arm: trained, measured, FAILED, or held until its references are trained."""

    state: str
    reason: str = ""


@dataclass
class Study:
    """Trains and measures arms on one data set, in several processes, against common references."""

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
        """Train and measure the arms that are not done; return results by name, without those left by the time limit.

        `then` says which arms follow from what is known so far: they are begun as soon as it names them.
        """
        wanted: dict[str, Arm] = {}
        known: dict[str, Measured] = {}

        def begun(arms: Sequence[Arm]) -> list[Arm]:
            """Arms not measured before, among these and those that `then` adds."""
            before = set(wanted)
            while new := [arm for arm in arms if arm.name not in wanted]:
                wanted.update({arm.name: arm for arm in new})
                known.update(self._known(new))
                arms = then(known)
            return [arm for name, arm in wanted.items() if name not in before and name not in known]

        def ended(arms: Sequence[Arm]) -> list[Arm]:
            known.update(self._known(arms))
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
        """Noise floor on each split, from JS between references; None unless they differ in seed alone.

        Noise is what differs between seeds: two references trained in different ways are not comparable.
        """
        families = {family for family, _ in self._kinds.values()}
        seeds = {seed for _, seed in self._kinds.values()}
        if len(families) != 1 or len(seeds) < max(2, len(self.references)):
            return None
        self._do([arm for arm in self.references if not self._known([arm])])
        known, floors = self._known(self.references), {}
        for split in SPLITS:
            # Each pair is met from both sides, with the same figure.
            pairs = {
                frozenset((name, other)): js
                for name, measured in known.items()
                for other, js in measured.js_by_reference(split).items()
            }
            floors[split] = noise_floor(pairs.values())
        return {split: floor for split, floor in floors.items() if floor is not None} or None

    # ------------------------------------------------------------------ done in processes

    def _do(self, waiting: Sequence[Arm], ended: Ended = lambda arms: ()) -> None:
        """Train and measure the waiting arms and those that `ended` adds, until the time limit.

        The references are trained together with the arms; an arm that is trained before them is held, and measured when
        they are there.
        """
        if not waiting:
            return
        references = {arm.name: Run(self._job(arm).out) for arm in self.references}
        for arm in self.references:
            folder = references[arm.name].folder
            if arm.given is None and references[arm.name].finished and not (folder / "policy.safetensors").exists():
                shutil.rmtree(folder)  # it came here without its weights
            self._refuse_other(arm)
        untrained = [arm for arm in self.references if not references[arm.name].finished]
        if untrained:
            LOG.info("references first: %s", ", ".join(arm.name for arm in untrained))
        asked = {arm.name for arm in waiting}
        alone = self._groups([arm for arm in untrained if arm.name not in asked], measured=False)
        queue = deque([*alone, *self._groups(sorted(waiting, key=lambda arm: arm.name not in references))])
        held, done = list[Arm](), 0
        try:
            for group, outcomes in in_processes(self.work, queue, processes=self.processes, deadline=self.deadline):
                over = []
                for arm, (state, reason) in zip(group.arms, outcomes, strict=True):
                    if state == "FAILED" and arm.name in references:
                        raise TrainingError(f"{arm.name}, a reference, could not be trained: {reason}")
                    if state == "held":
                        held.append(arm)
                        continue
                    done += 1
                    LOG.info("%s: %s (%d done)", arm.name, state, done)
                    if group.measured:
                        over.append(arm)
                queue.extendleft(reversed(self._groups(ended(over))))  # first: others may wait for them in turn
                if held and all(run.finished for run in references.values()):
                    queue.extendleft(Group([arm]) for arm in reversed(held))
                    held.clear()
        except Stopped as stop:
            if self.deadline is None:
                raise
            LOG.info("%s", stop)

    def _groups(self, arms: Sequence[Arm], *, measured: bool = True) -> list[Group]:
        """Group arms that share networks, for one process each; with `measured=False` they are only trained."""
        by_networks: dict[str, list[Arm]] = {}
        for arm in arms:
            self._refuse_other(arm)
            by_networks.setdefault(arm.networks, []).append(arm)
        groups = []
        for key, group in by_networks.items():
            towers = self.out / TOWERS / key
            shared = len(group) > 1 or towers.exists()  # the others may have been done before a kill
            groups.append(Group(group, towers if shared else None, measured))
        return groups

    def work(self, group: Group) -> list[Outcome]:
        """Train and measure one group in this process; then remove its shared networks."""
        outcomes = [self._measure_one(arm, group) for arm in group.arms]
        if group.towers is not None:
            shutil.rmtree(group.towers, ignore_errors=True)
        return outcomes

    def _measure_one(self, arm: Arm, group: Group) -> Outcome:
        """Train one arm; measure it if its references are trained."""
        job, file = self._job(arm), self._figures(arm) / "arm.json"
        config = resolve(arm.config, self.data).model_dump(mode="json")
        about: dict[str, Any] = {"format": FORMAT.current, "name": arm.name, "data": self.data.digest, "config": config}
        failed = train_job(job, towers=group.towers) if arm.given is None else None
        if failed is not None and group.measured:
            write_json(file, {**about, "failed": failed})
        if failed is not None or not group.measured:
            return Outcome("trained") if failed is None else Outcome("FAILED", failed)
        references = [self._job(reference).out for reference in self.references]
        # A run is never its own reference.
        against = [Run(folder) for folder in references if folder.resolve() != job.out.resolve()]
        if not all(run.finished for run in against):
            return Outcome("held")
        device = about["config"]["train"]["device"]
        asked: dict[str, Any] = {"exclude_seen": self.exclude_seen, "imputation": self.imputation, "truth": self.truth}
        about |= measure_arm(Run(job.out), self.data, against, file.parent, device=device, **asked)
        write_json(file, about)  # last: an arm without it is not measured
        if self.keep == "figures" and arm.given is None and job.out not in references:
            shutil.rmtree(job.out)
        return Outcome("measured")

    def _job(self, arm: Arm) -> Job:
        return Job(arm.name, self.data.path, arm.given or self.out / "runs" / arm.name, arm.config)

    def _refuse_other(self, arm: Arm) -> None:
        """Raise RunError if the arm's folder holds a run of other data or settings; not for a user's own run."""
        if arm.given is None:
            refuse_other(self._job(arm))

    def _figures(self, arm: Arm) -> Path:
        return self.out / "figures" / arm.name

    # ------------------------------------------------------------------ known from before

    def _known(self, arms: Iterable[Arm]) -> dict[str, Measured]:
        """Results of the arms that were measured before with today's settings, by name."""
        every = ((arm, self._measured(arm)) for arm in arms)
        return {arm.name: known for arm, known in every if known is not None and self._as_asked(arm, known)}

    def _measured(self, arm: Arm) -> Measured | None:
        """Stored result of an arm, or None; raise RunError if it is of another policy or other data."""
        folder = self._figures(arm)
        if not (folder / "arm.json").exists():
            return None
        about = read_json(folder / "arm.json")
        if not isinstance(about, dict) or not about.keys() >= {"name", "data", "config"}:
            raise RunError(f"{folder / 'arm.json'} was altered; remove it, and it is made again.")
        about = FORMAT.upgraded({"format": 1, **about}, folder / "arm.json")  # the first had no number
        wanted = self._resolved(arm)
        before = Config.parse(about["config"]) if arm.given is None else wanted
        refuse_unlike(folder, "measured", about["data"] == self.data.digest, before, wanted)
        return Measured(arm.name, about, folder)

    def _as_asked(self, arm: Arm, known: Measured) -> bool:
        """Whether a stored result failed, or has all that is requested, against today's references.

        Those that are trained here may be trained again on another machine, where sums end in other last digits: they
        are the same if settings and seed are. Runs of the user's are identified by their weights. An arm's own run is
        never a reference.
        """
        if known.failed:
            return True
        if arm.given is not None and known.record["run"]["policy_sha256"] != _weights(arm.given):
            return False  # another run of the user's, by the same name
        others, before = [each for each in self.references if each.name != arm.name], known.record["against"]
        if any(each.given for each in others):
            same = {_weights(each.given) for each in others if each.given} == {each["weights"] for each in before}
        else:
            same = {self._kinds[each.name] for each in others} == {(each["family"], each["seed"]) for each in before}
        lacks_truth = self.truth and known.truth is None and world_of(self.data, None) is not None
        excluded = bool(known.record["test"]["settings"].get("exclude_seen"))
        return same and excluded == self.exclude_seen and not lacks_truth

    @cached_property
    def _kinds(self) -> dict[str, tuple[str, int]]:
        """Family hash and seed of each reference, by name."""
        configs = {arm.name: self._resolved(arm) for arm in self.references}
        return {name: (family_of(config), config.train.seed) for name, config in configs.items()}

    def _resolved(self, arm: Arm) -> Config:
        return resolve(arm.config, self.data) if arm.given is None else arm.config


def _weights(run: Path) -> Any:
    return Run(run).manifest["policy_sha256"]
