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
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from localpolicy.catalogue.statistics import catalogue_statistics
from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, DataError
from localpolicy.logits import DenseLogits
from localpolicy.measure.estimate import mean_estimate
from localpolicy.measure.position_metrics import coverage
from localpolicy.measure.truth import PolicyAgent, mean_and_se
from localpolicy.model.deployable import Deployable
from localpolicy.objectives import objective_of
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.files import read_json, write_json
from localpolicy.runtime.folders import refuse_occupied
from localpolicy.runtime.formats import Format
from localpolicy.runtime.processes import in_processes
from localpolicy.simulation import write_prepared
from localpolicy.simulation.events import World
from localpolicy.simulation.truth import STEPS, WORLDS
from localpolicy.training.checks import check_data
from localpolicy.training.jobs import Job, refuse_other, train_job
from localpolicy.training.setup import resolve
from localpolicy.worlds.scenarios import SCENARIOS, LoopConfig, LoopOptions, PolicySpec, policies_of
from localpolicy.worlds.trajectory import Loop, Round

LOG = logging.getLogger(__name__)
FORMAT = Format(1, "choose another folder, or remove it", error=ConfigError)
MEASURED = "round.json"  # a round that has it is not done again


@lru_cache(maxsize=1)
def world_of(config: LoopConfig) -> World:
    """Simulated world of a loop, cached per process."""
    settings, kind = WORLDS[config.world]
    world: World = kind(settings().with_changes([*config.dials, f"items={config.items}"]), seed=config.world_seed)
    return world


def round_seed(seed: int, number: int) -> int:
    """Seed of a round, shared by all arms, so that they meet the same users."""
    return 1_000 * seed + number


VISITS = 100  # of the store, whose every step is a context
LEAST = 1e-30  # probabilities below this are taken for it: a logarithm must be finite


def _logits(probabilities: np.ndarray) -> DenseLogits:
    return DenseLogits(torch.from_numpy(np.log(np.maximum(probabilities, LEAST))))


@dataclass(frozen=True)
class RoundMeasure:
    """Measures all policies of one world on the same contexts and (under one seed) the same visits.

    A policy is measured against the one before and the first, μ. In the bandit the contexts are all there are, weighted
    as they occur, so every figure is exact; in the store they are those of a few visits under μ, whose own
    probabilities the world knows: no estimate of μ, and so no noise floor, stands between.
    """

    world: World
    episodes: int
    seed: int

    def of(self, policy: Deployable | None, before: Deployable | None) -> Round:
        """Measure a policy (None: μ) in a round, with its distance from the policy `before`, which wrote its log.

        truth is J; gain is over μ and step over the policy before, both paired; entropy is in nats, and coverage the
        share of the catalogue that is shown first somewhere.
        """
        world, named = self.world, {"mine": policy, "before": before}
        agents = {name: PolicyAgent(each, world) for name, each in named.items() if each is not None}
        first = world.visit_rewards(None, self.episodes, STEPS, self.seed)
        rewards = {name: world.visit_rewards(each, self.episodes, STEPS, self.seed) for name, each in agents.items()}
        mine, theirs = (rewards.get(name, first) for name in named)
        earned = {"truth": mine, "gain": mine - first, "step": mine - theirs}
        return {**{name: mean_and_se(values) for name, values in earned.items()}, **self._distances(agents)}

    def _distances(self, agents: Mapping[str, PolicyAgent]) -> Round:
        world, columns = self.world, defaultdict[str, list[np.ndarray]](list)
        for items, events, weight in world.contexts_of(VISITS, STEPS, self.seed):
            first = _logits(world.logging_probabilities(items, events))
            known = {name: _logits(each.probabilities(items, events)) for name, each in agents.items()}
            mine, theirs = (known.get(name, first) for name in ("mine", "before"))
            nobody, references = torch.zeros(len(items), dtype=torch.long), {"before": theirs, "first": first}
            for name, values in catalogue_statistics(mine, nobody, references=references, floor=False).items():
                columns[name].append(values.numpy())
            columns["visit"].append(np.arange(len(items)))
            columns["weight"].append(weight)
        column = {name: np.concatenate(parts) for name, parts in columns.items()}

        def mean(name: str) -> dict[str, float]:
            se = 0.0 if world.exact else mean_estimate(column[name], column["visit"]).se
            return {"mean": float(column["weight"] @ column[name]), "se": se}

        return {
            "js_before": mean("js:before"),
            "js_first": mean("js:first"),
            "kl_first": mean("kl:first"),
            "entropy": mean("entropy")["mean"],
            "coverage": coverage(np.bincount(column["top"], minlength=world.n_items)),
        }


