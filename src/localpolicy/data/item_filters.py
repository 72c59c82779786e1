"""Filters under which lists were drawn: each distinct one once, as item indices; rows refer to them by number.

DATA/filters/offsets.npy [F+1], items.npy [L]   the items of filter f are items[offsets[f]:offsets[f+1]], ascending
DATA/filters/allows.npy [F]                     1: these alone could be shown; 0: all but these
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np

from localpolicy.data.growing_files import ArrayFile, open_array
from localpolicy.errors import DataError

FOLDER = "filters"
DTYPES = {"offsets": np.int64, "items": np.int32, "allows": np.uint8}


class StoredFilters(NamedTuple):
    """Filters of a prepared data set, memory-mapped."""

    offsets: np.ndarray
    items: np.ndarray
    allows: np.ndarray


def open_filters(data: Path) -> StoredFilters:
    """Open the filters in the data set at `data`; DataError if they do not fit together."""
    filters = StoredFilters(*(open_array(data / FOLDER / f"{name}.npy", dtype) for name, dtype in DTYPES.items()))
    offsets, items, allows = filters
    if len(offsets) != len(allows) + 1 or offsets[0] != 0 or offsets[-1] != len(items):
        raise DataError(f"{data / FOLDER} was altered: its arrays do not fit together. Prepare the data set again.")
    return filters


class FilterWriter:
    """Context manager that appends filters to a data set that is being written."""

    def __init__(self, data: Path) -> None:
        (data / FOLDER).mkdir()
        self._files = {name: ArrayFile(data / FOLDER / f"{name}.npy", dtype) for name, dtype in DTYPES.items()}
        self._files["offsets"].append(np.zeros(1))

    def append(self, items: np.ndarray, *, allows: bool) -> None:
        """Append a filter: its items, and whether they are allowed or excluded."""
        self._files["items"].append(np.unique(items))
        self._files["allows"].append(np.array([allows]))
        self._files["offsets"].append(np.array([self._files["items"].length]))

    def __enter__(self) -> FilterWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for file in self._files.values():
            file.close()


def subset(filters: StoredFilters, used: Sequence[int], data: Path) -> None:
    """Write these filters to another data set, renumbered in this order."""
    with FilterWriter(data) as writer:
        for number in used:
            first, stop = filters.offsets[number : number + 2]
            writer.append(filters.items[first:stop], allows=bool(filters.allows[number]))
