"""Contents of a log's filters: their items, in the log's own ids, become indices in the data set.

A filter has a name (column `filter`: a digest, say; empty without a filter), and on at least one row of each name its
items (`filter_content`), as JSON: {"exclude": [...]}, {"candidates": [...]}, or both. A name stands for one set of
items: if items that a person has seen are left out, each history has a filter of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from localpolicy.data import sql
from localpolicy.data.engines import Engine
from localpolicy.data.item_filters import FilterWriter
from localpolicy.errors import DataError

CHARACTERS = 1 << 26  # of contents that are read at once
EXPECTED = 'expected {"exclude": [item, ...]}, {"candidates": [item, ...]} or both'


def write_filters(data: Path, engine: Engine, item_id: pa.Array) -> None:
    """Write the contents of the table `item_filters`, a few at a time; `item_id` is the catalogue, by index."""
    if named_twice := engine.rows(sql.TWO_CONTENTS):
        raise DataError(
            f"filter '{named_twice[0][0]}' has different items on different rows (filter_content). Give each set of "
            "items a name of its own, such as its digest."
        )
    count, characters = engine.rows(sql.FILTER_SIZES)[0]
    step = max(1, CHARACTERS * int(count) // max(int(characters), 1))
    with FilterWriter(data) as writer:
        for first in range(0, int(count), step):
            contents = engine.arrow(sql.filter_contents(first, first + step))
            parsed = [_parsed(*row) for row in zip(*contents.to_pydict().values(), strict=True)]
            found = _indices([ids for lists in parsed for ids in lists if ids is not None], item_id)
            for exclude, candidates in parsed:
                gone = next(found) if exclude is not None else np.zeros(0, np.int32)
                if candidates is None:
                    writer.append(gone, allows=False)
                else:
                    writer.append(np.setdiff1d(next(found), gone), allows=True)


def _parsed(name: str, content: str) -> tuple[list[Any] | None, list[Any] | None]:
    """Items that a filter leaves out, and the only ones that it allows; None for either if not stated."""
    try:
        read = json.loads(content)
    except ValueError as error:
        raise DataError(f"filter_content of filter '{name}' is not JSON ({error}); {EXPECTED}.") from None
    lists = [read.get(key) for key in ("exclude", "candidates")] if isinstance(read, dict) else []
    if all(ids is None for ids in lists) or not all(ids is None or isinstance(ids, list) for ids in lists):
        raise DataError(f"filter_content of filter '{name}' is {content[:80]}; {EXPECTED}.")
    return lists[0], lists[1]


def _indices(lists: Sequence[Sequence[Any]], item_id: pa.Array) -> Iterator[np.ndarray]:
    """Catalogue indices of these ids, list by list, without ids that the catalogue lacks."""
    flat = [item for ids in lists for item in ids]
    if pa.types.is_string(item_id.type) or pa.types.is_large_string(item_id.type):
        flat = [str(item) for item in flat]
    try:
        asked = pa.array(flat, item_id.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise DataError(
            f"filter_content names items of another type than the log's {item_id.type} ({error})."
        ) from None
    index = pc.index_in(asked, value_set=item_id)
    known = index.is_valid().to_numpy(zero_copy_only=False)
    numbers = index.fill_null(0).to_numpy()
    bounds = np.cumsum([0, *(len(ids) for ids in lists)])
    return (numbers[first:stop][known[first:stop]] for first, stop in pairwise(bounds))
