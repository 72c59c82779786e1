"""Runs `lpi` commands in child processes that are killed, run two at once, or run on a disk that is full.

    python trying_verbs.py FOLDER < WORK

WORK is JSON: for each verb its words, the files to copy first, and what is done to it. In words, `{out}` stands for a
folder: FOLDER/VERB/whole, where the command runs unbroken, then FOLDER/VERB/broken, /twice or /full. What is done:

    disk:SHARE    killed just before a file or folder gets its name, is flushed or removed: SHARE of the way through all
                  such calls of the unbroken run
    time:SHARE    killed after SHARE of the unbroken run's time
    pair:SHARE    a second one starts after SHARE of that time, in the same folder
    full:SHARE    on a file system of its own (tmpfs) that has room for SHARE of what the unbroken run left

torch is imported once. Prints as JSON how the children of each verb ended: [code or "killed", the end of stderr].
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path

# What an optimiser and the verbs would import: once here, instead of for seconds in every child.
import scipy.stats  # noqa: F401
import torch._dynamo  # noqa: F401

import localpolicy.study.sweep
import localpolicy.training.train  # noqa: F401
from localpolicy.cli.main import main

with suppress(ImportError):  # it is in an extra
    import altair  # noqa: F401

CALLS = [(os, "replace"), (os, "fsync"), (os, "unlink"), (shutil, "rmtree")]
PAGE = 4096  # bytes: what a tmpfs counts
PATIENCE = 900  # seconds of the clock for one child: a hang is a failure
Ending = tuple[int | str, str]


class Child:
    """A command in a process of its own."""

    def __init__(self, words: list[str], *, dies_at: int | None = None) -> None:
        self.heard, told = os.pipe()
        os.set_blocking(told, False)  # a pipe holds 65,536 calls
        self.said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the child
        self.process = os.fork()
        if self.process == 0:
            os.close(self.heard)
            _become(words, told, dies_at, self.said.fileno())
        os.close(told)

    def kill(self) -> None:
        os.kill(self.process, signal.SIGKILL)

    def ended(self) -> tuple[Ending, int]:
        """Exit code or "killed", with the last message; and the number of system calls."""
        late = time.monotonic() + PATIENCE
        done = 0
        while not done:
            done, status = os.waitpid(self.process, os.WNOHANG)
            time.sleep(0 if done else 0.01)
            if not done and time.monotonic() > late:
                self.kill()
                os.waitpid(self.process, 0)
                return ("hangs", ""), 0
        with os.fdopen(self.heard, "rb") as pipe:
            calls = len(pipe.read())
        self.said.seek(0)
        said = self.said.read().decode(errors="replace")[-3000:]
        self.said.close()
        return ("killed" if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), said), calls


def _become(words: list[str], told: int, dies_at: int | None, said: int) -> None:
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(said, 2)
        sys.argv = ["lpi", *words]
        _watch(told, dies_at)
        main()
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1 if left.code else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _watch(told: int, dies_at: int | None) -> None:
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


def tried(folder: Path, words: list[str], copies: dict[str, str], moments: list[str]) -> dict[str, list[Ending]]:
    """How the unbroken run ended, each that was disturbed, and the last in each folder, which was let be."""

    def at(name: str) -> list[str]:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for source, target in copies.items():
            if not (folder / name / target).exists():
                copy = shutil.copytree if Path(source).is_dir() else shutil.copy
                copy(source, folder / name / target)
        return [word.replace("{out}", str(folder / name)) for word in words]

    began = time.monotonic()
    ending, calls = Child(at("whole")).ended()
    pace = time.monotonic() - began
    endings: dict[str, list[Ending]] = {"whole": [ending], "broken": [], "pair": [], "full": []}
    for number, moment in enumerate(moments):
        kind, _, text = moment.partition(":")
        share = float(text)
        if kind == "disk":
            endings["broken"].append(Child(at("broken"), dies_at=max(1, round(share * calls))).ended()[0])
        elif kind == "time":
            child = Child(at("broken"))
            time.sleep(share * pace)
            child.kill()
            endings["broken"].append(child.ended()[0])
        elif kind == "pair":
            one = Child(at(f"pair-{number}"))
            time.sleep(share * pace)
            other = Child(at(f"pair-{number}"))
            endings["pair"] += [one.ended()[0], other.ended()[0]]
            if all(code != ending[0] for code, _ in endings["pair"][-2:]):
                endings["pair"].append(Child(at(f"pair-{number}")).ended()[0])
        else:
            endings["full"] += _on_full_disk(folder, number, share, at)
    if endings["broken"]:
        endings["broken"].append(Child(at("broken")).ended()[0])
    return endings


def _on_full_disk(folder: Path, number: int, share: float, at) -> list[Ending]:
    """The ending on a file system that is too small, and the next with room for all."""
    place = folder / f"full-{number}"
    place.mkdir(parents=True)
    filler = place / "filler"  # a tmpfs of no pages at all would be one without a limit
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512m", "tmpfs", place], check=True)
    try:
        words = at(place.name)  # with its copies
        filler.write_bytes(bytes(PAGE))
        size = PAGE * (_pages(place) + round(share * _pages(folder / "whole")))
        subprocess.run(["mount", "-o", f"remount,size={size}", place], check=True)
        first = Child(words).ended()[0]
        subprocess.run(["mount", "-o", "remount,size=512m", place], check=True)
        second = Child(words).ended()[0]
        filler.unlink()
        shutil.copytree(place, folder / f"after-full-{number}")
    finally:
        subprocess.run(["umount", place], check=True)
    return [first, second]


def _pages(folder: Path) -> int:
    return sum(-(-file.stat().st_size // PAGE) for file in folder.rglob("*") if file.is_file())


if __name__ == "__main__":
    place = Path(sys.argv[1])
    print(json.dumps({verb: tried(place / verb, *work) for verb, work in json.load(sys.stdin).items()}))
