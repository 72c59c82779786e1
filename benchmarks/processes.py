"""One process of two threads against two processes of one thread each, and the cost of a checkpoint.

    python benchmarks/processes.py processes
    python benchmarks/processes.py checkpoint

`processes` times steps of `mle` and `lpi_rl` at 17,376 items on two cores: one process with two threads; two with one
thread each, every one with a copy of the tables (DDP); two that split the catalogue (--shard-catalogue). Ways
alternate, and ratios are taken within a round. `checkpoint` times what a checkpoint of a policy with 50 million
parameters takes from training: weights and both of Adam's moments, 600 MB, on disk and digested when the call returns.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from peers.clock import Settings
from peers.ours import prepared
from torch.multiprocessing.spawn import spawn
from training import sequences

from localpolicy.data.store import Prepared
from localpolicy.runs.config import configure
from localpolicy.runs.run import Run
from localpolicy.runtime.ranks import ALONE, Ranks
from localpolicy.training.checkpoint import Checkpoints, Progress
from localpolicy.training.setup import resolve
from localpolicy.training.trainer import Trainer

WAYS = {
    "one process, two threads": (1, 2, False),
    "two processes, copies": (2, 1, False),
    "two processes, shards": (2, 1, True),
}
WARM = 4


def trainer_of(data: Prepared, folder: Path, settings: Settings, objective: str, ranks: Ranks, shard: bool) -> Trainer:
    """Trainer as `lpi train --preset rl` builds it."""
    short = {"objective.name": objective, "train.device": "cpu", "train.shard_catalogue": shard}
    config = configure(preset="rl", short={**short, "model.width": settings.width})
    trainer = Trainer.start(data, Run(folder / "run"), resolve(config, data), ranks=ranks)
    trainer.network.train()
    return trainer


def steps(
    rank: int, total: int, port: int, threads: int, shard: bool, objective: str, folder: Path, settings: Settings,
    count: int,
) -> None:  # fmt: skip
    """What each process does; the first one writes its time."""
    torch.set_num_threads(threads)
    if total > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        dist.init_process_group("gloo", rank=rank, world_size=total)
    ranks = Ranks(rank, total)
    trainer = trainer_of(Prepared(folder / "data"), folder, settings, objective, ranks, shard)
    began = 0.0
    batches = trainer.windows.shuffled(settings.batch, seed=0, epoch=0, rank=rank, ranks=total)
    for number, batch in zip(range(count + WARM), batches, strict=False):
        if number == WARM:
            ranks.wait()
            began = time.perf_counter()
        (positions,) = ranks.summed(len(batch.scored))
        trainer.step(batch, number, positions=positions)
    ranks.wait()
    if rank == 0:
        seconds = time.perf_counter() - began
        (folder / "result.json").write_text(json.dumps(count * settings.batch / seconds))
    if total > 1:
        dist.destroy_process_group()


def processes(rounds: int, count: int) -> None:
    """A table of sequences per second, and of ratios to the first way."""
    settings = Settings()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        prepared(folder / "data", sequences((count + WARM) * settings.batch, settings), settings.items)
        print("| | " + " | ".join(WAYS) + " | copies / one | shards / one |\n|---|--:|--:|--:|--:|--:|")
        for objective in ("mle", "lpi_rl_weighted"):
            speed: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(rounds):
                for way, (total, threads, shard) in WAYS.items():
                    with socket.socket() as free:
                        free.bind(("127.0.0.1", 0))
                        port = free.getsockname()[1]
                    arguments = (total, port, threads, shard, objective, folder, settings, count)
                    spawn(steps, arguments, nprocs=total)
                    speed[way].append(json.loads((folder / "result.json").read_text()))
            one, *others = speed.values()
            ratios = [[b / a for a, b in zip(one, other, strict=True)] for other in others]
            cells = [f"{median(values):,.0f}" for values in speed.values()]
            cells += [f"{median(each):.2f} ({min(each):.2f}–{max(each):.2f})" for each in ratios]
            print(f"| {objective}, sequences/s | " + " | ".join(cells) + " |", flush=True)
    print(f"\n{json.dumps(asdict(settings))}, {count} steps, {rounds} rounds, load {os.getloadavg()[0]:.1f}")


def checkpoint(rounds: int, millions: int, folder: Path | None) -> None:
    """Seconds from the call to its return."""
    settings = Settings()
    items = millions * 1_000_000 // (2 * settings.width + 1)  # an mle policy: embeddings, head rows and biases
    settings = replace(settings, items=items)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        place = Path(scratch)
        data = prepared(place / "data", sequences(64, settings), items)
        trainer = trainer_of(data, place, settings, "mle", ALONE, False)
        trainer.step(next(trainer.windows.shuffled(64, seed=0, epoch=0)), 0)  # so that Adam has its moments
        saved = Checkpoints(place / "run" / "checkpoint")
        seconds = []
        for number in range(rounds):
            began = time.perf_counter()
            saved.save(trainer.network, trainer.optimiser, Progress(step=number), {})
            seconds.append(time.perf_counter() - began)
        size = sum(path.stat().st_size for path in (place / "run" / "checkpoint").glob("*.safetensors")) / 2
        print(
            f"{trainer.network.n_parameters:,} parameters, {size / 1e6:,.0f} MB: median {median(seconds):.2f} s, "
            f"smallest {min(seconds):.2f}, largest {max(seconds):.2f} ({rounds} of them, load {os.getloadavg()[0]:.1f})"
        )


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("processes")
    first.add_argument("--rounds", type=int, default=3)
    first.add_argument("--steps", type=int, default=20)
    second = commands.add_parser("checkpoint")
    second.add_argument("--rounds", type=int, default=7)
    second.add_argument("--millions", type=int, default=50)
    second.add_argument("--folder", type=Path, help="on the disk to be measured (default: the temporary folder's)")
    options = parser.parse_args()
    if options.command == "processes":
        processes(options.rounds, options.steps)
    else:
        checkpoint(options.rounds, options.millions, options.folder)


if __name__ == "__main__":
    main()
