"""Several runs of one shape on one GPU: in lanes of one process, in processes, and in processes under MPS.

    python benchmarks/gpu_runs.py [--runs 1,2,4,8,16] [--items 48255] [--objective lpi_rl] [--seconds 3]
                                  [--ways lanes,mps,mps+lanes,processes]

Prints steps per second of all runs together, and the ratio to one run alone; for lanes also the microseconds that the
host takes to ask for a step. `mps+lanes` shares the runs among two processes. MPS is used where its daemon can be
started.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from gpu_step import batches, setting, write_data

from localpolicy.data.store import Prepared
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.lanes import Steps, caught_up, in_turn
from localpolicy.training.setup import resolve
from localpolicy.training.trainer import Trainer

WARM = 120


def started(data: Prepared, folder: Path, objective: str, seed: int) -> Trainer:
    """A trainer, and its steps captured."""
    settings = {"device": "cuda", "precision": "bf16", "seed": seed}
    config = Config.parse({"objective": setting(objective), "train": settings})
    trainer = Trainer.start(data, Run(folder / str(seed)), resolve(config, data))
    trainer.network.train()
    return trainer


def lanes(trainers: list[Trainer], seconds: float, begin: float) -> tuple[int, float]:
    """Steps of these runs, each in a lane of its own, within `seconds` after `begin`; and the host's share of them."""
    host = [0.0, 0]

    def steps(trainer: Trainer) -> Steps[int]:
        source, counted = batches(trainer, "fused", 256), 0
        for number in range(1_000_000):
            if number >= WARM and time.time() >= begin + seconds:
                break
            if number % 50 == 0:
                yield from caught_up("cuda")
            asked = time.perf_counter()
            trainer.step(next(source), number)
            host[0] += time.perf_counter() - asked
            host[1] += 1
            counted += number >= WARM and time.time() >= begin
            yield None
        torch.cuda.current_stream().synchronize()
        return counted

    outcomes = in_turn(steps, trainers, lanes=len(trainers), device="cuda")
    total = sum(counted for _, counted in outcomes)
    assert all(trainer.captured is not None and trainer.captured.refused is None for trainer in trainers)
    return total, host[0] / max(host[1], 1) * 1e6


def one_process(data: Prepared, folder: Path, given: argparse.Namespace) -> None:
    """The part of one of several processes: prints how many steps it did in its time."""
    numbers = range(given.first, given.first + given.own)
    trainers = [started(data, folder, given.objective, number) for number in numbers]
    total, host = lanes(trainers, given.seconds, given.begin)
    print(total, host)


def processes(data: Path, folder: Path, given: argparse.Namespace, runs: int, own: int) -> tuple[float, float]:
    """Steps per second of `runs` runs in processes that have `own` of them each, and the host's microseconds."""
    begin = time.time() + 10 + own + runs / own / 2
    command = [sys.executable, __file__, "--data", str(data), "--objective", given.objective, "--begin", str(begin),
               "--seconds", str(given.seconds), "--folder", str(folder), "--own", str(own)]  # fmt: skip
    started = [
        subprocess.Popen([*command, "--first", str(first)], stdout=subprocess.PIPE, text=True)
        for first in range(0, runs, own)
    ]
    outputs = [process.communicate()[0].split()[-2:] for process in started]
    return sum(int(steps) for steps, _ in outputs) / given.seconds, float(outputs[0][1])


def mps(folder: Path) -> bool:
    """Start the daemon; whether it runs."""
    os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}
    for name in ("pipe", "log"):
        (folder / name).mkdir()
    try:
        return subprocess.run(["nvidia-cuda-mps-control", "-d"], check=False).returncode == 0
    except FileNotFoundError as error:
        print(f"no MPS here: {error}")
        return False


def main() -> None:
    """A table of ways and numbers of runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", default="1,2,4,8,16")
    parser.add_argument("--items", type=int, default=48_255)
    parser.add_argument("--objective", default="lpi_rl")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--ways", default="lanes,mps,mps+lanes,processes")
    for name, kind in (("data", Path), ("folder", Path), ("begin", float), ("first", int), ("own", int)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.data is not None:
        one_process(Prepared(given.data), given.folder, given)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = write_data(folder / "data", items=given.items, mean_length=5.8)
        print(f"{given.objective}, bf16, {given.items:,} items")
        print(f"{'way':10} {'runs':>4} {'steps/s':>8} {'times':>6} {'host µs':>8}")
        first, daemon = None, False
        for way in given.ways.split(","):
            if way.startswith("mps") and not daemon:
                daemon = mps(folder)
                if not daemon:
                    continue
            for runs in map(int, given.runs.split(",")):
                own = {"lanes": runs, "mps+lanes": max(1, runs // 2)}.get(way, 1)
                rate, host = processes(data.path, folder / f"{way}{runs}", given, runs, own)
                first = first or rate
                print(f"{way:10} {runs:4} {rate:8.0f} {rate / first:6.2f} {host:8.0f}", flush=True)
        if daemon:
            subprocess.run(["nvidia-cuda-mps-control"], input="quit", text=True, check=False)


if __name__ == "__main__":
    main()
