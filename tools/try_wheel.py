"""Install a wheel and each of its extras into environments of their own, and try what the README tells newcomers.

    python tools/try_wheel.py dist/localpolicy-*.whl [--extra report --extra serve …]

One environment has the package alone, as `pip install localpolicy` leaves it, and walks from a log to lists
(tools/smoke.py). Each extra has an empty one that finds the first one's packages, so that torch is installed once: pip
adds what the extra declares, and everything of it must be importable. With the extra `report`, which the README
installs, the README's Python block and `lpi demo --quick` are run.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
NOT_FOR_USERS = {"dev", "check", "docs"}
EXTRAS = sorted(PYPROJECT["project"]["optional-dependencies"].keys() - NOT_FOR_USERS)
FOUND = """
import importlib.util, sys
from localpolicy.serving.doctor import doctor
details = {name: (state, text) for name, state, text in doctor().rows}
sys.exit(0 if details["extra: " + sys.argv[1]][0] == "found" else str(details["extra: " + sys.argv[1]]))
"""


def run(*command: str | Path, folder: Path) -> None:
    """Run a command in `folder`, without the checkout in sight; end with its output if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(
            f"{' '.join(map(str, command))}\nexit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )


def environment_of(place: Path, wheel: Path, extra: str = "", *, also: Path | None = None) -> Path:
    """Make a virtual environment with the wheel and an extra; return its Python. Packages of `also` are found."""
    run(sys.executable, "-m", "venv", "--without-pip", place, folder=place.parent)
    python = place / "bin" / "python"
    if also is not None:
        (site,) = (place / "lib").glob("python*/site-packages")
        (other,) = (also / "lib").glob("python*/site-packages")
        (site / "base.pth").write_text(f"{other}\n")
    what = f"{wheel}[{extra}]" if extra else str(wheel)
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "--quiet"]
    run(*pip, "install", "-c", ROOT / "constraints.txt", what, folder=place.parent)
    return python


def python_block() -> str:
    """The Python of the README, with a smaller world."""
    (block,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"sequences=\d+_000", "sequences=1_000", str(block))


def main(arguments: Sequence[str] | None = None) -> None:
    """Try the package alone, then every extra."""
    parser = argparse.ArgumentParser()
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--extra", action="append", choices=EXTRAS)
    given = parser.parse_args(arguments)
    wheel, began = given.wheel.resolve(), time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        alone = environment_of(place / "alone", wheel)
        run(alone, ROOT / "tools" / "smoke.py", folder=place)
        run(alone.with_name("lpi"), "--version", folder=place)  # pip finds it there, and writes no other below
        print(f"localpolicy alone: from a log to lists ({time.monotonic() - began:.0f} s)", flush=True)
        for extra in given.extra or EXTRAS:
            python = environment_of(place / extra, wheel, extra, also=place / "alone")
            run(python, "-c", FOUND, extra, folder=place)
            if extra == "report":
                run(python, "-c", python_block(), folder=place)
                run(python, "-m", "localpolicy", "demo", "--quick", folder=place)
            print(f"localpolicy[{extra}]: installed and found ({time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
