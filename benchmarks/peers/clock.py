"""What every candidate shares: the sequences, a clock around training steps, and a record of what was seen.

It needs numpy and torch alone, so that each peer's own virtual environment can run it. Memory is read from Linux.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Settings:
    """One training, in words that all candidates understand."""

    items: int = 17_376
    batch: int = 256
    length: int = 20
    width: int = 64
    blocks: int = 1
    heads: int = 1
    dropout: float = 0.1
    rate: float = 1e-3
    threads: int = 2
    seed: int = 0
    device: str = "cpu"
    warm: int = 5  # steps before the clock starts
    epochs: int = 1  # of a peer
    our_epochs: int = 3  # ours takes a fraction of the time: more steps, so that its figure is as steady


@dataclass
class Clock:
    """Times from the end of step `warm` to the end of the last step.

    So imports, data preparation, building the model and the first steps (first allocations, thread pools) are left
    out, and so is what comes after the last step. Everything the fit loop does between two steps is in: fetching and
    collating a batch, forward, backward, the optimiser, its own book-keeping.
    """

    warm: int
    steps: int = 0
    began: float = 0.0
    ended: float = 0.0
    began_cpu: float = 0.0
    ended_cpu: float = 0.0
    sequences: int = 0
    positions: int = 0
    scores: tuple[int, ...] = ()  # shape of the scores that the loss reads, as seen at the first step

    def tick(self, sequences: int, positions: int) -> None:
        """Count a finished step on `sequences` sequences with `positions` targets."""
        now, cpu = time.perf_counter(), time.process_time()
        self.steps += 1
        if self.steps == self.warm:
            self.began, self.began_cpu = now, cpu
        elif self.steps > self.warm:
            self.ended, self.ended_cpu = now, cpu
            self.sequences += sequences
            self.positions += positions

    def look(self, module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
        """A forward hook: remember the shape of the scores."""
        self.scores = self.scores or tuple(output.shape)


def memory(field: str) -> int:
    """Bytes resident: VmRSS now, or VmHWM at the peak.

    VmHWM is what getrusage calls ru_maxrss, except that the latter starts at the size of the process that forked us.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {field}: this benchmark reads memory from Linux.")


def accelerator(settings: Settings) -> str:
    """Lightning's name of the device."""
    return "gpu" if settings.device == "cuda" else "cpu"


def two_cores(threads: int) -> None:
    """Pin this process to the same few cores for every candidate, with as many threads of torch."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    torch.set_num_threads(threads)


def read(folder: Path) -> tuple[Settings, dict[str, np.ndarray]]:
    """Settings, and offsets [S+1], item [E] and event [E]: sequence s is the slice offsets[s]:offsets[s+1]."""
    settings = Settings(**json.loads((folder / "settings.json").read_text()))
    return settings, {name: np.load(folder / f"{name}.npy") for name in ("offsets", "item", "event")}


def write(folder: Path, settings: Settings, arrays: dict[str, np.ndarray]) -> None:
    """Write a folder for `read`."""
    (folder / "settings.json").write_text(json.dumps(asdict(settings)))
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


def report(clock: Clock, out: Path, **facts: Any) -> None:
    """Write what was measured."""
    if clock.steps <= clock.warm:
        sys.exit(f"only {clock.steps} steps, of which {clock.warm} are warm-up: use more sequences.")
    seconds = clock.ended - clock.began
    result = {
        "sequences_per_second": clock.sequences / seconds,
        "positions_per_second": clock.positions / seconds,
        "positions_per_sequence": clock.positions / clock.sequences,
        "steps_timed": clock.steps - clock.warm,
        "seconds_timed": seconds,
        # Far below the number of threads: something else was running, and the figures are not to be trusted.
        "cores_busy": (clock.ended_cpu - clock.began_cpu) / seconds,
        "peak_bytes": memory("VmHWM"),
        "scores": clock.scores,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        **facts,
    }
    out.write_text(json.dumps(result))
