"""The loop: deploy, log, retrain, round after round, in a world whose truth is known.

Several objectives start from the same log, written by the world's own logging policy μ. Round k trains π_k on the log
of π_{k-1} (π_0 = μ), measures it, and lets it serve the next log: impressions with propensities and its version. By
default only the last log is trained on, as local improvement assumes, and the run that served it stands for its own
logging policy, since that is known exactly; μ, which is no run, is estimated by a head in round 1.

    OUT/settings.json                          what this loop is: another one is refused
    OUT/seed-0/start/{log,data}                the log that all objectives start from
    OUT/seed-0/ARM/round-01/{run,log,data}     π_1, and the log that it served
    OUT/seed-0/ARM/round-01/round.json         what was measured; a round that has it is not done again
    OUT/loop.json, loop.md, loop.svg, report.html
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field, field_validator

from localpolicy import __version__
from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, DataError, nearest
from localpolicy.evaluation.truth import EPISODES, agent, bandit_probabilities
from localpolicy.experiments.jobs import Job, train_all
from localpolicy.experiments.loop_figures import Figures, over_all_seeds
from localpolicy.experiments.loop_measure import RoundMeasure, World
from localpolicy.experiments.scenarios import SCENARIOS, PolicySpec, Scenario
from localpolicy.objectives import objective_of
from localpolicy.objectives.lpi import Improvement
from localpolicy.results import Result
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.files import read_json, refuse_occupied, write_json
from localpolicy.settings import Settings
from localpolicy.simulation import BanditWorld, write_log
from localpolicy.simulation.events import Events
from localpolicy.simulation.truth import WORLDS
from localpolicy.training.checks import check_data
from localpolicy.training.setup import resolve

LOG = logging.getLogger(__name__)
USUAL = {  # objectives and sequences per round unless told otherwise
    "bandit": (("mle", "reward_weighted", "ips", "lpi_cb"), 10_000),
    "store": (("mle", "reward_weighted", "ips_pg", "lpi_rl"), 2_000),
}


class LoopConfig(Settings):
    """Everything that decides a loop, its number of rounds aside."""

    world: Literal["bandit", "store"] = Field(description="bandit or store")
    items: int = Field(ge=2, description="size of the catalogue")
    dials: tuple[str, ...] = Field((), description="other changes to the world, as temperature=2")
    world_seed: int = Field(0, ge=0, description="which world of this kind")
    sequences: int = Field(10_000, ge=30, description="sequences that each policy serves")
    seeds: tuple[int, ...] = Field((0,), description="of logs and training: one whole loop each")
    objectives: tuple[str, ...] = Field(description="objectives, as lpi_cb or lpi_cb:advantage=observed")
    betas: tuple[float, ...] = Field(
        (), description="one arm of each objective that has a β for each of these (default: one arm, which chooses)"
    )
    logging: Literal["served", "head"] = Field("served", description="μ̂ from round 2 on: the served run, or a head")
    keep_logs: bool = Field(False, description="train on all logs so far, not on the last alone (μ̂ is then a head)")
    changes: tuple[str, ...] = Field((), description="changes to the training settings, as train.epochs=4")
    episodes: int = Field(EPISODES, ge=2, description="rollouts behind the store's true reward")

    @field_validator("seeds", "objectives")
    @classmethod
    def _any(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if not value:
            raise ValueError("expected at least one value")
        return value

    @field_validator("seeds", "objectives", "betas")
    @classmethod
    def _some(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(set(value)) < len(value):
            raise ValueError("expected none twice")
        if any(isinstance(one, int) and one < 0 for one in value):
            raise ValueError("a seed must not be negative")
        return value


@dataclass(frozen=True, repr=False)
class Loop(Result):
    """A loop that has come to its end."""

    config: LoopConfig
    world: World
    arms: list[PolicySpec]
    first: list[dict[str, Any]]  # μ's figures, by seed
    rounds: dict[str, list[list[dict[str, Any]]]]  # by arm, by seed: one entry per round, fewer where it had to stop

    def figures(self, arm: str) -> list[Figures]:
        """One objective's figures by round (the 0th is μ), over the seeds that got there."""
        seeds = [[entry for entry in seed if "stopped" not in entry] for seed in self.rounds[arm]]
        last = max(map(len, seeds), default=0)
        return [
            over_all_seeds(self.first),
            *(over_all_seeds([seed[number] for seed in seeds if len(seed) > number]) for number in range(last)),
        ]

    def stopped(self, arm: str) -> dict[int, str]:
        """Rounds in which a seed could not be trained, and why."""
        entries = [(number, entry) for seed in self.rounds[arm] for number, entry in enumerate(seed, start=1)]
        return {number: entry["stopped"] for number, entry in entries if "stopped" in entry}

    def summary(self) -> str:
        """Where each objective ended."""
        ends = {arm.name: self.figures(arm.name)[-1]["J(π)"].mean for arm in self.arms}
        order = ", ".join(f"{name} {value:.4f}" for name, value in sorted(ends.items(), key=lambda end: -end[1]))
        last = max(len(seed) for seeds in self.rounds.values() for seed in seeds)
        return f"{self.config.world}, {last} rounds; J at the end: {order}"

    def to_arrow(self) -> pa.Table:
        """One row per objective, round and figure, with its 95 % interval."""
        return pa.Table.from_pylist(
            [
                {"policy": arm.name, "round": number, "figure": name, **asdict(value)}
                for arm in self.arms
                for number, figures in enumerate(self.figures(arm.name))
                for name, value in figures.items()
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """Settings, every figure by round, and each seed's own."""
        world = self.world
        return {
            "localpolicy": __version__,
            "settings": self.config.model_dump(mode="json"),
            "optimum": world.optimum() if isinstance(world, BanditWorld) else None,
            "first": {str(seed): _kept(entry) for seed, entry in zip(self.config.seeds, self.first, strict=True)},
            "arms": {
                arm.name: {
                    "objective": arm.objective,
                    "rounds": [
                        {"round": number, **{name: asdict(value) for name, value in figures.items()}}
                        for number, figures in enumerate(self.figures(arm.name))
                    ],
                    "seeds": {
                        str(seed): [_kept(entry) for entry in entries]
                        for seed, entries in zip(self.config.seeds, self.rounds[arm.name], strict=True)
                    },
                }
                for arm in self.arms
            },
        }


def _kept(entry: dict[str, Any]) -> dict[str, Any]:
    """What one seed measured in one round; the rest is in its own file."""
    if "stopped" in entry:
        return entry
    kept = {name: entry[name]["mean"] for name in ("truth", "gain", "js_before", "js_first")}
    share = {key: value for key, value in entry.get("weights", {}).items() if key == "effective_share"}
    return {
        **kept,
        "truth_se": entry["truth"]["se"],
        **{name: entry[name] for name in ("entropy", "coverage")},
        **share,
    }


def _scenario(world: str) -> Scenario:
    """The demo's settings for a world hold here too."""
    return next(scenario for scenario in SCENARIOS if scenario.world == world)


def loop_config(world: str, **given: Any) -> LoopConfig:
    """The config of a loop; what is None keeps the world's default."""
    if world not in USUAL:
        raise ConfigError(f"no world '{world}' with a known truth{nearest(world, USUAL)}")
    objectives, sequences = USUAL[world]
    usual = {"world": world, "objectives": objectives, "sequences": sequences}
    usual["items"] = _scenario(world).items
    return LoopConfig.parse({**usual, **{name: value for name, value in given.items() if value is not None}})


def loop(config: LoopConfig, *, out: Path | str, rounds: int) -> Loop:
    """Go through `rounds` rounds in the folder `out`; what is done there already is not done again."""
    if rounds < 1:
        raise ConfigError(f"rounds must be at least 1, got {rounds}.")
    settings, kind = WORLDS[config.world]
    world: World = kind(settings().with_changes([*config.dials, f"items={config.items}"]), seed=config.world_seed)
    arms = arms_of(config)
    folder = Path(out).resolve()  # runs name the run that served their log, from wherever the loop goes on
    chains = [_Chain(config, world, arm, seed, folder / f"seed-{seed}") for seed in config.seeds for arm in arms]
    for chain in chains:
        chain.training(1)  # refuses settings that are wrong, before anything is written
    _claim(folder, config)
    first = [_start(config, world, seed, folder / f"seed-{seed}" / "start") for seed in config.seeds]
    for number in range(1, rounds + 1):
        jobs = [job for chain in chains for job in chain.jobs(number)]
        failures: dict[str, str] = {}
        train_all(jobs, failures=failures, label=f"round {number} of {rounds}: ")
        for chain in chains:
            if chain.name in failures:
                chain.stop(number, failures[chain.name])
            chain.measure(number)
            if number < rounds:
                chain.serve(number)
    found = {arm.name: [chain.rounds(rounds) for chain in chains if chain.arm is arm] for arm in arms}
    return Loop(config, world, arms, first, found)


def arms_of(config: LoopConfig) -> list[PolicySpec]:
    """One arm per objective, and per β where it has one that is not given with it."""
    found = []
    for text in config.objectives:
        name, *pairs = text.split(":")
        named = Config.parse({"objective": {"name": name}})
        settings = named.with_changes([f"objective.{pair}" for pair in pairs]).objective
        given = settings.model_dump(exclude_unset=True)
        free = "beta" in type(settings).model_fields and "beta" not in given
        rest = "".join(f" {pair}" for pair in pairs if not pair.startswith("beta="))
        for beta in config.betas or (None,) if free else (given.get("beta"),):
            said = "" if beta is None else f" β={beta:g}"
            found.append(PolicySpec(f"{name}{said}{rest}", given if beta is None else {**given, "beta": beta}))
    names = [arm.name for arm in found]
    if len(set(names)) < len(names):
        raise ConfigError(f"two arms are called '{max(names, key=names.count)}': name each objective and each β once.")
    return found


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


def _start(config: LoopConfig, world: World, seed: int, folder: Path) -> dict[str, Any]:
    """The log that all objectives start from, and μ's own figures."""
    path = folder / "round.json"
    if not path.exists():
        LOG.info("seed %d: %s sequences of the first policy", seed, f"{config.sequences:,}")
        _prepare_log(config, world, folder, seed=seed, number=0, chunks=world.log(config.sequences, _luck(seed, 0)))
        write_json(path, RoundMeasure(world, episodes=config.episodes, seed=seed).first().to_dict())
    return dict(read_json(path))


def _luck(seed: int, number: int) -> int:
    """The seed of a round: one for all arms, so that they meet the same users."""
    return 1_000 * seed + number


def _prepare_log(
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


class _Chain:
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
        settings = _scenario(self.config.world).settings
        chosen = dict(self.arm.objective)
        known = number > 1 and self.config.logging == "served" and not self.config.keep_logs
        objective = objective_of(chosen)
        # The closed form estimates μ̂ anew: upon the served policy's towers it would put more, round after round.
        closed = isinstance(objective, Improvement) and objective.closed
        if known and not closed and "logp_logging" in objective.reads().fields:
            chosen["logging"] = str(self.run(number - 1).folder)
        training = {**settings["train"], "seed": _luck(self.seed, number), "device": "cpu"}
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
        gauge = RoundMeasure(self.world, episodes=self.config.episodes, seed=self.seed)
        kept = run.selected_metrics()
        found = gauge.of(run.policy(), before).to_dict()
        beside = {"weights": kept["weights"], "epoch": kept["epoch"], "version": run.version}
        write_json(path, {"round": number, **found, **beside})

    def serve(self, number: int) -> None:
        """Let this round's policy write the next log."""
        if self._stopped(number) or (self.at(number) / "data").exists():
            return
        run, config, luck = self.run(number), self.config, _luck(self.seed, number)
        policy = run.policy()
        if isinstance(self.world, BanditWorld):
            shares = bandit_probabilities(policy, self.world)
            chunks = self.world.log(config.sequences, luck, probabilities=shares)
        else:
            chunks = self.world.log(config.sequences, luck, agent=agent(policy, self.world))
        _prepare_log(
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
        found = []
        for number in range(1, last + 1):
            if not (path := self.at(number) / "round.json").exists():
                break
            found.append(dict(read_json(path)))
        return found


def _folder_name(arm: PolicySpec) -> str:
    """Fit for a path: the arm's settings in their order."""
    parts = [str(value) if name == "name" else f"{name}-{value}" for name, value in arm.objective.items()]
    return "-".join(parts).replace("/", "_")
