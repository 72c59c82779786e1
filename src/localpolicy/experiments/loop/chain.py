"""One objective's rounds under one seed: train on the last log, measure, and write the next log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.errors import DataError
from localpolicy.evaluation.truth import agent, bandit_probabilities
from localpolicy.experiments.jobs import Job
from localpolicy.experiments.loop.config import LoopConfig, scenario_of
from localpolicy.experiments.loop.measure import RoundMeasure, World
from localpolicy.experiments.scenarios import PolicySpec
from localpolicy.objectives import objective_of
from localpolicy.objectives.lpi import Improvement
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.files import read_json, write_json
from localpolicy.simulation import BanditWorld, write_log
from localpolicy.simulation.events import Events
from localpolicy.training.checks import check_data
from localpolicy.training.setup import resolve


def round_seed(seed: int, number: int) -> int:
    """The seed of a round: one for all arms, so that they meet the same users."""
    return 1_000 * seed + number


def prepare_log(
    config: LoopConfig,
    world: World,
    folder: Path,
    *,
    seed: int,
    number: int,
    chunks: Iterator[Events],
    policy: str = "logging",
    append: Path | None = None,
    like: Path | None = None,
) -> None:
    """The log in `folder`, and prepared there; the first one decides the catalogue and what events are worth."""
    if (folder / "data").exists():
        return
    # Sequences of different rounds are different ones, also where their logs are put together.
    apart = (replace(chunk, sequence=chunk.sequence + number * config.sequences) for chunk in chunks)
    write_log(world, folder / "log", sequences=config.sequences, seed=seed, chunks=apart, policy=policy, force=True)
    first = append is None and like is None
    rewards: dict[str, Any] = {"rewards": world.rewards} if first and world.rewards else {}
    events = folder / "log" / "events.parquet"
    prepare("events", [events], out=folder / "data", append=append, like=like, threads=1, **rewards)


class Chain:
    """One objective's rounds under one seed."""

    def __init__(self, config: LoopConfig, world: World, arm: PolicySpec, seed: int, folder: Path) -> None:
        self.config, self.world, self.arm, self.seed = config, world, arm, seed
        self.start, self.folder = folder / "start", folder / _folder_name(arm)

    def at(self, number: int) -> Path:
        """The folder of a round; the 0th is the start."""
        return self.folder / f"round-{number:02d}" if number else self.start

    @property
    def name(self) -> str:
        """As people call it."""
        return f"{self.arm.name}, seed {self.seed}"

    def stop(self, number: int, reason: str) -> None:
        """No further round: this one has no policy."""
        write_json(self.at(number) / "round.json", {"stopped": reason})

    def run(self, number: int) -> Run:
        """π_number."""
        return Run(self.at(number) / "run")

    def jobs(self, number: int) -> list[Job]:
        """What is to be trained in this round: nothing where it was measured, or where the arm has stopped."""
        if (self.at(number) / "round.json").exists() or self._stopped(number):
            return []
        data = Prepared(self.at(number - 1) / "data")
        config = self.training(number)
        try:
            check_data(data, resolve(config, data).objective)
        except DataError as error:
            # A policy that shows nobody what they want leaves a log from which nothing can be learnt.
            self.stop(number, str(error))
            return []
        return [Job(self.name, data.path, self.run(number).folder, config)]

    def training(self, number: int) -> Config:
        """How a round is trained."""
        settings = scenario_of(self.config.world).settings
        chosen = dict(self.arm.objective)
        known = number > 1 and self.config.logging == "served" and not self.config.keep_logs
        objective = objective_of(chosen)
        # The closed form estimates μ̂ anew: upon the served policy's towers it would put more, round after round.
        closed = isinstance(objective, Improvement) and objective.closed
        if known and not closed and "logp_logging" in objective.reads().fields:
            chosen["logging"] = str(self.run(number - 1).folder)
        training = {**settings["train"], "seed": round_seed(self.seed, number), "device": "cpu"}
        config = Config.parse({**settings, "objective": chosen, "train": training})
        return config.with_changes(self.config.changes)

    def _stopped(self, number: int) -> bool:
        return any(
            "stopped" in read_json(path)
            for earlier in range(1, number + 1)
            if (path := self.at(earlier) / "round.json").exists()
        )

    def measure(self, number: int) -> None:
        """Write what this round's policy showed."""
        path = self.at(number) / "round.json"
        if path.exists() or self._stopped(number):
            return
        run = self.run(number)
        before = self.run(number - 1).policy() if number > 1 else None
        measures = RoundMeasure(self.world, episodes=self.config.episodes, seed=self.seed)
        kept = run.selected_metrics()
        figures = measures.of(run.policy(), before).to_dict()
        beside = {"weights": kept["weights"], "epoch": kept["epoch"], "version": run.version}
        write_json(path, {"round": number, **figures, **beside})

    def serve(self, number: int) -> None:
        """Let this round's policy write the next log."""
        if self._stopped(number) or (self.at(number) / "data").exists():
            return
        run, config, luck = self.run(number), self.config, round_seed(self.seed, number)
        policy = run.policy()
        if isinstance(self.world, BanditWorld):
            shares = bandit_probabilities(policy, self.world)
            chunks = self.world.log(config.sequences, luck, probabilities=shares)
        else:
            chunks = self.world.log(config.sequences, luck, agent=agent(policy, self.world))
        prepare_log(
            config,
            self.world,
            self.at(number),
            seed=luck,
            number=number,
            chunks=chunks,
            policy=run.version,
            append=self.at(number - 1) / "data" if config.keep_logs else None,
            like=self.at(number - 1) / "data" if config.keep_logs else self.start / "data",
        )

    def rounds(self, last: int) -> list[dict[str, Any]]:
        """What was measured, up to where the arm stopped (its last entry then says why)."""
        entries = []
        for number in range(1, last + 1):
            if not (path := self.at(number) / "round.json").exists():
                break
            entries.append(dict(read_json(path)))
        return entries


def _folder_name(arm: PolicySpec) -> str:
    """Fit for a path: the arm's settings in their order."""
    parts = [str(value) if name == "name" else f"{name}-{value}" for name, value in arm.objective.items()]
    return "-".join(parts).replace("/", "_")
