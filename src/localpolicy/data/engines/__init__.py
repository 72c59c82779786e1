"""Interface of an engine for `prepare`. The SQL is the same for all of them; an adapter only carries it there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import pyarrow as pa

from localpolicy.data.sources import SourceTable


class Engine(Protocol):
    """Runner of SQL over files and small tables."""

    def read(self, view: str, table: SourceTable, *, rows: bool) -> Mapping[str, str]:
        """Make `view` over the files: columns c0, c1, …, and `_row` with `rows`. Return each column's type:
        integer, float, text, timestamp, date, boolean or other."""

    def skip_malformed(self) -> None:
        """Skip and count lines that cannot be cut into columns, from now on."""

    def malformed(self) -> int:
        """Number of lines that were skipped."""

    def table(self, name: str, sql: str) -> None:
        """Compute `sql` once and keep the result as `name`."""

    def drop(self, *tables: str) -> None:
        """Drop tables that nothing will read again."""

    def view(self, name: str, sql: str) -> None:
        """Define `name` as the view `sql`."""

    def small(self, name: str, content: pa.Table) -> None:
        """Make a small table known as `name`."""

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a small result."""

    def arrow(self, sql: str) -> pa.Table:
        """Small result as a table."""

    def batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        """Large result, in order, a batch at a time."""

    def close(self) -> None:
        """Close the engine; its tables are gone."""
