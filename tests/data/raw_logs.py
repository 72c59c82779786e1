"""Small logs, and an independent computation of what `prepare` should make of them (plain Python, no SQL)."""

from __future__ import annotations

import csv
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from small_logs import lot

from localpolicy.data.store import SPLITS, Prepared

Row = dict[str, Any]


def random_log(
    seed: int = 0, *, sequences: int = 60, items: int = 30, events: int = 600, step: int = 1000
) -> list[Row]:
    """Clicks and purchases with many ties in time (`step` is how coarse times are, in ms)."""
    rng = np.random.default_rng(seed)
    return [
        {
            "sequence_id": int(rng.integers(sequences)),
            "item_id": int(rng.zipf(1.5) % items) + 100,
            "event": "purchase" if rng.random() < 0.2 else "click",
            "timestamp": 1_600_000_000_000 + int(rng.integers(200)) * step,
        }
        for _ in range(events)
    ]


def write_parquet(path: Path, rows: Sequence[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def write_csv(path: Path, rows: Sequence[Row], *, delimiter: str = ",", header: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter, lineterminator="\n")
        if header:
            writer.writeheader()
        writer.writerows(rows)
    return path


def stored(data: Prepared) -> dict[Any, list[tuple[Any, ...]]]:
    """Sequence id -> its events as (item id, event, time, reward) in stored order."""
    item_id = data.catalogue.column("item_id").to_pylist()
    found = {}
    for name in SPLITS:
        split = data[name]
        for sequence_id, arrays in zip(data.sequence_ids(name).to_pylist(), split, strict=True):
            times = arrays["time"].tolist() if "time" in arrays else [None] * len(arrays["item"])
            events = [data.events[code] for code in arrays["event"]]
            assert sequence_id not in found, "a sequence is in two splits, or twice in one"
            found[sequence_id] = list(
                zip((item_id[i] for i in arrays["item"]), events, times, arrays["reward"].tolist(), strict=True)
            )
    return found


def split_of(data: Prepared) -> dict[Any, str]:
    """Sequence id -> its split."""
    return {sequence: name for name in SPLITS for sequence in data.sequence_ids(name).to_pylist()}


def grouped(rows: Iterable[Row], *, order: tuple[str, ...] = ("timestamp", "event", "lot")) -> dict[Any, list[Row]]:
    """Rows by sequence, each sequence in order."""
    if "lot" in order:
        rows = [{**row, "lot": lot(row["sequence_id"], row["item_id"], row["timestamp"])} for row in rows]
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["sequence_id"]].append(row)
    return {key: sorted(group, key=lambda row: tuple(row[name] for name in order)) for key, group in groups.items()}


def by_popularity(rows: Iterable[Row]) -> list[Any]:
    """Item ids by falling count, ties by id."""
    counts = Counter(row["item_id"] for row in rows)
    return sorted(counts, key=lambda item: (-counts[item], item))


def random_split(sequence_id: Any, *, seed: int = 0, validation: float = 0.1, test: float = 0.1) -> str:
    """The split an md5 of seed and id gives."""
    share = int(hashlib.md5(f"{seed}:{sequence_id}".encode()).hexdigest()[:8], 16) / 2**32
    return "train" if share < 1 - validation - test else "validation" if share < 1 - test else "test"
