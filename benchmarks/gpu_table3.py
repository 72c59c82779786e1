"""Table 3 of the paper at the size of RetailRocket: the whole grid, three seeds, several runs on one GPU at a time.

    python benchmarks/gpu_table3.py [--processes 12] [--minutes 8] [--precision bf16] [--patience 2] [--mps]

156,418 training sequences over 70,852 items, 20 epochs (fewer with --patience), 35 runs with the two references, each
validated every epoch and evaluated at the end. Prints how many runs and steps were done in the time given, and what all
would take at that rate. The data is random: for figures that mean something, simulate a store (docs/evidence/table3).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpu_runs import mps
from gpu_step import write_data

TRAINING, HELD_OUT, ITEMS, LENGTH = 156_418, 19_552, 70_852, 6.3
RUNS, EPOCHS, BATCH = 35, 20, 256


def main() -> None:
    """Start, wait, count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--patience", default="null", help="epochs without a better one before a run ends")
    parser.add_argument("--mps", action="store_true", help="under the MPS daemon, where it can be started")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = write_data(folder / "data", items=ITEMS, mean_length=LENGTH, sequences=TRAINING, tested=HELD_OUT)
        shared = given.mps and mps(folder)
        out = folder / "table3"
        command = [sys.executable, "-m", "localpolicy", "paper", "table3", "--data", str(data.path), "--out", str(out),
                   "--device", "cuda", "--processes", str(given.processes), 
                   "--minutes", str(given.minutes), "--set", f"train.precision={given.precision}",
                   "--set", f"train.patience={given.patience}"]  # fmt: skip
        began = time.perf_counter()
        with (folder / "output").open("w") as log:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        taken = time.perf_counter() - began
        print("\n".join((folder / "output").read_text().splitlines()[-6:]))
        epochs = finished = 0
        for path in out.rglob("metrics.jsonl"):
            epochs += len(path.read_text().splitlines())
            finished += (path.parent / "manifest.json").exists()
        steps = epochs * -(-TRAINING // BATCH)
        share = epochs / (RUNS * EPOCHS)
        print(json.dumps({
            "exit code": code, "seconds": round(taken, 1), "processes": given.processes,
            "MPS": shared,
            "runs finished": finished, "epochs": epochs, "steps per second": round(steps / taken),
            "share of the grid": round(share, 3), "whole grid at this rate, minutes": round(taken / share / 60, 2),
        }))  # fmt: skip
        if shared:
            subprocess.run(["nvidia-cuda-mps-control"], input="quit", text=True, check=False)


if __name__ == "__main__":
    main()
