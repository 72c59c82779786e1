"""Train in two processes again and again under load from busy loops, with copies and shards of the catalogue.

    python tools/torchrun_trials.py TIMES [LOOPS]

LOOPS is 2 by default; 0 on a machine that is busy already.

Tells how many ended with another exit code than 0 (an abort at the interpreter's end is -6 or 1); exit code 1 if any.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from under_load import LOOPS, load

LPI = (sys.executable, "-m", "localpolicy")
WAYS = {"copies": (), "shards": ("--shard-catalogue",)}
WORLD = ("simulate", "bandit", "--sequences", "300", "--items", "20", "--prepared", "--out")
SMALL = (
    "--objective",
    "lpi_rl",
    "--epochs",
    "1",
    "--device",
    "cpu",
    "--set",
    "model.width=8",
    "--set",
    "data.length=10",
)


def main() -> None:
    times = int(sys.argv[1])
    loops = int(sys.argv[2]) if len(sys.argv) > 2 else LOOPS
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    failed = dict.fromkeys(WAYS, 0)
    with tempfile.TemporaryDirectory() as place, load(loops):
        data = Path(place, "data")
        subprocess.run([*LPI, *WORLD, data], check=True, stdout=subprocess.DEVNULL)
        for number in range(1, times + 1):
            for way, words in WAYS.items():
                out = Path(place, way, str(number))
                command = [*LPI, "train", str(data), *SMALL, "--processes", "2", *words, "--out", str(out)]
                done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
                failed[way] += done.returncode != 0
                if done.returncode:
                    print(done.stderr[-2000:])
            if number % 10 == 0 or number == times:
                print("; ".join(f"{way}: {bad} of {number} failed" for way, bad in failed.items()), flush=True)
    sys.exit(any(failed.values()))


if __name__ == "__main__":
    main()
