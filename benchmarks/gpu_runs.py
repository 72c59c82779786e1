"""Several runs of one shape on one GPU: in processes, and in processes under MPS.

    python benchmarks/gpu_runs.py [--runs 1,2,4,8,16] [--items 48255] [--objective lpi_rl] [--seconds 3]
                                  [--ways mps,processes]

Prints steps per second of all runs together, the ratio to one run alone, and the microseconds that the host takes to
ask for a step. MPS is used where its daemon can be started.
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


def one_process(data: Prepared, folder: Path, given: argparse.Namespace) -> None:
    """The part of one of several processes: prints how many steps it did in its time, and the host's share."""
    trainer = started(data, folder, given.objective, given.seed)
    source, counted, host, number = batches(trainer, "fused", 256), 0, 0.0, 0
    while number < WARM or time.time() < given.begin + given.seconds:
        if number % 50 == 0:
            torch.cuda.current_stream().synchronize()
        asked = time.perf_counter()
        trainer.step(next(source), number)
        host += time.perf_counter() - asked
        number += 1
        counted += number > WARM and time.time() >= given.begin
    torch.cuda.current_stream().synchronize()
    assert trainer.captured is not None and trainer.captured.refused is None
    print(counted, host / number * 1e6)


def processes(data: Path, folder: Path, given: argparse.Namespace, runs: int) -> tuple[float, float]:
    """Steps per second of `runs` runs, each in a process of its own, and the host's microseconds."""
    begin = time.time() + 11 + runs / 2
    command = [sys.executable, __file__, "--data", str(data), "--objective", given.objective, "--begin", str(begin),
               "--seconds", str(given.seconds), "--folder", str(folder)]  # fmt: skip
    started = [
        subprocess.Popen([*command, "--seed", str(seed)], stdout=subprocess.PIPE, text=True) for seed in range(runs)
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
    parser.add_argument("--ways", default="mps,processes")
    for name, kind in (("data", Path), ("folder", Path), ("begin", float), ("seed", int)):
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
                rate, host = processes(data.path, folder / f"{way}{runs}", given, runs)
                first = first or rate
                print(f"{way:10} {runs:4} {rate:8.0f} {rate / first:6.2f} {host:8.0f}", flush=True)
        if daemon:
            subprocess.run(["nvidia-cuda-mps-control"], input="quit", text=True, check=False)


if __name__ == "__main__":
    main()
