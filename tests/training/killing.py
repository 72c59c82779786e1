"""Trains a run in child processes that are killed with SIGKILL, one after another, then lets it end.

    python killing.py DATA OUT SETTINGS MOMENT...

SETTINGS is JSON. A MOMENT is `after:STEPS` (this number of steps after it began or resumed, such as 3.7, by the
processor's time in an unbroken run: how busy the machine is moves no moment), `replace:N` (just before a file gets its
name for the N-th time: it is written, and not yet there), or `half:N` (in the midst of writing tensors for the N-th
time). First the run is made unbroken, as OUT/whole; then killed and resumed, as OUT/broken. torch is imported once.
Prints as JSON what each kill left behind.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from pathlib import Path

# What an optimiser or a board would import: once here, instead of for seconds in every child.
import torch._dynamo
import torch.utils.tensorboard  # noqa: F401

from localpolicy.model import weights
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.training.train import train
from localpolicy.training.trainer import Trainer


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def countdown(number: int):
    """Whether this is the call with that number."""
    left = number

    def counted() -> bool:
        nonlocal left
        left -= 1
        return left == 0

    return counted


def die_at(kind: str, number: int) -> None:
    """Arrange for this process's end."""
    now = countdown(number)
    replace, save = os.replace, weights.write_tensors

    def replaces(source, target):
        if kind == "replace" and now():
            die()
        replace(source, target)

    def saves(tensors, path):
        save(tensors, path)
        if kind == "half" and now():
            os.truncate(path, os.path.getsize(path) // 2)
            die()

    os.replace, weights.write_tensors = replaces, saves


def die_after(steps: float, pace: float) -> None:
    """Arrange for this process's end: the system ends it, wherever it is then."""
    rest, whole = math.modf(steps)
    now, step = countdown(int(whole)), Trainer.step

    def counts(self, batch, number, **options):
        if now():
            signal.setitimer(signal.ITIMER_PROF, max(rest * pace, 1e-6))  # nobody handles SIGPROF: it ends a process
        return step(self, batch, number, **options)

    Trainer.step = counts


def run_once(data: str, out: Path, config: Config, moment: str | None = None, pace: float = 0.0) -> tuple[str, float]:
    """Start or resume a run, kill it, and return the state it left and the processor's busy seconds."""
    kind, _, number = (moment or "never").partition(":")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if kind == "after":
                die_after(float(number), pace)
            if kind in ("replace", "half"):
                die_at(kind, int(number))
            train(data, out=out, config=config, resume=True)
            code = 0
        finally:
            os._exit(code)
    _, status, used = os.wait4(child, 0)
    busy = used.ru_utime + used.ru_stime
    if os.WIFEXITED(status):
        return ("finished" if os.WEXITSTATUS(status) == 0 else "failed"), busy
    return ("partial file" if any(out.rglob("*.partial-*")) else "whole files"), busy


def main() -> None:
    data, folder, settings, *moments = sys.argv[1:]
    config = Config.parse(json.loads(settings))
    ended, busy = run_once(data, Path(folder, "whole"), config)
    assert ended == "finished"
    pace = busy / Run(Path(folder, "whole")).manifest["steps"]
    print(json.dumps([run_once(data, Path(folder, "broken"), config, moment, pace)[0] for moment in [*moments, None]]))


if __name__ == "__main__":
    main()
