"""What items are called: a column of the log, or a file with one row per item."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from localpolicy.data.names import columns_meant
from localpolicy.data.reading import alias
from localpolicy.errors import DataError
from localpolicy.study.log_columns import column_names, opened

Titles = Mapping[str, str]  # an item's id, as text -> its title
# Names that mean a title, the surest first; compared in small letters without marks.
NAMES = (
    "title", "itemtitle", "itemname", "producttitle", "productname", "articlename", "movietitle", "trackname", "name",
)  # fmt: skip


def title_column(names: Sequence[str]) -> str | None:
    """The column that holds titles, by its name."""
    plain = {re.sub(r"[^a-z0-9]", "", name.lower()): name for name in reversed(names)}
    return next((plain[word] for word in NAMES if word in plain), None)


def read_titles(path: Path | str, *, item: str | None = None) -> Titles:
    """The title of each item of a CSV or Parquet file. `item` is the column of the ids, where its name says nothing."""
    path = Path(path)
    names = column_names(path)
    title, item = title_column(names), item or columns_meant(names).get("item_id")
    if title is None or item is None:
        raise DataError(
            f"{path}: expected a column of item ids (such as item_id) and one of titles (such as title); its columns "
            f"are {', '.join(names)}."
        )
    with opened(path) as (engine, table):
        key, called = (f"CAST({alias(table, name)} AS VARCHAR)" for name in (item, title))
        rows = engine.rows(
            f"SELECT {key}, MIN({called}) FROM log WHERE {key} IS NOT NULL AND {called} IS NOT NULL GROUP BY 1"
        )
    return dict(rows)
