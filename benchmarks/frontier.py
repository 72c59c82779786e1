"""`lpi demo` on several seeds: is LPI on the frontier of true reward against distance from the log?

    python benchmarks/frontier.py --out FILE.jsonl [--seeds 6] [--world store] [--processes 1]
    python benchmarks/frontier.py --table FILE.jsonl

It plays the demo's scenarios with the demo's settings; only the page is not drawn. A policy is on the frontier where no
policy of another kind earns at least as much at most as far away. A rival is passed by LPI where some β of the demo's
dial earns more at a smaller JS.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from collect import command_line, show

from localpolicy.report.comparison import comparison_section
from localpolicy.worlds.demo import run_scenario
from localpolicy.worlds.scenarios import SCENARIOS

EPISODES = 4_000  # as in the demo
CORES = 2  # for each scenario, where several are played at once

Task = tuple[str, int, int | None]  # world, seed, and which cores (None: all)


def play(task: Task) -> dict[str, Any]:
    """One scenario of the demo."""
    world, seed, place = task
    cores = sorted(os.sched_getaffinity(0))
    if place is not None and len(cores) > CORES:
        first = CORES * place % (len(cores) - CORES + 1)
        os.sched_setaffinity(0, cores[first : first + CORES])
    scenario = SCENARIOS[world]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        comparison = run_scenario(scenario, Path(scratch) / world, seed=seed, episodes=EPISODES)
        section = comparison_section(comparison, base=Path(scratch))
    assert section.floor is not None and section.logging_value is not None
    rows = [
        {"name": policy.name, "objective": policy.objective, "gain": gain.mean, "low": gain.low, "js": js}
        for policy in section.policies
        if (gain := section.figure(policy.name, "true gain")) and (js := section.mean(policy.name, "JS")) is not None
    ]
    return {
        "world": world, "seed": seed, "J(μ)": section.logging_value.mean, "floor": section.floor.mean, "rows": rows,
        "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip


def beaten(row: dict[str, Any], others: Sequence[dict[str, Any]]) -> list[str]:
    """Names of policies that earn at least as much, at most as far away."""
    return [other["name"] for other in others if other["gain"] >= row["gain"] and other["js"] <= row["js"]]


def table(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """One row per world and seed."""
    yield "| world | seed | LPI, β chosen (JS) | on the frontier | best rival (JS) | rivals that no β passes |"
    yield "|---|--:|--:|---|--:|---|"
    for line in sorted(lines, key=lambda line: (line["world"], line["seed"])):
        lpi = [row for row in line["rows"] if row["objective"].startswith("lpi")]
        rivals = [row for row in line["rows"] if not row["objective"].startswith("lpi")]
        chosen = next((row for row in lpi if "chosen" in row["name"]), lpi[0])
        best = max(rivals, key=lambda row: row["gain"])
        above = beaten(chosen, rivals)
        standing = [row["name"] for row in rivals if row["gain"] > 0 and not beaten(row, lpi)]
        yield (
            f"| {line['world']} | {line['seed']} | {chosen['gain']:+.4f} ({chosen['js']:.2f}) | "
            f"{'yes' if not above else 'no: ' + ', '.join(above)} | {best['name']} {best['gain']:+.4f} "
            f"({best['js']:.2f}) | {', '.join(standing) or 'none'} |"
        )


def main() -> None:
    """Play, or show what was played."""
    parser = command_line(__doc__, processes=1)
    parser.add_argument("--world", choices=list(SCENARIOS), help="one world alone")
    parser.add_argument("--seeds", type=int, default=6)
    given = parser.parse_args()
    names = [world for world in reversed(SCENARIOS) if given.world in (None, world)]
    pairs = [(world, seed) for world in names for seed in range(given.seeds)]
    tasks = [(*pair, place if given.processes > 1 else None) for place, pair in enumerate(pairs)]
    show(given, table, play, tasks)


if __name__ == "__main__":
    main()
