"""Lists every package that an installation brings, with its version and licence, as Markdown.

python tools/licences.py [EXTRA...]
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution


def closure(extras: list[str]) -> dict[str, Distribution]:
    """localpolicy, what it needs, what these need, …: those that are installed here."""
    found: dict[str, Distribution] = {}
    waiting = ["localpolicy"]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue
        for requirement in found[name].requires or ():
            extra = re.search(r"extra\s*==\s*['\"](.+?)['\"]", requirement)
            if extra is None or (name == "localpolicy" and extra[1] in extras):
                waiting.append(re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-"))  # type: ignore[index]
    return found


def licence(package: Distribution) -> str:
    """As the package states it: an SPDX expression, a classifier, or the first line of a text."""
    about = package.metadata
    if expression := about.get_all("License-Expression"):
        return str(expression[0])
    kinds = [line.split(" :: ")[-1] for line in about.get_all("Classifier", []) if line.startswith("License ::")]
    stated = "".join(about.get_all("License") or []).strip().splitlines()
    return ", ".join(kinds) or (stated[0][:60] if stated else "not stated")


def main() -> None:
    packages = closure(sys.argv[1:])
    print("| package | version | licence |\n|---|---|---|")
    for name in sorted(packages):
        print(f"| {name} | {packages[name].version} | {licence(packages[name])} |")


if __name__ == "__main__":
    main()
