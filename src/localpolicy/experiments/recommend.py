"""Lists for a file of histories, in blocks, so that the file may be of any size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from localpolicy.model.policy import Policy
from localpolicy.train.run import Run
from localpolicy.vocabulary.errors import DataError
from localpolicy.vocabulary.files import whole_file

BLOCK = 1024  # histories at once


def recommend(
    run: Path | str,
    *,
    histories: Path | str,
    out: Path | str,
    k: int = 20,
    beta: float | None = None,
    sample: bool = False,
    exclude_seen: bool = False,
    seed: int | None = None,
) -> int:
    """Write one JSON line per history: items, log-probabilities and, where drawn, propensities."""
    policy = Run(run).policy(beta=beta)
    count = 0
    with Path(histories).open() as source, whole_file(Path(out)) as partial, partial.open("w") as file:
        lines = _read(source, Path(histories))
        while block := list(islice(lines, BLOCK)):
            _write(
                policy,
                block,
                file,
                k=k,
                sample=sample,
                exclude_seen=exclude_seen,
                seed=None if seed is None else seed + count,
            )
            count += len(block)
    return count


def _read(source: TextIO, path: Path) -> Iterator[dict[str, Any]]:
    for number, text in enumerate(source, start=1):
        try:
            line = json.loads(text)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, line {number}: not JSON ({error}).") from None
        if not isinstance(line, dict) or not isinstance(line.get("history"), list):
            raise DataError(f'{path}, line {number}: expected {{"history": [...]}}, got {text.strip()[:80]}')
        yield line


def _write(
    policy: Policy,
    block: list[dict[str, Any]],
    file: TextIO,
    *,
    k: int,
    sample: bool,
    exclude_seen: bool,
    seed: int | None,
) -> None:
    answers = [line.get("answers") for line in block]
    given = None
    if any(one is not None for one in answers):
        blank = policy.origin.events[0]
        given = [
            one if one is not None else [blank] * len(line["history"]) for one, line in zip(answers, block, strict=True)
        ]
    lists = policy.recommend(
        [line["history"] for line in block], k, answers=given, sample=sample, exclude_seen=exclude_seen, seed=seed
    )
    for row, items in enumerate(lists.items):
        content = {
            "items": items,
            "log_probability": [round(value, 6) for value in lists.log_probability[row].tolist()],
        }
        if lists.propensity is not None:
            content["propensity"] = lists.propensity[row].tolist()
        file.write(json.dumps(content) + "\n")
