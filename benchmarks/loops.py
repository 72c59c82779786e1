"""What loops of `lpi loop` came to: does LPI ever fall, does it rise in all, and does it end level with the best?

    lpi loop store --rounds 10 --seeds 0,1,2 --out loop-store
    python benchmarks/loops.py loop-store/loop.json ...

For each loop J(π) by round (0 is μ), the mean over its seeds. A step falls significantly on one seed where it falls by
more than 1.96 standard errors of the paired difference (on the same visits; in the bandit J is exact), and
over seeds where Student's 95 % interval of the steps lies below 0.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from localpolicy.measure.estimate import Interval
from localpolicy.study.measured import over_seeds

REWARD = "true J"


Course = dict[str, dict[int, tuple[float, float]]]  # of one seed: figure -> round -> mean and error


def courses(loop: dict[str, Any]) -> dict[str, list[Course]]:
    """Rows of the long table by objective and seed."""
    found: dict[str, dict[int, Course]] = {name: {} for name in loop["arms"]}
    for row in loop["measurements"]:
        if row["seed"] is not None:
            course = found[row["policy"]].setdefault(row["seed"], {})
            course.setdefault(row["figure"], {})[row["round"]] = row["mean"], row["se"]
    return {name: list(seeds.values()) for name, seeds in found.items()}


def table(loop: dict[str, Any]) -> Iterator[str]:
    """One loop, in Markdown and sentences."""
    arms = {name: [each[REWARD] for each in seeds] for name, seeds in courses(loop).items()}
    last = max(max(values) for seeds in arms.values() for values in seeds)
    yield f"{loop['settings']['world']}, {len(loop['settings']['seeds'])} seeds"
    yield "| round | " + " | ".join(f"`{name}`" for name in arms) + " |"
    yield "|--:|" + "--:|" * len(arms)
    for number in range(last + 1):
        yield f"| {number or 'μ'} | " + " | ".join(_cell(seeds, number) for seeds in arms.values()) + " |"
    whole = {name: seeds for name, seeds in courses(loop).items() if all(last in values for values in arms[name])}
    for name, seeds in whole.items():
        yield from _course(name, seeds)
    ours = next((name for name in whole if name.startswith("lpi")), None)
    for name in whole:
        if ours is not None and name != ours:
            pairs = zip(arms[ours], arms[name], strict=True)
            ahead = [mine[last][0] - theirs[last][0] for mine, theirs in pairs]
            yield f"{ours} less {name} at the end: {_over(ahead)}"


def _cell(seeds: Sequence[dict[int, tuple[float, float]]], number: int) -> str:
    values = [rounds[number][0] for rounds in seeds if number in rounds]
    return f"{np.mean(values):.4f}" if len(values) == len(seeds) else f"{len(values)} of {len(seeds)} go on"


def _course(name: str, seeds: Sequence[Course]) -> Iterator[str]:
    """Where it fell, and how far it came."""
    values = np.array([[mean for mean, _ in seed[REWARD].values()] for seed in seeds])
    steps, errors = (
        np.array([[step[place] for number, step in seed["step"].items() if number] for seed in seeds])
        for place in (0, 1)
    )
    falls = steps < -1.96 * errors
    fall = "fall significantly" if errors.any() else "fall"
    yield f"{name}: {falls.sum()} of {falls.size} steps {fall} on one seed; the largest fall {steps.min():+.4f}"
    fell = [str(number) for number, column in enumerate(steps.T, start=1) if _interval(column).high < 0]
    yield f"{name}: rounds that fall significantly over seeds: {', '.join(fell) or 'none'}"
    rise, later = values[:, -1] - values[:, 0], values[:, -1] - values[:, 1]
    yield f"{name}: last round less μ: {_over(rise)}; less round 1: {_over(later)}"


def _interval(values: Sequence[float] | np.ndarray) -> Interval:
    return over_seeds(list(values), [0.0] * len(values))


def _over(values: Sequence[float] | np.ndarray) -> str:
    interval = _interval(values)
    return f"{interval.mean:+.4f} [{interval.low:+.4f}, {interval.high:+.4f}]"


def main() -> None:
    """Show what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loops", type=Path, nargs="+", help="loop.json of a loop's folder")
    for path in parser.parse_args().loops:
        print(*table(json.loads(path.read_text())), "", sep="\n")


if __name__ == "__main__":
    main()
