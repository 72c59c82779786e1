"""The loop: deploy, log, retrain, round after round, in a world whose truth is known.

Several objectives start from the same log, written by the world's own logging policy μ. Round k trains π_k on the log
of π_{k-1} (π_0 = μ), measures it, and lets it serve the next log: impressions with propensities and its version. By
default only the last log is trained on, as local improvement assumes, and the run that served it stands for its own
logging policy, since that is known exactly; μ, which is no run, is estimated in round 1. Where the world's items have a
table, the data sets have it too; new items are in it from the round on that can show them.

Each objective and seed goes through its rounds by itself, once the seed's first log is there: several at a time, one
process each.

    OUT/settings.json                      what this loop is: another one is refused
    OUT/seed-0/start/data                  the log that all objectives start from
    OUT/seed-0/ARM/round-01/run            π_1
    OUT/seed-0/ARM/round-01/round.json     what was measured; a round that has it is not done again
    OUT/seed-0/ARM/round-01/data           the log that π_1 served, written when the next round begins
    OUT/loop.json, loop.md, loop.svg, report.html
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, DataError
from localpolicy.measure.truth import agent, bandit_probabilities
from localpolicy.objectives import objective_of
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.files import read_json, write_json
from localpolicy.runtime.folders import refuse_occupied
from localpolicy.runtime.processes import in_processes
from localpolicy.simulation import BanditWorld, write_prepared
from localpolicy.simulation.events import Events
from localpolicy.study.demo import SCENARIOS, PolicySpec
from localpolicy.study.jobs import Job, refuse_other, train_job
from localpolicy.study.rounds import Loop, Round, RoundMeasure, world_of
from localpolicy.study.settings import LoopConfig
from localpolicy.training.checks import check_data
from localpolicy.training.setup import resolve

LOG = logging.getLogger(__name__)
MEASURED = "round.json"  # a round that has it is not done again


def round_seed(seed: int, number: int) -> int:
    """The seed of a round: one for all arms, so that they meet the same users."""
    return 1_000 * seed + number


@dataclass(frozen=True)
class Chain:
    """One objective's rounds under one seed."""

    config: LoopConfig
    arm: PolicySpec
    seed: int
    within: Path  # the seed's folder
    last: int  # round

    def at(self, number: int) -> Path:
        """The folder of a round; the 0th is the start, which all arms share."""
        return self.within / self.arm.folder / f"round-{number:02d}" if number else self.within / "start"

    @property
    def name(self) -> str:
        """As people call it."""
        return f"{self.arm.name}, seed {self.seed}"

    def run(self, number: int) -> Run:
        """π_number."""
        return Run(self.at(number) / "run")

    def entry(self, number: int) -> Round | None:
        """What was measured in a round, or why there is none; None where it was not done yet."""
        path = self.at(number) / MEASURED
        return dict(read_json(path)) if path.exists() else None

    def rounds(self) -> list[Round]:
        """What was measured, up to where the arm stopped (its last entry then says why)."""
        entries: list[Round] = []
        while len(entries) < self.last and (entry := self.entry(len(entries) + 1)) is not None:
            entries.append(entry)
        return entries

    def ended(self) -> bool:
        """Whether all rounds are done, or the arm has stopped."""
        entries = self.rounds()
        return len(entries) == self.last or bool(entries and "stopped" in entries[-1])

    def step(self) -> Round:
        """Do the next round; what was measured."""
        number = len(self.rounds()) + 1
        self.serve(number - 1)
        config = self.training(number)
        job = Job(self.name, self.at(number - 1) / "data", self.run(number).folder, config)
        data = Prepared(job.data)
        try:
            check_data(data, resolve(config, data).objective)
        except DataError as error:
            # A policy whose lists are never answered leaves a log from which nothing can be learnt.
            entry: Round = {"stopped": str(error)}
        else:
            refuse_other(job)
            failure = train_job(job)
            entry = self._measure(number) if failure is None else {"stopped": failure}
        write_json(self.at(number) / MEASURED, entry)
        return entry

    def training(self, number: int) -> Config:
        """How a round is trained."""
        settings = SCENARIOS[self.config.world].settings
        chosen = dict(self.arm.objective)
        if number > 1 and self.config.logging_is_served and "logp_logging" in objective_of(chosen).reads().fields:
            chosen["logging"] = str(self.run(number - 1).folder)
        training = {**settings["train"], "seed": round_seed(self.seed, number), "device": "cpu"}
        config = Config.parse({**settings, "objective": chosen, "train": training})
        return config.with_changes(self.config.changes)

    def _measure(self, number: int) -> Round:
        """What this round's policy showed."""
        run = self.run(number)
        before = self.run(number - 1).policy() if number > 1 else None
        kept = run.selected_metrics()
        return {
            "round": number, **self.measures().of(run.policy(), before), "weights": kept["weights"],
            "epoch": kept["epoch"], "version": run.version,
        }  # fmt: skip

    def measures(self) -> RoundMeasure:
        """All rounds of a seed are measured on the same contexts and visits."""
        return RoundMeasure(world_of(self.config), episodes=self.config.episodes, seed=self.seed)

    def serve(self, number: int) -> None:
        """Let this round's policy (the 0th is μ) write the log that the next one is trained on."""
        folder, config = self.at(number) / "data", self.config
        if folder.exists():
            return
        by_run: dict[str, Any] = {}
        if number:
            by_run = {"policy": self.run(number).version, "chunks": self._log(number)}
            by_run["like"] = Prepared(self.at(0) / "data")
            by_run["append"] = Prepared(self.at(number - 1) / "data") if config.keep_logs else None
        seed = round_seed(self.seed, number)
        write_prepared(
            world_of(config), folder, sequences=config.sequences, seed=seed, round_number=number + 1, **by_run
        )

    def _log(self, number: int) -> Iterator[Events]:
        world, policy, luck = world_of(self.config), self.run(number).policy(), round_seed(self.seed, number)
        if isinstance(world, BanditWorld):
            return world.log(self.config.sequences, luck, probabilities=bandit_probabilities(policy, world))
        return world.log(self.config.sequences, luck, agent=agent(policy, world))


