"""Every step from a log to lists, with the `lpi` of the interpreter that runs this: does an installation work at all?

    python tools/smoke.py

Nothing of the checkout is imported, so that it serves for a wheel in an environment of its own, and for the lowest
versions of all dependencies.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

SMALL = ("--device", "cpu", "--epochs", "1", "--set", "model.width=8", "--set", "data.length=10")
WALK = (
    ("--version",),
    ("doctor",),
    ("simulate", "store", "--sequences", "400", "--items", "30", "--out", "world"),
    ("prepare", "events", "world/events.parquet", "--out", "data"),
    ("train", "data", "--objective", "mle", *SMALL, "--out", "mle"),
    ("train", "data", "--objective", "lpi_rl", *SMALL, "--out", "lpi"),
    ("evaluate", "lpi", "--json", "figures.json"),
    ("compare", "mle", "lpi", "--json", "comparison.json"),
    ("recommend", "lpi", "--histories", "histories.jsonl", "--out", "lists.jsonl", "-k", "3"),
    ("verify", "data"),
    ("verify", "lpi"),
)


def walk(folder: Path, *, environment: dict[str, str] | None = None) -> None:
    """Run every step; stop at the first that fails."""
    (folder / "histories.jsonl").write_text('{"history": []}\n')
    for words in WALK:
        print("lpi", *words, flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "localpolicy", *words], cwd=folder, capture_output=True, text=True, check=False,
            env=environment,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    for name in ("figures.json", "comparison.json", "lists.jsonl"):
        if not (folder / name).stat().st_size:
            sys.exit(f"{name} is empty")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        walk(Path(place), environment={**os.environ, "OMP_NUM_THREADS": "1"})
    print("all steps passed")
