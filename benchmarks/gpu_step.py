"""One training step on a GPU at the shape of YooChoose: 256 sequences of at most 20, 48,255 items, width 64.

    python benchmarks/gpu_step.py [--items 48255] [--mean-length 5.8]

Prints milliseconds per step (median of 100 after a warm-up, with device events) and peak memory per objective.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch

from localpolicy.data.store import Prepared, writing
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.training.loop import Trainer

OBJECTIVES = ("mle", "reward_weighted", "ips", "sqn", "lpi_cb", "lpi_rl")
WARM, STEPS = 20, 100


def write_data(path: Path, *, items: int, mean_length: float) -> Prepared:
    """Random sequences with heavy-tailed items."""
    rng = np.random.default_rng(0)
    share = 1 / (np.arange(items) + 20.0)
    with writing(
        path, kind="interactions", events=["click", "purchase"], rewards={"click": 0.2, "purchase": 1.0}
    ) as store:
        for split, count in (("train", 40_000), ("validation", 100), ("test", 100)):
            lengths = np.minimum(1 + rng.geometric(1 / (mean_length - 1), count), 20)
            total = int(lengths.sum())
            event = (rng.random(total) < 0.05).astype(np.uint8)
            item = rng.choice(items, total, p=share / share.sum())
            store.splits[split].append(lengths, {"item": item, "event": event, "reward": np.where(event, 1.0, 0.2)})
        store.write_items(np.arange(items), np.ones(items, np.int64))
    return Prepared(path)


def measure(data: Prepared, objective: str, folder: Path) -> tuple[float, float, float]:
    """Median milliseconds per step, peak GiB, mean positions."""
    config = Config.parse({"objective": {"name": objective}, "train": {"device": "cuda"}})
    trainer = Trainer.start(data, Run(folder), config)
    trainer.network.train()
    torch.cuda.reset_peak_memory_stats()
    times, positions = [], []
    for number, batch in enumerate(trainer.windows.shuffled(256, seed=0, epoch=0)):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        trainer.step(batch, number)
        end.record()
        torch.cuda.synchronize()
        if number >= WARM:
            times.append(begin.elapsed_time(end))
            positions.append(len(batch.scored))
        if number == WARM + STEPS:
            break
    return statistics.median(times), torch.cuda.max_memory_allocated() / 2**30, statistics.mean(positions)


def main() -> None:
    """Measure every objective."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=48_255)
    parser.add_argument("--mean-length", type=float, default=5.8)
    given = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {given.items:,} items")
    with tempfile.TemporaryDirectory() as folder:
        data = write_data(Path(folder) / "data", items=given.items, mean_length=given.mean_length)
        for objective in OBJECTIVES:
            milliseconds, memory, positions = measure(data, objective, Path(folder) / "run")
            print(f"{objective:16} {milliseconds:7.2f} ms/step {memory:6.2f} GiB peak, {positions:.0f} positions")


if __name__ == "__main__":
    main()