@dataclass(frozen=True)
class Chain:
    """Rounds of one objective under one seed."""

    config: LoopConfig
    arm: PolicySpec
    seed: int
    within: Path  # the seed's folder
    last: int  # round

    def at(self, number: int) -> Path:
        """Folder of a round; round 0 is the start, which all arms share."""
        return self.within / self.arm.folder / f"round-{number:02d}" if number else self.within / "start"

    @property
    def name(self) -> str:
        """Name of the arm on pages."""
        return f"{self.arm.name}, seed {self.seed}"

    def run(self, number: int) -> Run:
        """π_number."""
        return Run(self.at(number) / "run")

    def rounds(self) -> list[Round]:
        """Measured rounds so far; if the arm stopped, the last entry says why."""
        files = (self.at(number) / MEASURED for number in range(1, self.last + 1))
        return [read_json(file) for file in takewhile(Path.exists, files)]

    def ended(self) -> bool:
        """Whether all rounds are done, or the arm has stopped."""
        entries = self.rounds()
        return len(entries) == self.last or bool(entries and "stopped" in entries[-1])

    def step(self) -> Round:
        """Serve, train and measure the next round; return its entry."""
        number = len(self.rounds()) + 1
        self.serve(number - 1)
        config, run = self.training(number), self.run(number)
        job = Job(self.name, self.at(number - 1) / "data", run.folder, config)
        data = Prepared(job.data)
        try:
            check_data(data, resolve(config, data).objective)
        except DataError as error:
            # A policy whose lists are never answered leaves a log from which nothing can be learnt.
            failure: str | None = str(error)
        else:
            refuse_other(job)
            failure = train_job(job)
        entry: Round = {"stopped": failure}
        if failure is None:
            before, kept = self.run(number - 1).policy() if number > 1 else None, run.selected_metrics()
            entry = {
                "round": number, **self.measures().of(run.policy(), before), "weights": kept["weights"],
                "epoch": kept["epoch"], "version": run.version,
            }  # fmt: skip
        write_json(self.at(number) / MEASURED, entry)
        return entry

    def training(self, number: int) -> Config:
        """Training configuration of a round."""
        chosen = dict(self.arm.objective)
        if number > 1 and self.config.logging_is_served and "logp_logging" in objective_of(chosen).reads().fields:
            chosen["logging"] = str(self.run(number - 1).folder)
        config = SCENARIOS[self.config.world].training(chosen, seed=round_seed(self.seed, number))
        return config.with_changes(self.config.changes)

    def measures(self) -> RoundMeasure:
        """Measure shared by all rounds of a seed: the same contexts and visits."""
        return RoundMeasure(world_of(self.config), episodes=self.config.episodes, seed=self.seed)

    def serve(self, number: int) -> None:
        """Let this round's policy (the 0th is μ) write the log that the next one is trained on."""
        folder, config, luck = self.at(number) / "data", self.config, round_seed(self.seed, number)
        if folder.exists():
            return
        world, by_run = world_of(config), dict[str, Any]()
        if number:
            run = self.run(number)
            by_run = {"policy": run.version, "like": Prepared(self.at(0) / "data")}
            by_run["chunks"] = world.log_by(PolicyAgent(run.policy(), world), config.sequences, luck)
            by_run["append"] = Prepared(self.at(number - 1) / "data") if config.keep_logs else None
        write_prepared(world, folder, sequences=config.sequences, seed=luck, round_number=number + 1, **by_run)


def loop(config: LoopConfig, *, out: Path | str, **options: Any) -> Loop:
    """Run `rounds` rounds (10 by default) of serving and training in the folder `out`, continuing earlier ones.

    `options` are the fields of `LoopOptions`. It does `processes` objectives and seeds at a time (default: one per
    core), with the same figures for any number of them.
    """
    asked = LoopOptions.parse(options)
    rounds, processes = asked.rounds, asked.processes
    world, arms = world_of(config), policies_of(config.objectives, config.betas)
    folder = Path(out).resolve()  # runs name the run that served their log, from wherever the loop continues
    chains = [Chain(config, arm, seed, folder / f"seed-{seed}", rounds) for seed in config.seeds for arm in arms]
    for chain in chains:
        chain.training(1)  # refuses settings that are wrong, before anything is written
    _claim(folder, config)
    starts = {chain.at(0) / MEASURED: chain for chain in chains}
    unwritten = [chain for file, chain in starts.items() if not file.exists()]
    for chain, _ in in_processes(_start, unwritten, processes=1):
        LOG.info("seed %d: the first policy wrote %s sequences", chain.seed, f"{config.sequences:,}")

    tasks = deque(chain for chain in chains if not chain.ended())
    for chain, entry in in_processes(Chain.step, tasks, processes=processes):
        said = f"stopped: {entry['stopped']}" if "stopped" in entry else f"J {entry['truth']['mean']:.4f}"
        LOG.info("%s: round %d of %d: %s", chain.name, len(chain.rounds()), rounds, said)
        if not chain.ended():
            tasks.append(chain)
    measured = {arm.name: [chain.rounds() for chain in chains if chain.arm is arm] for arm in arms}
    return Loop(config, world, arms, [read_json(file) for file in starts], measured)


def _start(chain: Chain) -> None:
    """Write the first log, by μ, which all arms of the chain's seed share, and measure μ."""
    chain.serve(0)
    write_json(chain.at(0) / MEASURED, chain.measures().of(None, None))


def _claim(folder: Path, config: LoopConfig) -> None:
    """Record the loop's configuration in the folder; raise ConfigError if it holds a loop with another one."""
    path, content = folder / "settings.json", {"format": FORMAT.current, **config.model_dump(mode="json")}
    if not path.exists():
        refuse_occupied(folder, force=False)
        write_json(path, content)
    before = FORMAT.upgraded({"format": 1, **read_json(path)}, path)  # the first had no number
    for name in sorted(content):
        if content[name] != before.get(name):
            raise ConfigError(
                f"{folder} holds another loop ({name} was {before.get(name)}, now {content[name]}): choose another "
                "folder, or remove it."
            )
