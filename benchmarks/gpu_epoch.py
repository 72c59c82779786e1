"""Epochs of training with validation, and evaluation against a reference, on a GPU at the size of YooChoose.

    python benchmarks/gpu_epoch.py [--sequences 3540000] [--epochs 1] [--precision float32] [--objective lpi_rl]

Prints seconds per epoch (training and validation apart), and the seconds of ranking and JS over the validation split.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
from gpu_step import setting, write_data

from localpolicy.data.batches import Windows
from localpolicy.evaluation.score import score
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.training import loop
from localpolicy.training.loop import Trainer, train


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
    spent = {"validation": 0.0}
    validate = loop.validate

    def timed(*arguments, **options):  # type: ignore[no-untyped-def]
        torch.cuda.synchronize()
        began = time.perf_counter()
        found = validate(*arguments, **options)
        spent["validation"] += time.perf_counter() - began
        return found

    loop.validate = timed
    with tempfile.TemporaryDirectory() as folder:
        data = write_data(Path(folder) / "data", items=given.items, mean_length=5.8, sequences=given.sequences)
        settings = {"device": "cuda", "epochs": given.epochs, "precision": given.precision}
        config = Config.parse({"objective": setting(given.objective), "train": settings})
        began = time.perf_counter()
        run = train(data, out=Path(folder) / "run", config=config)
        taken = time.perf_counter() - began
        steps = run.manifest["steps"]
        print(f"{given.objective}, {given.precision}, {given.sequences:,} sequences, {steps} steps: {taken:.1f} s; "
              f"validation {spent['validation'] / given.epochs:.2f} s per epoch; the rest "
              f"{(taken - spent['validation']) / given.epochs:.2f} s per epoch, "
              f"{(taken - spent['validation']) / steps * 1e3:.3f} ms per step; captured: "
              f"{run.manifest['steps_captured']}", flush=True)  # fmt: skip
        trainer = Trainer.start(data, Run(Path(folder) / "other"), config)
        windows = Windows(data, "validation", config.data, device="cuda")
        torch.cuda.synchronize()
        began = time.perf_counter()
        policy = run.policy()
        policy.network.to("cuda")
        scores = score(
            policy, windows, events=data.events, references={"other": trainer.policy()}, min_history=0, batch_size=8192
        )
        taken = time.perf_counter() - began
        print(f"ranking, likelihood, entropy and JS against one reference: {len(scores):,} positions in {taken:.2f} s")


if __name__ == "__main__":
    main()