def arms_of(config: LoopConfig) -> list[PolicySpec]:
    """One arm per objective, and per β where it has one that is not given with it."""
    arms = []
    for text in config.objectives:
        name, *pairs = text.split(":")
        named = Config.parse({"objective": {"name": name}})
        settings = named.with_changes([f"objective.{pair}" for pair in pairs]).objective
        given = settings.model_dump(exclude_unset=True)
        free = "beta" in type(settings).model_fields and "beta" not in given
        rest = "".join(f" {pair}" for pair in pairs if not pair.startswith(("beta=", "improve=")))
        for beta in config.betas or (None,) if free else (given.get("beta"),):
            said = "" if beta is None else f" β={beta:g}"
            arms.append(PolicySpec(f"{settings.name}{said}{rest}", given if beta is None else {**given, "beta": beta}))
    names = [arm.name for arm in arms]
    if len(set(names)) < len(names):
        raise ConfigError(f"two arms are called '{max(names, key=names.count)}': name each objective and each β once.")
    return arms


def loop(config: LoopConfig, *, out: Path | str, rounds: int, processes: int | None = None) -> Loop:
    """Go through `rounds` rounds in the folder `out`; what is done there already is not done again.

    `processes` objectives and seeds at a time (default: one per core), with the same figures for any number of them.
    """
    if rounds < 1:
        raise ConfigError(f"rounds must be at least 1, got {rounds}.")
    world, arms = world_of(config), arms_of(config)
    folder = Path(out).resolve()  # runs name the run that served their log, from wherever the loop goes on
    chains = [Chain(config, arm, seed, folder / f"seed-{seed}", rounds) for seed in config.seeds for arm in arms]
    for chain in chains:
        chain.training(1)  # refuses settings that are wrong, before anything is written
    _claim(folder, config)
    of_seed = {chain.seed: chain for chain in chains}
    unwritten = [chain for chain in of_seed.values() if chain.entry(0) is None]
    for chain, _ in in_processes(_start, unwritten, processes=1):
        LOG.info("seed %d: the first policy wrote %s sequences", chain.seed, f"{config.sequences:,}")

    tasks = deque(chain for chain in chains if not chain.ended())
    for chain, entry in in_processes(Chain.step, tasks, processes=processes):
        said = f"stopped: {entry['stopped']}" if "stopped" in entry else f"J {entry['truth']['mean']:.4f}"
        LOG.info("%s: round %d of %d: %s", chain.name, len(chain.rounds()), rounds, said)
        if not chain.ended():
            tasks.append(chain)
    first = [chain.entry(0) or {} for chain in of_seed.values()]
    measured = {arm.name: [chain.rounds() for chain in chains if chain.arm is arm] for arm in arms}
    return Loop(config, world, arms, first, measured)


def _start(chain: Chain) -> None:
    """The log that all arms of the chain's seed start from, and μ's own figures."""
    chain.serve(0)
    write_json(chain.at(0) / MEASURED, chain.measures().of(None, None))


def _claim(folder: Path, config: LoopConfig) -> None:
    """A folder belongs to one loop; more rounds of the same one may follow."""
    path, content = folder / "settings.json", config.model_dump(mode="json")
    if path.exists():
        before = read_json(path)
        different = sorted(name for name in content if content[name] != before.get(name))
        if different:
            name = different[0]
            raise ConfigError(
                f"{folder} holds another loop ({name} was {before.get(name)}, now {content[name]}): choose another "
                "folder, or remove it."
            )
        return
    refuse_occupied(folder, force=False)
    write_json(path, content)
