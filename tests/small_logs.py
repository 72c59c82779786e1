"""A small random log, for tests that only need some log."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from localpolicy.data.item_features import KIND
from localpolicy.data.item_table import ItemTable
from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing

EVENTS = ["none", "click", "purchase"]
REWARDS = {"none": 0.0, "click": 0.2, "purchase": 1.0}

TINY = {"model": {"width": 8}, "train": {"epochs": 1, "device": "cpu", "min_history": 0}}  # settings of a quick run


def lot(sequence: Any, item: Any, time: int) -> Any:
    """What breaks ties in time: it depends on all three, so no order of items holds for everybody, or for long."""
    if isinstance(sequence, str) or isinstance(item, str):
        return hashlib.md5(f"{sequence} {item} {time}".encode()).hexdigest()[:8]
    prime, factors = 2**31 - 1, (48_271, 69_621, 16_807)
    parts = [(abs(number) % prime) * (1 if number >= 0 else -1) for number in (sequence, item, time)]
    return (abs(sum(part * factor for part, factor in zip(parts, factors, strict=True))) % prime) ** 2 % prime


def small_item_table(item_id, seed: int = 0) -> ItemTable:
    """A brand, a list of tags, a price and a vector for each item; some are missing."""
    rng = np.random.default_rng(seed)
    n = len(item_id)
    table = {
        "item_id": pa.array(item_id),
        "brand": pa.array([None if item % 7 == 3 else f"brand {item % 3}" for item in range(n)]),
        "tags": pa.array([[f"tag {t}" for t in range(item % 4)] for item in range(n)], pa.list_(pa.string())),
        "price": pa.array([None if item % 5 == 4 else float(item % 6) for item in range(n)]),
        "text": pa.array(rng.normal(size=(n, 3)).astype(np.float32).tolist(), pa.list_(pa.float32())),
        "title": pa.array([f"the item {item}" for item in range(n)]),
    }
    kinds = {"brand": "category", "tags": "categories", "price": "number", "text": "vector", "title": "name"}
    fields = [pa.field(name, a.type, metadata={KIND: kinds[name].encode()} if name in kinds else None)
              for name, a in table.items()]  # fmt: skip
    return ItemTable(pa.table(list(table.values()), schema=pa.schema(fields)), "a small table")


def write_small(
    path: Path, *, items: int = 12, sequences: int = 120, seed: int = 0, rewards=REWARDS, propensity=True,
    item_id=None, policies=(), ids=False, item_table=None,
):  # fmt: skip
    """Random sequences of 1 to 8 events over a few items; the next item depends on the one before."""
    item_id = np.arange(100, 100 + items) if item_id is None else np.asarray(item_id)
    items = len(item_id)
    rng = np.random.default_rng(seed)
    optional = ("propensity",) if propensity else ()
    kind = "impressions" if propensity else "interactions"
    with writing(
        path, kind=kind, events=EVENTS, rewards=rewards, optional=optional, extra={"policies": list(policies)}
    ) as store:
        for split, share in (("train", 0.8), ("validation", 0.1), ("test", 0.1)):
            lengths = rng.integers(1, 9, int(sequences * share))
            total = int(lengths.sum())
            item = np.empty(total, np.int64)
            item[0] = 0
            for place in range(1, total):
                item[place] = (item[place - 1] * 2 + rng.integers(0, 4)) % items
            event = rng.choice(len(EVENTS), total, p=[0.4, 0.45, 0.15])
            arrays = {"item": item, "event": event, "reward": np.array([rewards[name] for name in EVENTS])[event]}
            if propensity:
                arrays["propensity"] = rng.uniform(0.05, 0.5, total)
            store.splits[split].append(lengths, arrays)
            if ids:
                store.splits[split].append_ids(pa.array([f"{split}-{number}" for number in range(len(lengths))]))
        store.write_items(item_id, np.ones(items, np.int64), item_table)
    return Prepared(path)
