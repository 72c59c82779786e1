"""Trains in two processes again and again beside two busy loops, with copies of the catalogue and with shards of it.

    python tools/torchrun_trials.py TIMES

Tells how many ended with another exit code than 0 (an abort at the interpreter's end is -6 or 1); exit code 1 if any.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from beside_load import load

LPI = (sys.executable, "-m", "localpolicy")
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
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    failed = 0
    with tempfile.TemporaryDirectory() as place, load():
        data = Path(place, "data")
        subprocess.run([*LPI, *WORLD, data], check=True, stdout=subprocess.DEVNULL)
        for way, words in (("copies", ()), ("shards", ("--shard-catalogue",))):
            codes = []
            for number in range(times):
                out = Path(place, way, str(number))
                command = [*LPI, "train", data, *SMALL, "--processes", "2", *words, "--out", out]
                done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
                codes.append(done.returncode)
                if done.returncode:
                    print(done.stderr[-2000:])
            bad = sum(code != 0 for code in codes)
            failed += bad
            print(f"{way}: {bad} of {times} failed", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
