"""The loop over ten rounds and three seeds, each policy and seed in a process of its own.

    python benchmarks/loops.py --out FILE.jsonl [--world store] [--rounds 10] [--seeds 3] [--processes 2]
    python benchmarks/loops.py --table FILE.jsonl

It is `lpi loop` with its defaults, spread over more processes: the same logs, settings and seeds. The table shows the
mean of J(π) over the seeds by round (0 is μ), and then whether LPI ever fell, rose in all, and ends level with the
best. A step falls surely on one seed where it falls by more than 1.96 standard errors of both values (which are paired,
so this is strict), and over seeds where Student's 95 % interval of the differences lies below 0.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from collect import collect, read

from localpolicy.evaluation.estimate import Interval
from localpolicy.experiments.loop.config import USUAL, loop_config
from localpolicy.experiments.loop.loop import loop
from localpolicy.experiments.seeds import over_seeds

Task = tuple[str, str, int]  # world, objective, seed


def measure(task: Task, *, rounds: int) -> dict[str, Any]:
    """One policy's rounds under one seed."""
    world, objective, seed = task
    with tempfile.TemporaryDirectory() as folder:
        done = loop(
            loop_config(world, objectives=(objective,), seeds=(seed,)), out=Path(folder) / "loop", rounds=rounds
        )
    [[entries]] = done.rounds.values()
    kept = [done.first[0], *entries]
    return {
        "world": world, "objective": objective, "seed": seed,
        "stopped": next((entry["stopped"] for entry in kept if "stopped" in entry), None),
        "rounds": [
            {name: entry[name] for name in ("truth", "gain", "js_before", "js_first", "entropy", "coverage")}
            for entry in kept if "stopped" not in entry
        ],
    }  # fmt: skip


def table(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Both worlds, where both were measured."""
    for world in USUAL:
        here = [line for line in lines if line["world"] == world]
        if here:
            yield from _world(world, here)
            yield ""


def _world(world: str, lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    arms = {name: [line for line in lines if line["objective"] == name] for name in USUAL[world][0]}
    arms = {name: sorted(seeds, key=lambda line: line["seed"]) for name, seeds in arms.items() if seeds}
    rounds = max(len(line["rounds"]) for line in lines)
    yield f"{world}, {max(map(len, arms.values()))} seeds"
    yield "| round | " + " | ".join(f"`{name}`" for name in arms) + " |"
    yield "|--:|" + "--:|" * len(arms)
    for number in range(rounds):
        cells = []
        for seeds in arms.values():
            values = [line["rounds"][number]["truth"]["mean"] for line in seeds if len(line["rounds"]) > number]
            cells.append(
                f"{np.mean(values):.4f}" if len(values) == len(seeds) else f"{len(values)} of {len(seeds)} go on"
            )
        yield f"| {number} | " + " | ".join(cells) + " |"
    for name, seeds in arms.items():
        for line in seeds:
            if line["stopped"]:
                yield f"{name}, seed {line['seed']}: stopped after {len(line['rounds']) - 1} rounds: {line['stopped']}"
    ours = next((name for name in arms if name.startswith("lpi")), None)
    if ours is None:
        return
    yield from _course(ours, arms[ours])
    ends = {name: [line["rounds"][-1]["truth"]["mean"] for line in seeds] for name, seeds in arms.items()}
    for name, values in ends.items():
        if name != ours and len(values) == len(ends[ours]):
            ahead = over_seeds(
                [mine - theirs for mine, theirs in zip(ends[ours], values, strict=True)], [0] * len(values)
            )
            yield f"{ours} less {name} at the end: {_said(ahead)}"


def _course(name: str, seeds: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Where it fell, and how far it came."""
    values = np.array([[entry["truth"]["mean"] for entry in line["rounds"]] for line in seeds])
    errors = np.array([[entry["truth"]["se"] for entry in line["rounds"]] for line in seeds])
    steps = np.diff(values, axis=1)
    sure = steps < -1.96 * np.hypot(errors[:, 1:], errors[:, :-1])
    exact = not errors.any()
    yield (
        f"{name}: {sure.sum()} of {sure.size} steps {'fall' if exact else 'surely fall'} on one seed; the largest fall "
        f"{steps.min():+.4f}"
    )
    over = [over_seeds(list(column), [0] * len(column)) for column in steps.T]
    fell = [number for number, step in enumerate(over, start=1) if step.high < 0]
    yield f"{name}: rounds that surely fall over seeds: {', '.join(map(str, fell)) or 'none'}"
    for first, said in ((0, "μ"), (1, "round 1")):
        rise = over_seeds(list(values[:, -1] - values[:, first]), [0] * len(values))
        yield f"{name}: last round less {said}: {_said(rise)}"


def _said(interval: Interval) -> str:
    return f"{interval.mean:+.4f} [{interval.low:+.4f}, {interval.high:+.4f}]"


def main() -> None:
    """Measure, or show what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a line of JSON for each policy and seed, as they end")
    parser.add_argument("--table", type=Path, help="show the lines of such a file")
    parser.add_argument("--world", choices=sorted(USUAL), help="one world alone")
    parser.add_argument("--without", action="append", default=[], metavar="OBJECTIVE", help="leave this one out")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    if given.table is not None:
        print(*table(read(given.table)), sep="\n")
        return
    tasks = [
        (world, objective, seed)
        for world in ([given.world] if given.world else sorted(USUAL, reverse=True))
        for objective in reversed(USUAL[world][0])  # LPI takes longest
        for seed in range(given.seeds)
        if objective not in given.without
    ]
    lines = collect(partial(measure, rounds=given.rounds), tasks, processes=given.processes, out=given.out)
    print(*table(lines), sep="\n")


if __name__ == "__main__":
    main()
