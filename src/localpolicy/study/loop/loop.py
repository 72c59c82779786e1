"""The loop: deploy, log, retrain, round after round, in a world whose truth is known.

Several objectives start from the same log, written by the world's own logging policy μ. Round k trains π_k on the log
of π_{k-1} (π_0 = μ), measures it, and lets it serve the next log: impressions with propensities and its version. By
default only the last log is trained on, as local improvement assumes, and the run that served it stands for its own
logging policy, since that is known exactly; μ, which is no run, is estimated in round 1.

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
from pathlib import Path
from typing import Any, NamedTuple

from localpolicy.errors import ConfigError
from localpolicy.runtime.files import read_json, write_json
from localpolicy.runtime.folders import refuse_occupied
from localpolicy.runtime.lanes import Steps
from localpolicy.study.jobs import Sharing, cores, in_processes
from localpolicy.study.loop.chain import Chain, write_start
from localpolicy.study.loop.config import LoopConfig, arms_of
from localpolicy.study.loop.measure import world_of
from localpolicy.study.loop.result import Loop

LOG = logging.getLogger(__name__)


class _Round(NamedTuple):
    """One round of one chain, for one process."""

    chain: Chain
    number: int


def loop(config: LoopConfig, *, out: Path | str, rounds: int, processes: int | None = None) -> Loop:
    """Go through `rounds` rounds in the folder `out`; what is done there already is not done again.

    `processes` objectives and seeds at a time (default: one per core), with the same figures for any number of them.
    """
    if rounds < 1:
        raise ConfigError(f"rounds must be at least 1, got {rounds}.")
    world, arms = world_of(config), arms_of(config)
    folder = Path(out).resolve()  # runs name the run that served their log, from wherever the loop goes on
    chains = [Chain(config, arm, seed, folder / f"seed-{seed}") for seed in config.seeds for arm in arms]
    for chain in chains:
        chain.training(1)  # refuses settings that are wrong, before anything is written
    _claim(folder, config)
    of_seed = {chain.seed: chain for chain in chains}
    unwritten = [chain for chain in of_seed.values() if chain.entry(0) is None]
    for chain, _ in in_processes(_start, unwritten, sharing=Sharing(1)):
        LOG.info("seed %d: the first policy wrote %s sequences", chain.seed, f"{config.sequences:,}")

    tasks = deque(task for chain in chains if (task := _next(chain, rounds)) is not None)
    for (chain, number), entry in in_processes(_do, tasks, sharing=Sharing(processes or cores())):
        said = f"stopped: {entry['stopped']}" if "stopped" in entry else f"J {entry['truth']['mean']:.4f}"
        LOG.info("%s: round %d of %d: %s", chain.name, number, rounds, said)
        if (following := _next(chain, rounds)) is not None:
            tasks.append(following)
    first = [chain.entry(0) or {} for chain in of_seed.values()]
    measured = {arm.name: [chain.rounds(rounds) for chain in chains if chain.arm is arm] for arm in arms}
    return Loop(config, world, arms, first, measured)


def _next(chain: Chain, rounds: int) -> _Round | None:
    number = chain.next_round(rounds)
    return None if number is None else _Round(chain, number)


def _do(task: _Round) -> Steps[dict[str, Any]]:
    return (yield from task.chain.steps(task.number))


def _start(chain: Chain) -> Steps[None]:
    """The log that all arms of the chain's seed start from."""
    yield from ()
    write_start(chain.config, chain.seed, chain.at(0))


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
