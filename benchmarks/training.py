"""Speed and memory of training on a CPU, of ours and of two peers.

    python benchmarks/training.py cpu --rectools PYTHON --replay PYTHON
    python benchmarks/training.py million
    python benchmarks/training.py overhead

benchmarks/README.md says how to set the peers up, and what each command measures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from peers.clock import Settings, write
from peers.ours import allowed, contend, million, overhead

HERE = Path(__file__).resolve().parent
MIB, GIB = 1 << 20, 1 << 30
OURS = ("mle", "critic", "lpi_rl_weighted")  # the default's two stages, and the paper's form
PEERS = {"rectools": "rectools_sasrec.py", "replay": "replay_sasrec.py"}
# (name, figure, over, under, goal): the ratios that are printed.
RATIOS = [
    ("mle / rectools, sequences/s", "sequences_per_second", "mle", "rectools", "at least 10"),
    ("mle / replay, sequences/s", "sequences_per_second", "mle", "replay", "at least 6"),
    ("mle / rectools, positions/s", "positions_per_second", "mle", "rectools", ""),
    ("mle / replay, positions/s", "positions_per_second", "mle", "replay", ""),
    ("mle / rectools, memory", "peak_bytes", "mle", "rectools", "below 1"),
    ("mle / replay, memory", "peak_bytes", "mle", "replay", "below 1"),
    ("cost of lpi_rl_weighted over mle, time", "sequences_per_second", "mle", "lpi_rl_weighted", "at most 2.5"),
]


def sequences(count: int, settings: Settings) -> dict[str, np.ndarray]:
    """YooChoose-like: 2 to 20 events, 4.1 on average (3.1 next items); Zipf popularity; one event in 20 a purchase."""
    random = np.random.default_rng(settings.seed)
    lengths = np.minimum(1 + random.geometric(1 / 3.1, count), settings.length)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    popularity = np.cumsum(1 / np.arange(1, settings.items + 1))
    drawn = np.searchsorted(popularity, random.random(offsets[-1]) * popularity[-1])
    # Each item once, where there is room: a peer's catalogue is what it sees, and all must have the same.
    drawn[: settings.items] = random.permutation(settings.items)[: len(drawn)]
    event = (random.random(len(drawn)) < 0.05).astype(np.uint8)
    return {"offsets": offsets, "item": random.permutation(drawn).astype(np.int32), "event": event}


# ---------------------------------------------------------------------- cpu


def cpu(options: argparse.Namespace) -> dict[str, Any]:
    """Each candidate in a fresh process, one after another, round after round."""
    settings = replace(Settings(), items=options.items)
    count = max(1, options.sequences // settings.batch)  # whole batches only
    settings = replace(settings, warm=max(1, min(settings.warm, count // 4)))
    commands = {name: [sys.executable, str(HERE / "training.py"), "ours", name] for name in OURS}
    for name, script in PEERS.items():
        python = getattr(options, name)
        if python is None:
            print(f"{name}: left out (give its Python with --{name}).", file=sys.stderr)
        else:
            commands[name] = [_executable(python), str(HERE / "peers" / script)]
    limit = str(settings.threads)
    environment = {**os.environ, "OMP_NUM_THREADS": limit, "MKL_NUM_THREADS": limit, "CUDA_VISIBLE_DEVICES": ""}
    load = os.getloadavg()[0]
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write(folder, settings, sequences(count * settings.batch, settings))
        for number in range(options.rounds):
            for name, command in commands.items():
                out = folder / "result.json"
                done = subprocess.run(
                    [*command, str(folder), str(out)], env=environment, cwd=folder, capture_output=True, text=True
                )
                if done.returncode:
                    sys.exit(f"{name} failed:\n{done.stderr[-3000:]}")
                rounds[name].append(json.loads(out.read_text()))
                speed = rounds[name][-1]["sequences_per_second"]
                print(f"round {number + 1}: {name} {speed:,.0f} sequences/s", file=sys.stderr)
    return {
        "settings": asdict(settings),
        "sequences": count * settings.batch,
        "machine": {
            "processor": _processor(),
            "system": f"{platform.system()} {platform.machine()}",
            "load_at_start": load,
        },
        "rounds": rounds,
        "ratios": {name: values for name, values, _ in _ratios(rounds)},
    }


def _executable(python: str) -> str:
    """Its absolute path, links kept: a virtual environment is known by the path of its Python."""
    found = shutil.which(python)
    if found is None:
        sys.exit(f"{python} is not an executable; expected the Python of a peer's virtual environment.")
    return os.path.abspath(found)


def _ratios(rounds: dict[str, list[dict[str, Any]]]) -> Iterator[tuple[str, list[float], str]]:
    """(name, ratio of each round, goal)."""
    for name, figure, over, under, goal in RATIOS:
        if over in rounds and under in rounds:
            pairs = zip(rounds[over], rounds[under], strict=True)
            yield name, [one[figure] / other[figure] for one, other in pairs], goal


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _spread(values: list[float], form: str = ",.0f") -> str:
    return f"{median(values):{form}} ({min(values):{form}}–{max(values):{form}})"


def print_cpu(result: dict[str, Any]) -> None:
    """Two Markdown tables: medians over the rounds, with the smallest and largest."""
    machine, settings = result["machine"], result["settings"]
    print(
        f"{machine['processor']}, {settings['threads']} threads, load at start {machine['load_at_start']:.2f}; "
        f"{result['sequences']:,} sequences, {settings['items']:,} items\n"
    )
    print("| | sequences/s | positions/s | positions per sequence | peak GiB | items scored | loss |")
    print("|---|--:|--:|--:|--:|--:|---|")
    for name, rounds in result["rounds"].items():
        figures = [[one[key] for one in rounds] for key in ("sequences_per_second", "positions_per_second")]
        peak = _spread([one["peak_bytes"] / GIB for one in rounds], ".2f")
        last = rounds[-1]
        print(
            f"| {name} {last['version']} | {_spread(figures[0])} | {_spread(figures[1])} | "
            f"{last['positions_per_sequence']:.2f} | {peak} | {last['catalogue']:,} | {last['loss']} |"
        )
        if last["catalogue"] != settings["items"]:
            print(f"{name} saw {last['catalogue']:,} items only: not comparable, use more sequences.", file=sys.stderr)
    print("\n| ratio | median (smallest–largest) | goal |\n|---|--:|---|")
    for name, values, goal in _ratios(result["rounds"]):
        print(f"| {name} | {_spread(values, '.2f')} | {goal} |")
    print(
        "\nPositions are targets that the loss counts. A sequence of n events gives n to ours and to RePlay (the first "
        "one from an empty\ncontext, or from padding) and n - 1 to RecTools; both peers also score the padding, and "
        "then mask it."
    )


# ---------------------------------------------------------------------- ours alone


def print_million(result: dict[str, Any]) -> None:
    """One Markdown table."""
    print(f"lpi_rl_weighted, {result['items']:,} items, {result['positions']} positions, width {result['width']}\n")
    print("| | MiB |\n|---|--:|")
    for name, size in [*result["held_bytes"].items(), ("peak of the process", result["peak_bytes"])]:
        print(f"| {name} | {size / MIB:,.0f} |")
    print(f"| peak beyond all of these (goal: under 1,024) | {result['beyond_bytes'] / MIB:,.0f} |")
    print(f"\n{result['seconds_per_step']:.2f} s per step")


def taken_apart(count: int, items: int, threads: int) -> dict[str, dict[str, float]]:
    """The pieces of a step of each objective, in milliseconds."""
    settings = replace(Settings(), items=items, threads=threads)
    batches = max(1, count // settings.batch)
    settings = replace(settings, warm=max(1, min(settings.warm, batches // 4)))
    arrays = sequences(batches * settings.batch, settings)
    lengths = np.diff(arrays["offsets"]) / batches
    limits = allowed(settings, lengths.sum(), (lengths - 1 / batches).sum())
    pieces = {objective: overhead(objective, settings, arrays) for objective in OURS}
    return {name: {**parts, "limit": limits.get(name, np.nan)} for name, parts in pieces.items()}


def print_overhead(result: dict[str, dict[str, float]]) -> None:
    """One Markdown table: milliseconds per step; the share that is neither forward, backward nor optimiser; and the
    share of the step that the machine needs for its products and exponentials alone."""
    columns = ("forward", "backward", "optimiser", "cutting", "logging", "rest")
    print(
        f"| ms per step | {' | '.join(columns)} | sum | neither forward, backward nor optimiser | limit | limit / sum |"
    )
    print(f"|---|{'--:|' * (len(columns) + 4)}")
    for objective, pieces in result.items():
        limit, total = pieces["limit"], sum(pieces[name] for name in columns)
        other = sum(pieces[name] for name in columns[3:]) / total
        cells = " | ".join(f"{pieces[name]:.2f}" for name in columns)
        share = "– | –" if np.isnan(limit) else f"{limit:.2f} | {100 * limit / total:.0f} %"
        print(f"| {objective} | {cells} | {total:.2f} | {100 * other:.1f} % | {share} |")


def main() -> None:
    """Parse, measure, print; `--out` keeps the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in [
        ("cpu", "training speed and memory, ours and the peers'"),
        ("million", "memory of an lpi_rl step at 1,000,000 items"),
        ("overhead", "the pieces of our training step"),
    ]:
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--out", type=Path, help="write the figures here, as JSON")
        command.add_argument("--items", type=int, default=1_000_000 if name == "million" else Settings().items)
        if name != "million":
            command.add_argument("--sequences", type=int, default=20_000, help="cut to whole batches of 256")
        if name == "overhead":
            command.add_argument("--threads", type=int, default=Settings().threads, help="1 where others work, too")
        if name == "cpu":
            command.add_argument("--rounds", type=int, default=3)
            for peer in PEERS:
                command.add_argument(f"--{peer}", metavar="PYTHON", help=f"Python of the environment with {peer}")
    hidden = commands.add_parser("ours")  # what `cpu` starts
    hidden.add_argument("objective")
    hidden.add_argument("folder", type=Path)
    hidden.add_argument("result", type=Path)
    options = parser.parse_args()
    result: Any = None
    if options.command == "ours":
        contend(options.objective, options.folder, options.result)
        return
    if options.command == "cpu":
        print_cpu(result := cpu(options))
    elif options.command == "million":
        print_million(result := million(options.items))
    else:
        print_overhead(result := taken_apart(options.sequences, options.items, options.threads))
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
