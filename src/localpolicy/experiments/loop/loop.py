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
from pathlib import Path
from typing import Any

from localpolicy.errors import ConfigError
from localpolicy.experiments.jobs import train_all
from localpolicy.experiments.loop.chain import Chain, prepare_log, round_seed
from localpolicy.experiments.loop.config import LoopConfig, arms_of
from localpolicy.experiments.loop.measure import RoundMeasure, World
from localpolicy.experiments.loop.result import Loop
from localpolicy.runtime.files import read_json, write_json
from localpolicy.runtime.folders import refuse_occupied
from localpolicy.simulation.truth import WORLDS

LOG = logging.getLogger(__name__)


def loop(config: LoopConfig, *, out: Path | str, rounds: int) -> Loop:
    """Go through `rounds` rounds in the folder `out`; what is done there already is not done again."""
    if rounds < 1:
        raise ConfigError(f"rounds must be at least 1, got {rounds}.")
    settings, kind = WORLDS[config.world]
    world: World = kind(settings().with_changes([*config.dials, f"items={config.items}"]), seed=config.world_seed)
    arms = arms_of(config)
    folder = Path(out).resolve()  # runs name the run that served their log, from wherever the loop goes on
    chains = [Chain(config, world, arm, seed, folder / f"seed-{seed}") for seed in config.seeds for arm in arms]
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
    measured = {arm.name: [chain.rounds(rounds) for chain in chains if chain.arm is arm] for arm in arms}
    return Loop(config, world, arms, first, measured)


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
        prepare_log(config, world, folder, seed=seed, number=0, chunks=world.log(config.sequences, round_seed(seed, 0)))
        write_json(path, RoundMeasure(world, episodes=config.episodes, seed=seed).first().to_dict())
    return dict(read_json(path))
