"""Full ranking and JS divergence of a large catalogue: rows formed once in blocks, compared with other ways.

    python benchmarks/evaluate.py [--items 17000] [--positions 100000] [--threads 2]

Each way runs in its own process, so that its peak memory is its own. `statistics` is what evaluation does; `dense`
forms [positions, items] per batch of 256 sequences for every question, as a direct implementation would; `chunked` asks
the training backend one question at a time. All give rank, likelihood, first item, entropy, JS and KL. A smaller run of
`statistics` shows that time is linear in positions; the last lines train and evaluate one epoch as the paper does.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

WIDTH, BATCH = 64, 1280  # positions of 256 sequences of 5


def measure(way: str, items: int, positions: int) -> tuple[float, float]:
    """Seconds that `way` takes: of the clock, and of the processor, which says more on a shared machine."""
    from localpolicy.catalogue import chunked, dense
    from localpolicy.catalogue.statistics import Scratch, catalogue_statistics
    from localpolicy.logits import Head, LinearLogits

    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(items, WIDTH, generator=generator) * 0.2
    bias = torch.randn(items, generator=generator)
    other = Head(weight + 0.05 * torch.randn(items, WIDTH, generator=generator), bias)
    taken = torch.randint(items, (positions,), generator=generator)
    hidden = torch.randn(positions, WIDTH, generator=generator)
    scratch = Scratch()
    began, worked = time.perf_counter(), time.process_time()
    with torch.no_grad():
        for start in range(0, positions, BATCH):
            part, item = hidden[start : start + BATCH], taken[start : start + BATCH]
            policy, reference = LinearLogits(part, Head(weight, bias)), LinearLogits(part, other)
            if way == "statistics":
                catalogue_statistics(policy, item, references={"other": reference}, scratch=scratch)
            else:
                statistics = {"dense": dense, "chunked": chunked}[way]
                statistics.rank(policy, item)
                statistics.log_prob(policy, item)
                statistics.maximum(policy)
                statistics.entropy(policy)
                statistics.divergence(policy, reference)
    return time.perf_counter() - began, time.process_time() - worked


def share_of_training(items: int) -> tuple[float, float]:
    """Seconds of one epoch of `lpi_rl` at the paper's settings, and of evaluating a tenth as many sequences with JS."""
    from localpolicy.data.store import Prepared
    from localpolicy.data.store_writer import writing
    from localpolicy.measure.candidates import Candidate
    from localpolicy.measure.divergence import Reference
    from localpolicy.measure.evaluate import measure
    from localpolicy.measure.metrics import EvaluateConfig
    from localpolicy.runs.config import Config
    from localpolicy.runs.run import Run
    from localpolicy.training.setup import resolve
    from localpolicy.training.trainer import Trainer

    rng = np.random.default_rng(0)
    share = 1 / (np.arange(items) + 20.0)
    with tempfile.TemporaryDirectory() as folder:
        with writing(
            Path(folder) / "data", kind="interactions", events=["click", "purchase"],
            rewards={"click": 0.2, "purchase": 1.0},
        ) as store:  # fmt: skip
            for split, count in (("train", 4000), ("validation", 500), ("test", 500)):
                lengths = np.minimum(2 + rng.geometric(0.26, count), 20)
                event = (rng.random(lengths.sum()) < 0.05).astype(np.uint8)
                item = rng.choice(items, len(event), p=share / share.sum())
                arrays = {"item": item, "event": event, "reward": np.where(event, 1.0, 0.2)}
                store.splits[split].append(lengths, arrays)
            store.write_items(np.arange(items), np.ones(items, np.int64))
        data = Prepared(Path(folder) / "data")
        weighted = Config.parse({"objective": {"name": "lpi_rl_weighted"}})
        trainer = Trainer.start(data, Run(Path(folder) / "run"), resolve(weighted, data))
        trainer.network.train()
        began = time.perf_counter()
        for number, batch in enumerate(trainer.windows.shuffled(256, seed=0, epoch=0)):
            trainer.step(batch, number)
        trained = time.perf_counter() - began
        policy = trainer.policy()
        began = time.perf_counter()
        mine, head = (
            Candidate(name, each, Reference(name, name))
            for name, each in (("policy", policy), ("head", policy.logging()))
        )
        measure(mine, data, [head], window=trainer.config.data, config=EvaluateConfig(lists=1))
        return trained, time.perf_counter() - began


def main() -> None:
    """Run every way in its own process, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=17_000)
    parser.add_argument("--positions", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--way", help="run one way in this process")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.way:
        if options.way == "training":
            trained, evaluated = share_of_training(options.items)
            print(f"one epoch of lpi_rl {trained:.1f} s, evaluation of an eighth as many sequences {evaluated:.1f} s")
            return
        seconds, worked = measure(options.way, options.items, options.positions)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        what = f"{options.way:8s} {options.positions:9,d} positions"
        print(f"{what}  {seconds:8.1f} s ({worked:.1f} s of processor)  {peak:5.2f} GiB")
        return
    ways = [("statistics", options.positions), ("statistics", options.positions // 4), ("chunked", options.positions),
            ("dense", options.positions), ("training", options.positions)]  # fmt: skip
    for way, positions in ways:
        command = [sys.executable, __file__, "--way", way, "--items", str(options.items), "--positions", str(positions)]
        subprocess.run([*command, "--threads", str(options.threads)], check=True)


if __name__ == "__main__":
    main()
