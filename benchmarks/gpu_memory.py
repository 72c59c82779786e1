"""Memory of small runs on a GPU: what a run from log to figures has in use and reserves, by part.

    python benchmarks/gpu_memory.py [--sequences 3000,16000] [--items 2000,48255] [--objectives mle,lpi_rl] [--epochs 2]

Each run is a process of its own: its peaks are its own. `used` is the peak of torch's tensors, `reserved` the peak of
torch's cache (with the pools of captured graphs), `device` what the process holds on the device in the end: reserved,
plus CUDA's context and loaded kernels.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from gpu_step import write_data

from localpolicy.data.store import Prepared
from localpolicy.measure.evaluate import evaluate
from localpolicy.training.train import train

GIB = 2**30


def part(name: str, before: int) -> None:
    """Print the peaks since the last part."""
    torch.cuda.synchronize()
    free, _ = torch.cuda.mem_get_info()
    used, reserved = torch.cuda.max_memory_allocated() / GIB, torch.cuda.max_memory_reserved() / GIB
    held = torch.cuda.memory_reserved() / GIB
    print(f"  {name:10} {used:7.2f} {reserved:9.2f} {held:6.2f} {(before - free) / GIB:7.2f}", flush=True)
    torch.cuda.reset_peak_memory_stats()


def one_run(data: Prepared, folder: Path, objective: str, epochs: int) -> None:
    """Train and measure."""
    before, _ = torch.cuda.mem_get_info()
    run = train(data, objective, out=folder / "run", device="cuda", epochs=epochs)
    part("training", before)
    evaluate(run, device="cuda")
    part("measuring", before)


def main() -> None:
    """A table for each shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", default="3000,16000")
    parser.add_argument("--items", default="2000,48255")
    parser.add_argument("--objectives", default="mle,lpi_rl")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.data is not None:
        one_run(Prepared(given.data), given.data.parent / given.objectives, given.objectives, given.epochs)
        return
    print(f"  {'GiB':10} {'used':>7} {'reserved':>9} {'kept':>6} {'device':>7}")
    for sequences in map(int, given.sequences.split(",")):
        for items in map(int, given.items.split(",")):
            with tempfile.TemporaryDirectory() as name:
                data = write_data(Path(name) / "data", items=items, mean_length=5.8, sequences=sequences, tested=400)
                for objective in given.objectives.split(","):
                    print(f"{sequences:,} sequences, {items:,} items, {objective}", flush=True)
                    command = [sys.executable, __file__, "--data", str(data.path), "--objectives", objective]
                    subprocess.run([*command, "--epochs", str(given.epochs)], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
