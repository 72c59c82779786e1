"""Epochs of training with validation, and evaluation against a reference, on a GPU at the size of YooChoose.

    python benchmarks/gpu_epoch.py [--sequences 3540000] [--epochs 1] [--precision float32] [--objective lpi_rl]

Prints seconds per epoch (training and validation apart), and the seconds of ranking and JS over the validation split,
with lists of 1 and of 20 items.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from gpu_step import setting, write_data

from localpolicy.data.batches import Windows
from localpolicy.measure.score import score
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.training import trainer as training
from localpolicy.training.setup import resolve
from localpolicy.training.train import train
from localpolicy.training.trainer import Trainer


def main() -> None:
    """Train, validate, evaluate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=3_540_000)
    parser.add_argument("--items", type=int, default=48_255)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--objective", default="lpi_rl")
    parser.add_argument("--precision", default="float32")
    given = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    marks: list[float] = []  # begin and end of each validation
    validate = vars(training)["validate"]

    def timed(*arguments: Any, **options: Any) -> dict[str, float]:
        torch.cuda.synchronize()
        marks.append(time.perf_counter())
        figures: dict[str, float] = validate(*arguments, **options)
        marks.append(time.perf_counter())
        return figures

    vars(training)["validate"] = timed
    with tempfile.TemporaryDirectory() as folder:
        data = write_data(Path(folder) / "data", items=given.items, mean_length=5.8, sequences=given.sequences)
        settings = {"device": "cuda", "epochs": given.epochs, "precision": given.precision}
        shape = {"width": 64, "blocks": 1, "heads": 1, "tied": True}  # the defaults would follow the size of the data
        config = Config.parse({"objective": setting(given.objective), "train": settings, "model": shape})
        began = time.perf_counter()
        run = train(data, out=Path(folder) / "run", config=config)
        taken = time.perf_counter() - began
        steps = run.manifest["steps"] // given.epochs
        print(f"{given.objective}, {given.precision}, {given.sequences:,} sequences, {steps} steps per epoch: "
              f"{taken:.1f} s in all; captured: {run.manifest['steps_captured']}", flush=True)  # fmt: skip
        ends = [began, *marks[1::2]]
        for number, (start, end) in enumerate(zip(marks[::2], marks[1::2], strict=True)):
            spent = start - ends[number]
            print(f"epoch {number + 1}: steps {spent:.2f} s ({spent / steps * 1e3:.3f} ms each), "
                  f"validation {end - start:.2f} s", flush=True)  # fmt: skip
        trainer = Trainer.start(data, Run(Path(folder) / "other"), resolve(config, data))
        windows = Windows(data, "validation", config.data, device="cuda")
        policy = run.policy()
        policy.network.to("cuda")
        for lists in (1, 20):
            for attempt in ("first, with compilation", "second"):
                torch.cuda.synchronize()
                began = time.perf_counter()
                scores = score(
                    policy, windows, events=data.events, references={"other": trainer.policy()}, min_history=0,
                    batch_size=8192, lists=lists,
                )  # fmt: skip
                taken = time.perf_counter() - began
                print(f"ranking, likelihood, entropy, lists of {lists} and JS against a reference ({attempt}): "
                      f"{len(scores):,} positions in {taken:.2f} s", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
