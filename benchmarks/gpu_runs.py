"""Several runs of one shape on one GPU: one after another, on streams of one process, in processes, and under MPS.

    python benchmarks/gpu_runs.py [--runs 1,2,4,8] [--items 48255] [--objective lpi_rl] [--seconds 4]

Prints steps per second of all runs together, and the ratio to one run alone. In one process each run has a stream of
its own, on which its captured steps are replayed in turn. MPS is used where its daemon can be started.
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
from localpolicy.training.trainer import Trainer

WARM = 120


def started(data: Prepared, folder: Path, objective: str, seed: int) -> Trainer:
    """A trainer, and its steps captured."""
    settings = {"device": "cuda", "precision": "bf16", "seed": seed}
    config = Config.parse({"objective": setting(objective), "train": settings})
    trainer = Trainer.start(data, Run(folder / str(seed)), config)
    trainer.network.train()
    return trainer


def streams(data: Prepared, folder: Path, objective: str, runs: int, seconds: float) -> float:
    """Steps per second of `runs` runs in this process, each on a stream of its own."""
    trainers = [started(data, folder, objective, seed) for seed in range(runs)]
    coming = [batches(trainer, "fused", 256) for trainer in trainers]
    lanes = [torch.cuda.Stream() for _ in trainers]

    def step(number: int) -> None:
        for trainer, source, lane in zip(trainers, coming, lanes, strict=True):
            with torch.cuda.stream(lane):
                trainer.step(next(source), number)

    for number in range(WARM):
        step(number)
        torch.cuda.synchronize()  # captures must not meet the others' work
    assert all(trainer.captured is not None and trainer.captured.refused is None for trainer in trainers)
    began, number = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        step(number)
        number += 1
        if number % 20 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return number * runs / (time.perf_counter() - began)


def alone(data: Prepared, folder: Path, objective: str, seed: int, begin: float, seconds: float) -> int:
    """Steps of one process between `begin` and `begin` + `seconds` (time.time())."""
    trainer = started(data, folder, objective, seed)
    source = batches(trainer, "fused", 256)
    number = 0
    while time.time() < begin or number < WARM:
        trainer.step(next(source), number)
        number += 1
        if number % 20 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    late, counted = time.time() - begin, 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(20):
            trainer.step(next(source), number)
        torch.cuda.synchronize()
        counted += 20
    if late > 0.5:
        print(f"process {seed} was {late:.1f} s late", file=sys.stderr)
    return counted


def processes(data: Path, folder: Path, objective: str, runs: int, seconds: float) -> float:
    """Steps per second of `runs` processes."""
    begin = time.time() + 14 + runs
    command = [sys.executable, __file__, "--data", str(data), "--objective", objective, "--begin", str(begin),
               "--seconds", str(seconds), "--folder", str(folder)]  # fmt: skip
    started = [
        subprocess.Popen([*command, "--seed", str(seed)], stdout=subprocess.PIPE, text=True) for seed in range(runs)
    ]
    outputs = [process.communicate()[0] for process in started]
    return sum(int(output.split()[-1]) for output in outputs) / seconds


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
    parser.add_argument("--runs", default="1,2,4,8")
    parser.add_argument("--items", type=int, default=48_255)
    parser.add_argument("--objective", default="lpi_rl")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--ways", default="streams,processes,mps")
    for name in ("--data", "--folder"):
        parser.add_argument(name, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--begin", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.data is not None:
        steps = alone(Prepared(given.data), given.folder, given.objective, given.seed, given.begin, given.seconds)
        print(steps)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = write_data(folder / "data", items=given.items, mean_length=5.8)
        print(f"{given.objective}, bf16, {given.items:,} items\n{'way':10} {'runs':>4} {'steps/s':>8} {'times':>6}")
        first = None
        for way in given.ways.split(","):
            if way == "mps" and not mps(folder):
                continue
            for runs in map(int, given.runs.split(",")):
                if way == "streams":
                    rate = streams(data, folder / f"{way}{runs}", given.objective, runs, given.seconds)
                else:
                    torch.cuda.empty_cache()
                    rate = processes(data.path, folder / f"{way}{runs}", given.objective, runs, given.seconds)
                first = first or rate
                print(f"{way:10} {runs:4} {rate:8.0f} {rate / first:6.2f}", flush=True)
        if "mps" in given.ways:
            subprocess.run(["nvidia-cuda-mps-control"], input="quit", text=True, check=False)


if __name__ == "__main__":
    main()
