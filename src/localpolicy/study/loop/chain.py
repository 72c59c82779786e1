"""One objective's rounds under one seed: write the last policy's log, train on it, measure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localpolicy.data.store import Prepared
from localpolicy.errors import DataError
from localpolicy.measure.truth import agent, bandit_probabilities
from localpolicy.objectives import objective_of
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.files import read_json, write_json
from localpolicy.runtime.lanes import Steps
from localpolicy.simulation import BanditWorld, write_prepared
from localpolicy.simulation.events import Events
from localpolicy.study.jobs import Job, refuse_other, train_job
from localpolicy.study.loop.config import LoopConfig, scenario_of
from localpolicy.study.loop.measure import RoundMeasure, world_of
from localpolicy.study.scenarios import PolicySpec
from localpolicy.training.checks import check_data
from localpolicy.training.setup import resolve

MEASURED = "round.json"  # a round that has it is not done again


def round_seed(seed: int, number: int) -> int:
    """The seed of a round: one for all arms, so that they meet the same users."""
    return 1_000 * seed + number


def write_start(config: LoopConfig, seed: int, folder: Path) -> None:
    """The log that all arms of a seed start from, and μ's own figures."""
    world = world_of(config)
    if not (folder / "data").exists():
        write_prepared(world, folder / "data", sequences=config.sequences, seed=round_seed(seed, 0))
    figures = RoundMeasure(world, episodes=config.episodes, seed=seed).first()
    write_json(folder / MEASURED, figures.to_dict())


@dataclass(frozen=True)
class Chain:
    """One objective's rounds under one seed."""

    config: LoopConfig
    arm: PolicySpec
    seed: int
    within: Path  # the seed's folder

    def at(self, number: int) -> Path:
        """The folder of a round; the 0th is the start, which all arms share."""
        return self.within / _folder_name(self.arm) / f"round-{number:02d}" if number else self.within / "start"

    @property
    def name(self) -> str:
        """As people call it."""
        return f"{self.arm.name}, seed {self.seed}"

    def run(self, number: int) -> Run:
        """π_number."""
        return Run(self.at(number) / "run")

    def entry(self, number: int) -> dict[str, Any] | None:
        """What was measured in a round, or why there is none; None where it was not done yet."""
        path = self.at(number) / MEASURED
        return dict(read_json(path)) if path.exists() else None

    def rounds(self, last: int) -> list[dict[str, Any]]:
        """What was measured, up to where the arm stopped (its last entry then says why)."""
        entries = []
        for number in range(1, last + 1):
            if (entry := self.entry(number)) is None:
                break
            entries.append(entry)
        return entries

    def next_round(self, last: int) -> int | None:
        """The round to be done next; None where all are done, or where the arm has stopped."""
        entries = self.rounds(last)
        if len(entries) == last or (entries and "stopped" in entries[-1]):
            return None
        return len(entries) + 1

    def steps(self, number: int) -> Steps[dict[str, Any]]:
        """Do one round; what was measured."""
        self._serve(number - 1)
        config = self.training(number)
        job = Job(self.name, self.at(number - 1) / "data", self.run(number).folder, config)
        data = Prepared(job.data)
        try:
            check_data(data, resolve(config, data).objective)
        except DataError as error:
            # A policy that shows nobody what they want leaves a log from which nothing can be learnt.
            return self._write(number, {"stopped": str(error)})
        refuse_other(job)
        failure = yield from train_job(job)
        return self._write(number, self._measure(number) if failure is None else {"stopped": failure})

    def training(self, number: int) -> Config:
        """How a round is trained."""
        settings = scenario_of(self.config.world).settings
        chosen = dict(self.arm.objective)
        known = number > 1 and self.config.logging == "served" and not self.config.keep_logs
        if known and "logp_logging" in objective_of(chosen).reads().fields:
            chosen["logging"] = str(self.run(number - 1).folder)
        training = {**settings["train"], "seed": round_seed(self.seed, number), "device": "cpu"}
        config = Config.parse({**settings, "objective": chosen, "train": training})
        return config.with_changes(self.config.changes)

    def _write(self, number: int, entry: dict[str, Any]) -> dict[str, Any]:
        write_json(self.at(number) / MEASURED, entry)
        return entry

    def _measure(self, number: int) -> dict[str, Any]:
        """What this round's policy showed."""
        run = self.run(number)
        before = self.run(number - 1).policy() if number > 1 else None
        measures = RoundMeasure(world_of(self.config), episodes=self.config.episodes, seed=self.seed)
        kept = run.selected_metrics()
        figures = measures.of(run.policy(), before).to_dict()
        return {
            "round": number, **figures, "weights": kept["weights"], "epoch": kept["epoch"], "version": run.version,
        }  # fmt: skip

    def _serve(self, number: int) -> None:
        """Let this round's policy write the log that the next one is trained on."""
        if (self.at(number) / "data").exists():
            return
        write_prepared(
            world_of(self.config),
            self.at(number) / "data",
            sequences=self.config.sequences,
            seed=round_seed(self.seed, number),
            chunks=self._log(number),
            policy=self.run(number).version,
            like=Prepared(self.at(0) / "data"),
            append=Prepared(self.at(number - 1) / "data") if self.config.keep_logs else None,
        )

    def _log(self, number: int) -> Iterator[Events]:
        world, policy, luck = world_of(self.config), self.run(number).policy(), round_seed(self.seed, number)
        if isinstance(world, BanditWorld):
            return world.log(self.config.sequences, luck, probabilities=bandit_probabilities(policy, world))
        return world.log(self.config.sequences, luck, agent=agent(policy, world))


def _folder_name(arm: PolicySpec) -> str:
    """Fit for a path: the arm's settings in their order."""
    parts = [str(value) if name == "name" else f"{name}-{value}" for name, value in arm.objective.items()]
    return "-".join(parts).replace("/", "_")
