"""Runs `lpi` commands in child processes that are killed with SIGKILL, one after another, then lets each end.

    python killing_verbs.py FOLDER < WORK

WORK is JSON: for each verb its words and moments. In words, `{out}` stands for FOLDER/VERB/whole, where the command
runs unbroken, and then for FOLDER/VERB/broken. A moment is `disk:SHARE` (just before a file or folder gets its name, is
flushed or removed: SHARE of the way through all such calls of the unbroken run) or `time:SHARE` (of its time). torch is
imported once. Prints as JSON how the children of each verb ended.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

# What an optimiser would import: once here, instead of for seconds in every child.
import torch._dynamo  # noqa: F401

import localpolicy.training.train  # noqa: F401
from localpolicy.cli.main import main

CALLS = [(os, "replace"), (os, "fsync"), (os, "unlink"), (shutil, "rmtree")]


def watch(told: int, dies_at: int | None) -> None:
    """Tell of each such call through a pipe, and die before the one with this number."""
    seen = 0

    def watched(function):
        def call(*given, **named):
            nonlocal seen
            seen += 1
            if seen == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            os.write(told, b"!")
            return function(*given, **named)

        return call

    for module, name in CALLS:
        setattr(module, name, watched(getattr(module, name)))


def run(words: list[str], *, dies_at: int | None = None, after: float | None = None) -> tuple[str, int]:
    """How the command ended, and how many calls it made."""
    heard, told = os.pipe()
    os.set_blocking(told, False)  # a pipe holds 65,536 calls
    child = os.fork()
    if child == 0:
        os.close(heard)
        code = 1
        try:
            sys.argv = ["lpi", *words]
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            watch(told, dies_at)
            main()
            code = 0
        except SystemExit as left:
            code = left.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(told)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with os.fdopen(heard, "rb") as pipe:
        calls = len(pipe.read())
    if os.WIFSIGNALED(status):
        return "killed", calls
    return ("finished" if os.WEXITSTATUS(status) == 0 else f"failed with {os.WEXITSTATUS(status)}"), calls


def killed(folder: Path, words: list[str], moments: list[str]) -> list[str]:
    """How the unbroken run ended, each that was killed, and the last, which was let be."""

    def at(name: str) -> list[str]:
        return [word.replace("{out}", str(folder / name)) for word in words]

    began = time.monotonic()
    ended, calls = run(at("whole"))
    pace = time.monotonic() - began
    endings = [ended]
    for moment in moments:
        kind, _, share = moment.partition(":")
        if kind == "disk":
            ended, _ = run(at("broken"), dies_at=max(1, round(float(share) * calls)))
        else:
            ended, _ = run(at("broken"), after=float(share) * pace)
        endings.append(ended)
    return [*endings, run(at("broken"))[0]]


if __name__ == "__main__":
    place = Path(sys.argv[1])
    print(json.dumps({verb: killed(place / verb, *work) for verb, work in json.load(sys.stdin).items()}))
