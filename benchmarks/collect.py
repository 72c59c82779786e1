"""Work done in several processes, each result kept in a file of JSON lines as soon as it is there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from localpolicy.study.jobs import in_processes


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


def read(path: Path) -> list[dict[str, Any]]:
    """What an earlier run collected."""
    return [json.loads(line) for line in path.read_text().splitlines()]
