"""What a policy would change, for a person's eye: the items that it shows more and less.

A figure may praise a policy that shows fuel to everybody. The list of what moved most says so before any figure does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from localpolicy.measure.position_metrics import Scores
from localpolicy.model.lists import names_of

MOST = 10  # items, of both directions together


class Moved(NamedTuple):
    """An item, and the shares of positions at which the old and the new policy show it first."""

    item: int
    name: str
    before: float
    after: float

    @property
    def change(self) -> float:
        return self.after - self.before


class MostMoved(NamedTuple):
    """Items by the size of their change, largest first."""

    more: tuple[Moved, ...]
    less: tuple[Moved, ...]
    moved: float  # half of the sum of all changes: the share of contexts that see another item first


def first_shares(scores: Scores, *, n_items: int) -> np.ndarray:
    """Share of positions at which a policy shows each item first: [V]."""
    return np.bincount(scores.top.astype(np.int64), minlength=n_items) / max(len(scores), 1)


def taken_shares(scores: Scores, *, n_items: int) -> np.ndarray:
    """Share of positions at which each item was logged: [V]."""
    return np.bincount(scores.item.astype(np.int64), minlength=n_items) / max(len(scores), 1)


def most_moved(
    before: np.ndarray,
    after: np.ndarray,
    catalogue: pa.Table,
    *,
    titles: Mapping[str, str] | None = None,
    most: int = MOST,
) -> MostMoved:
    """Items whose shares [V] changed most, with display names from titles, the catalogue or their ids."""
    change = after - before
    order = np.argsort(-np.abs(change), kind="stable")[:most]
    items = [int(item) for item in order if change[item] != 0]
    ids = [str(each) for each in catalogue["item_id"].take(pa.array(items, pa.int64())).to_pylist()]
    names = [(titles or {}).get(each, name) for each, name in zip(ids, names_of(catalogue, items) or ids, strict=True)]
    rows = [Moved(item, name, float(before[item]), float(after[item])) for item, name in zip(items, names, strict=True)]
    more, less = (tuple(row for row in rows if row.change * sign > 0) for sign in (1, -1))
    return MostMoved(more, less, float(np.abs(change).sum()) / 2)
