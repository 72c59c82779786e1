"""Prints `package==version` for the lowest version of every direct dependency that pyproject.toml allows.

A constraints file for `make lowest`, which installs just these and tries every verb: so what is declared holds.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

BOUND = re.compile(r"(?P<name>[\w.-]+)>=(?P<lowest>[\w.]+)")


def lowest(requirements: list[str]) -> list[str]:
    """The lower bound of each, as a pin; a requirement without one is an error, since it would promise anything."""
    pins = []
    for requirement in requirements:
        found = BOUND.match(requirement)
        if found is None:
            raise SystemExit(f"pyproject.toml: '{requirement}' has no lower bound.")
        pins.append(f"{found['name']}=={found['lowest']}")
    return pins


def main() -> None:
    project = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text(encoding="utf-8"))["project"]
    print("\n".join(lowest(project["dependencies"])))


if __name__ == "__main__":
    main()
