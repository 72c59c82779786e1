"""A small interaction log of clicks and purchases, for tests of tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing

EVENTS = ["click", "purchase"]


def write_shop(
    path: Path, *, items: int = 15, sequences: int = 150, seed: int = 0, bought: dict[str, int] | None = None
) -> Prepared:
    """Write a data set of a shop; the splits in `bought` get these numbers of purchases."""
    rng = np.random.default_rng(seed)
    with writing(path, kind="interactions", events=EVENTS, rewards={"click": 0.2, "purchase": 1.0}) as store:
        for split, share in (("train", 0.6), ("validation", 0.2), ("test", 0.2)):
            lengths = rng.integers(3, 9, int(sequences * share))
            item = np.cumsum(rng.integers(0, 3, int(lengths.sum()))) % items
            event = (rng.random(len(item)) < 0.25).astype(int)
            if bought is not None and split in bought:
                event &= np.cumsum(event) <= bought[split]
            store.splits[split].append(
                lengths, {"item": item, "event": event, "reward": np.where(event == 1, 1.0, 0.2)}
            )
        store.write_items(np.arange(items), np.ones(items, np.int64))
    return Prepared(path)


def from_markdown(text: str, title: str) -> dict[str, list[str]]:
    """The rows of a Markdown table, by their first cell (the n-th of the same name as name#n)."""
    block = text[text.index(f"**{title}") :].splitlines()
    lines = [line for line in block[4:] if line.strip()]
    rows: dict[str, list[str]] = {}
    for line in lines:
        if not line.startswith("|"):
            break
        first, *rest = [cell.strip().replace("**", "").replace("\\*", "") for cell in line.strip("|").split(" | ")]
        name = first.strip()
        rows[f"{name}#{sum(key.partition('#')[0] == name for key in rows)}" if name in rows else name] = rest
    return rows


def measured(content, policy: str, name: str) -> float:
    """A figure over seeds, from the long table of a file."""
    group, _, figure = name.rpartition(".")
    (row,) = [
        row
        for row in content["measurements"]
        if (row["policy"], row["seed"], row["group"], row["figure"]) == (policy, None, group or "all", figure)
    ]
    return row["mean"]
