"""Lists for any number of histories, computed in blocks."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError
from localpolicy.model.deployable import Deployable
from localpolicy.model.histories import Histories, histories_of, recommend_with
from localpolicy.model.lists import AT_ONCE, CACHED, Lists, together
from localpolicy.model.policy import Policy
from localpolicy.runs.baselines import is_baseline, load_baseline
from localpolicy.runs.run import Run
from localpolicy.runtime.files import STDOUT, whole_file
from localpolicy.serving.requests import BatchRequest, all_requests, read_requests

LOG = logging.getLogger(__name__)
BLOCK = 128  # histories at once: of those that are drawn, and the least of others
LARGEST_BLOCK = 1024  # … where whole rows of scores are formed
BLOCK_OF_CANDIDATES = 64  # … where some name their candidates: all other items are then listed as forbidden
ROWS = 1 << 16  # of a table that are written at once


def recommend(
    run: Run | Path | str,
    histories: Any = None,
    k: int = 20,
    *,
    out: Path | str | None = None,
    every: Prepared | Path | str | None = None,
    beta: float | None = None,
    sample: bool = False,
    exclude_seen: bool = False,
    seed: int | None = None,
) -> Lists | int:
    """Make a list for each history: items, log-probabilities and, if drawn, propensities.

    `histories` are lists of item ids, a frame with a row per event, or a file of JSON lines, CSV or Parquet; `every`
    takes all sequences of a data set instead. Without `out` the lists come back. With it they are written, block by
    block, and their number comes back: `out` ends in .csv or .parquet for a table with one row per listed item; `-` is
    stdout. Items that the policy does not know are left out of the histories, and counted.
    """
    if (histories is None) == (every is None):
        raise ConfigError("whose lists? Name either a file with --histories, or a data set with --all.")
    policy = _open(run.folder if isinstance(run, Run) else Path(run), beta)
    ids = policy.items["item_id"]
    kind = int if pa.types.is_integer(ids.type) else str
    known = set(ids.to_pylist())
    if every is not None:
        requests = all_requests(every if isinstance(every, Prepared) else Prepared(every))
    elif isinstance(histories, str | PathLike):
        requests = read_requests(Path(histories), kind)
    else:
        requests = _in_memory(histories_of(histories, ids.type))
    size = LARGEST_BLOCK if not sample and CACHED * len(ids) <= AT_ONCE else BLOCK
    count = given = unknown = 0
    kept: list[Lists] = []
    whose: list[Any] = []
    with nullcontext(None) if out is None else _writer(out) as write:
        while block := list(islice(requests, size)):
            for part in _parts(block):
                lists = _lists(policy, part, k, sample, exclude_seen, None if seed is None else seed + count)
                if write is None:
                    kept.append(lists)
                    whose += [request.id for request in part]
                else:
                    write(part, lists, ids, count)
                count += len(part)
            items = [item for request in block for item in request.history]
            given += len(items)
            unknown += 0 if known.issuperset(items) else len(items) - sum(map(known.__contains__, items))
    if unknown:
        LOG.warning(
            "%s of %s items of the histories are not in the policy's catalogue and were left out.",
            f"{unknown:,}", f"{given:,}",
        )  # fmt: skip
    return together(kept, whose if any(who is not None for who in whose) else None) if out is None else count


def _in_memory(given: Histories) -> Iterator[BatchRequest]:
    for number, history in enumerate(given.histories):
        events = None if given.events is None else given.events[number]
        yield BatchRequest(history, events, None if given.ids is None else given.ids[number])


def _open(folder: Path, beta: float | None) -> Deployable:
    if not is_baseline(folder):
        return Run(folder).policy(beta=beta)
    if beta is not None:
        raise ConfigError(f"{folder} is a simple baseline, which has no dial: leave --beta out.")
    return load_baseline(folder)


def _parts(block: list[BatchRequest]) -> Iterator[list[BatchRequest]]:
    size = len(block) if all(request.candidates is None for request in block) else BLOCK_OF_CANDIDATES
    return (block[start : start + size] for start in range(0, len(block), size))


def _lists(
    policy: Deployable, block: Sequence[BatchRequest], k: int, sample: bool, exclude_seen: bool, seed: int | None
) -> Lists:
    events = None
    if any(request.events is not None for request in block):
        blank = policy.origin.events[0]
        events = [request.events if request.events is not None else [blank] * len(request.history) for request in block]
    options: dict[str, Any] = {"sample": sample, "exclude_seen": exclude_seen, "seed": seed, "events": events}
    if any(request.exclude for request in block):
        options["exclude_each"] = [request.exclude for request in block]
    if any(request.candidates is not None for request in block):
        options["candidates"] = [request.candidates for request in block]
    histories = [request.history for request in block]
    if isinstance(policy, Policy):
        return policy.recommend(histories, k, **options)
    return recommend_with(policy, histories, k, **options)


class Write(Protocol):
    """Writer of one block's lists, given the catalogue's ids and the number of lists before."""

    def __call__(self, block: Sequence[BatchRequest], lists: Lists, ids: pa.ChunkedArray, before: int) -> None: ...


@contextmanager
def _writer(out: Path | str) -> Iterator[Write]:
    """Context manager: a `Write` of JSON lines to a file or stdout, or of a table with one row per listed item."""
    if str(out) == STDOUT:
        yield lambda block, lists, ids, before: sys.stdout.writelines(_lines(block, lists))
        return
    path = Path(out)
    with whole_file(path) as partial:
        if not path.name.endswith((".csv", ".parquet")):
            with partial.open("w", encoding="utf-8") as file:
                yield lambda block, lists, ids, before: file.writelines(_lines(block, lists))
            return
        made: list[Any] = []
        waiting: list[pa.Table] = []

        def flush() -> None:
            if not waiting:
                return
            if not made:
                kind = pq.ParquetWriter if path.name.endswith(".parquet") else pa.csv.CSVWriter
                made.append(kind(partial, waiting[0].schema))
            made[0].write_table(pa.concat_tables(waiting).combine_chunks())
            waiting.clear()

        def write(block: Sequence[BatchRequest], lists: Lists, ids: pa.ChunkedArray, before: int) -> None:
            waiting.append(_table(block, lists, ids, before))
            if sum(map(len, waiting)) >= ROWS:
                flush()

        try:
            yield write
            flush()
        finally:
            for writer in made:
                writer.close()
        if not made:
            partial.touch()


def _lines(block: Sequence[BatchRequest], lists: Lists) -> Iterator[str]:
    for row, (request, items) in enumerate(zip(block, lists.items, strict=True)):
        content: dict[str, Any] = {} if request.id is None else {"id": request.id}
        content |= {"items": items} if lists.names is None else {"items": items, "names": lists.names[row]}
        content |= {"log_probability": [round(v, 6) for v in lists.log_probability[row].tolist()]}
        if lists.propensity is not None:
            content["propensity"] = lists.propensity[row].tolist()
        yield json.dumps(content) + "\n"


def _table(block: Sequence[BatchRequest], lists: Lists, ids: pa.ChunkedArray, before: int) -> pa.Table:
    """Return a table of sequence_id (or the history's number), rank, item_id, probability and, if drawn, propensity."""
    rows, k = lists.indices.shape
    whose = pa.array([before + number if request.id is None else request.id for number, request in enumerate(block)])
    columns = {
        "sequence_id": whose.take(pa.array(np.repeat(np.arange(rows), k))),
        "rank": np.tile(np.arange(1, k + 1), rows),
        "item_id": ids.take(pa.array(lists.indices.flatten().numpy())),
        **({} if lists.names is None else {"name": [name for names in lists.names for name in names]}),
        "probability": lists.log_probability.double().exp().flatten().numpy(),
    }
    if lists.propensity is not None:
        columns["propensity"] = lists.propensity.flatten().numpy()
    return pa.table(columns)
