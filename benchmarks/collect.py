"""Work done in several processes, each result kept in a file of JSON lines as soon as it is there; its command line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from localpolicy.runtime.processes import in_processes


def collect(
    work: Callable[[Any], dict[str, Any]], tasks: Sequence[Any], *, processes: int, out: Path | None
) -> list[dict[str, Any]]:
    """The results of all tasks, in the order in which they end."""
    lines = []
    for _, line in in_processes(work, tasks, processes=processes):
        lines.append(line)
        if out is not None:
            with out.open("a") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
    return lines


def command_line(about: str | None, *, processes: int = 2) -> argparse.ArgumentParser:
    """Parser with the options of all such benchmarks: --out, --table and --processes."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a line of JSON for each task, as they end")
    parser.add_argument("--table", type=Path, help="show the lines of such a file")
    parser.add_argument("--processes", type=int, default=processes)
    return parser


def show(
    given: argparse.Namespace,
    table: Callable[[list[dict[str, Any]]], Iterable[str]],
    work: Callable[[Any], dict[str, Any]],
    tasks: Sequence[Any],
) -> None:
    """Print the table of what an earlier run collected (--table), or of these tasks."""
    if given.table is not None:
        lines = read(given.table)
    else:
        lines = collect(work, tasks, processes=given.processes, out=given.out)
    print(*table(lines), sep="\n")


def read(path: Path) -> list[dict[str, Any]]:
    """Lines that an earlier run collected."""
    return [json.loads(line) for line in path.read_text().splitlines()]
