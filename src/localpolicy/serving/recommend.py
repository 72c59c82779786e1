"""Lists for a file of histories, in blocks, so that the file may be of any size."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import pyarrow as pa

from localpolicy.errors import DataError
from localpolicy.model.policy import Policy
from localpolicy.runs.run import Run
from localpolicy.runtime.files import whole_file

LOG = logging.getLogger(__name__)
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
    """Write one JSON line per history: items, log-probabilities and, where drawn, propensities.

    Items that the policy never saw say nothing to it: they are left out of the histories, and counted.
    """
    histories = Path(histories)
    if not histories.is_file():
        found = "is a folder" if histories.is_dir() else "does not exist"
        raise DataError(f"{histories} {found}: --histories expects a file of JSON lines, one per history.")
    policy = Run(run).policy(beta=beta)
    known, kind = set(policy.items["item_id"].to_pylist()), _kind(policy)
    count = given = unknown = 0
    with histories.open("rb") as source, whole_file(Path(out)) as partial, partial.open("w", encoding="utf-8") as file:
        lines = _read(source, histories, kind)
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
            given += sum(len(line["history"]) for line in block)
            unknown += sum(item not in known for line in block for item in line["history"])
    if unknown:
        LOG.warning(
            "%s of %s items of the histories are not in the policy's catalogue and were left out.",
            f"{unknown:,}", f"{given:,}",
        )  # fmt: skip
    return count


def _kind(policy: Policy) -> type:
    """The type of the catalogue's ids, in JSON."""
    return int if pa.types.is_integer(policy.items["item_id"].type) else str


def _read(source: BinaryIO, path: Path, kind: type) -> Iterator[dict[str, Any]]:
    for number, content in enumerate(source, start=1):
        try:
            text = content.decode()
            line = json.loads(text)
        except UnicodeDecodeError as error:
            raise DataError(f"{path}, line {number}: not UTF-8 ({error}); write the file as UTF-8 text.") from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: not JSON ({error}).") from None
        if not isinstance(line, dict) or not _listed(line.get("history"), kind):
            items = "whole numbers" if kind is int else "texts"
            raise DataError(
                f'{path}, line {number}: expected {{"history": [...]}} with items as {items}, as in the log, got '
                f"{text.strip()[:80]}"
            )
        if line.get("answers") is not None and not _listed(line["answers"], str):
            raise DataError(
                f'{path}, line {number}: expected "answers" as a list of events\' names, got {text.strip()[:80]}'
            )
        yield line


def _listed(values: Any, kind: type) -> bool:
    """Whether this is a list of such values; to Python `true` is a whole number, to nobody else."""
    return isinstance(values, list) and all(type(value) is kind for value in values)


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
