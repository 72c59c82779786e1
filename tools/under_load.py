"""Run a command three times next to two busy loops, and print how each run ended and how long it took.

python tools/under_load.py COMMAND...
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

LOOPS, TIMES = 2, 3
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"  # no loop outlives who started it


@contextmanager
def load(loops: int = LOOPS) -> Iterator[None]:
    """Context manager: start processes that do nothing but compute."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(loops)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def main() -> None:
    failed = 0
    with load():
        for number in range(1, TIMES + 1):
            began = time.monotonic()
            code = subprocess.run(sys.argv[1:], check=False).returncode
            failed += code != 0
            print(f"run {number} of {TIMES}: exit code {code}, {time.monotonic() - began:.0f} s", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
