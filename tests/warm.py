"""`python WORDS` in a process of its own, forked from one that has imported torch.

A start of Python with torch and an optimiser costs three seconds of the processor, and a test that starts it ten times
waits for half a minute. Nothing of ours is imported before the fork: a program meets this package as in a shell.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path


def python(*words: object, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a script with arguments, or -m and a module with its own; return its exit code and output."""
    command = [str(word) for word in words]
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder) / name for name in ("stdout", "stderr")]
        asked = {"words": command, "cwd": str(cwd), "env": dict(os.environ if env is None else env)}
        forker = _forker()
        forker.stdin.write(json.dumps({**asked, "said": [str(path) for path in said]}) + "\n")
        forker.stdin.flush()
        code = int(forker.stdout.readline())
        return subprocess.CompletedProcess(command, code, *(path.read_text() for path in said))


@cache
def _forker() -> subprocess.Popen[str]:
    """The forked process ends with this one, when its input is closed."""
    forker = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(forker.communicate)
    return forker


def _become(words: list[str], cwd: str, env: dict[str, str], said: list[str]) -> None:
    for number, path in enumerate([os.devnull, *said]):
        opened = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    module = words[0] == "-m"
    first = cwd if module else str(Path(words[0]).parent)
    sys.path[:] = [first, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep)), *sys.path[1:]]
    sys.argv = words[module:]
    if module:
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


def _fork() -> None:
    import torch._dynamo  # noqa: F401 - what an optimiser imports

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _become(**json.loads(line))
            return  # the end of the program: an exception or SystemExit ends it on its way here
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _fork()
