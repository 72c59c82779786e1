"""A log as a file, asked by SQL: what its columns hold, and the titles of items."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from localpolicy.data.column_names import columns_meant
from localpolicy.data.engines.duckdb import DuckDB
from localpolicy.data.log_schema import ROW, SAMPLE, alias, joined
from localpolicy.data.sources import SourceTable, delimiter_of, file_format, first_line, parquet_schema, split_line
from localpolicy.data.times import Notation, goes_one_way, seems_sorted, written
from localpolicy.errors import DataError

NO, YES = ("0", "0.0", "false", "no", "n", "f", "nein", "non"), ("1", "1.0", "true", "yes", "y", "t", "ja", "oui", "si")
ANSWERS = {
    form: event
    for words, event in ((NO, "none"), (YES, "click"))
    for word in words
    for form in (word, word.capitalize(), word.upper())
}
EPOCHS = {"s": (3e8, 4.2e9), "ms": (3e11, 4.2e12), "us": (3e14, 4.2e15), "ns": (3e17, 4.2e18)}  # 1979 to 2103
STREAM = 0.98  # share of answers that follow a row that says their item was shown
FEWEST_ANSWERS = 10  # least number of answers for that
KEPT = 256 << 20  # bytes of a CSV file up to which its rows are parsed once


class LogColumns:
    """Columns of one log, by their names in the file; a+b is two of them together."""

    def __init__(self, engine: DuckDB, table: SourceTable) -> None:
        self.engine, self.table, self.names = engine, table, table.names

    def sql(self, name: str) -> str:
        """Return SQL of the column; of several together as one text."""
        parts = ["row_number() OVER ()" if part == ROW else alias(self.table, part) for part in name.split("+")]
        return parts[0] if len(parts) == 1 else f"CAST({joined(parts)} AS VARCHAR)"

    def share(self, name: str, condition: str) -> float:
        """Return the share of the non-null rows of a column that meet a SQL condition."""
        value = alias(self.table, name)
        query = f"SELECT AVG(CASE WHEN {condition.format(value)} THEN 1.0 ELSE 0.0 END) FROM log"
        return float(self.engine.rows(f"{query} WHERE {value} IS NOT NULL")[0][0] or 0.0)

    def count(self, what: str = "*") -> int:
        """Return COUNT(`what`) over all rows."""
        return int(self.engine.rows(f"SELECT COUNT({what}) FROM log")[0][0])

    def distinct(self, name: str) -> int:
        """Return the number of distinct values of a column."""
        return self.count(f"DISTINCT {self.sql(name)}")

    def example(self, name: str) -> str:
        """Return one value of a column, as text."""
        value = f"CAST({self.sql(name)} AS VARCHAR)"
        found = self.engine.rows(f"SELECT {value} FROM log WHERE {value} IS NOT NULL LIMIT 1")
        return str(found[0][0]) if found else ""

    def stated(self, name: str) -> float:
        """Return the share of rows with a value in this column."""
        return self.count(self.sql(name)) / max(self.count(), 1)

    def several(self, who: str, name: str) -> int:
        """Return the number of values of the column `who` that occur with several values of the column `name`."""
        each = f"SELECT {self.sql(who)} FROM log GROUP BY 1 HAVING COUNT(DISTINCT {self.sql(name)}) > 1"
        return int(self.engine.rows(f"SELECT COUNT(*) FROM ({each})")[0][0])

    def sequences_by(self, who: str, name: str) -> dict[str, int]:
        """Return, for each value of the column `name`, the number of distinct values of the column `who`."""
        query = f"SELECT {self.sql(name)}, COUNT(DISTINCT {self.sql(who)}) FROM log GROUP BY 1"
        return {str(value): int(count) for value, count in self.engine.rows(query)}

    def number(self, name: str) -> str:
        """Return SQL of the value as a number."""
        return f"TRY_CAST({alias(self.table, name)} AS DOUBLE)"

    def numeric(self, name: str) -> bool:
        """Whether nearly all values of a column are numbers."""
        return self.share(name, "TRY_CAST({} AS DOUBLE) IS NOT NULL") > 0.95

    def answers(self, name: str) -> bool:
        """Whether a column holds yes or no (0 or 1, true or false)."""
        return self.distinct(name) == 2 and set(self.values(name)) <= set(ANSWERS)

    def values(self, name: str) -> dict[str, int]:
        """Return {value: count} of a column (a+b: the two together), the most frequent first."""
        value = f"CAST({self.sql(name)} AS VARCHAR)"
        query = f"SELECT {value}, COUNT(*) FROM log WHERE {value} IS NOT NULL GROUP BY 1 ORDER BY 2 DESC, 1"
        return {str(value): int(count) for value, count in self.engine.rows(query)}

    def epoch(self, name: str) -> str | None:
        """Return the unit in which a column's numbers are times since 1970, by their median; None if they are not."""
        if "+" in name or not self.numeric(name):
            return None
        middle = self.engine.rows(f"SELECT MEDIAN({self.number(name)}) FROM log")[0][0]
        return next((unit for unit, (low, high) in EPOCHS.items() if middle and low <= middle < high), None)

    def times(self, name: str, *, asked: Notation | None = None) -> tuple[Notation, str]:
        """Return the notation of a column's times (`asked`, or by the rule of `prepare`), and one of its values."""
        text = f"typeof({self.sql(name)}) = 'VARCHAR'"  # timestamps are read as they are
        first = [row[0] for row in self.engine.rows(f"SELECT {self.sql(name)} FROM log WHERE {text} LIMIT {SAMPLE}")]
        first = [value for value in first if value is not None]
        return written(first, self.engine.rows, "log", self.sql(name), asked=asked), str(first[0]) if first else ""

    def is_sorted(self, sequence: str, name: str) -> bool:
        """Whether the rows of each sequence are sorted by the column `name`, up or down."""
        value = self.number(name) if self.numeric(name) else f"CAST({alias(self.table, name)} AS VARCHAR)"
        numbered = self._numbered(sequence, value)
        count, up = self._steps(numbered)
        places = f"SELECT s, n, PERCENT_RANK() OVER (ORDER BY v) AS q FROM ({numbered}) WHERE v IS NOT NULL"
        ends = f"SELECT ARG_MAX(q, n) - ARG_MIN(q, n) AS far FROM ({places}) GROUP BY s HAVING COUNT(*) > 1"
        reach = self.engine.rows(f"SELECT AVG(ABS(far)) FROM ({ends})")[0][0]
        return seems_sorted(count, up, float(reach or 0.0))

    def rises(self, sequence: str, name: str) -> bool:
        """Whether a column's numbers rise from row to row of each sequence, or fall if the newest row comes first."""
        return goes_one_way(*self._steps(self._numbered(sequence, self.number(name))))

    def _numbered(self, sequence: str, value: str) -> str:
        """Return SQL of the rows in the file's order: their number n, sequence s and a value v."""
        return f"SELECT row_number() OVER () AS n, {self.sql(sequence.split('+')[0])} AS s, {value} AS v FROM log"

    def _steps(self, numbered: str) -> tuple[int, float]:
        """Return how often v changes from one row of a sequence to the next, and the share of rises among these."""
        steps = f"SELECT v, LAG(v) OVER (PARTITION BY s ORDER BY n) AS before FROM ({numbered})"
        query = f"SELECT COUNT(*), AVG(CASE WHEN v > before THEN 1.0 ELSE 0.0 END) FROM ({steps}) WHERE v <> before"
        count, up = self.engine.rows(query)[0]
        return int(count), float(up or 0.0)

    def are_lists(self, request: str, place: str) -> bool:
        """Whether the rows of a request have distinct places, and some requests have several rows."""
        if self.share(place, "TRY_CAST({0} AS DOUBLE) >= 0 AND TRY_CAST({0} AS DOUBLE) % 1 = 0") < 1:
            return False
        counts = f"COUNT(*) AS n, COUNT(DISTINCT {self.number(place)}) AS places"
        each = f"SELECT {counts} FROM log GROUP BY {self.sql(request)}"
        several, apart = self.engine.rows(
            f"SELECT MAX(n), AVG(CASE WHEN n = places THEN 1.0 ELSE 0.0 END) FROM ({each})"
        )[0]
        return int(several or 0) > 1 and float(apart) > 0.95

    def shown_before(self, pair: str, event: str, shown: Mapping[str, str]) -> bool:
        """Whether answers follow rows that say their item was shown: a stream of events."""
        words = ", ".join("'" + word.replace("'", "''") + "'" for word in shown)
        columns = f"{self.sql(pair)} AS pair, {self.sql(event)} IN ({words}) AS shown"
        one = f"SELECT row_number() OVER () AS n, {columns} FROM log"
        query = f"""SELECT COUNT(*), AVG(CASE WHEN first_shown < first_answered THEN 1.0 ELSE 0.0 END) FROM (
            SELECT pair, MIN(CASE WHEN shown THEN n END) AS first_shown, MIN(CASE WHEN NOT shown THEN n END) AS
            first_answered FROM ({one}) GROUP BY pair) WHERE first_answered IS NOT NULL"""
        count, before = self.engine.rows(query)[0]
        return int(count) >= FEWEST_ANSWERS and float(before) >= STREAM


def column_names(path: Path) -> tuple[str, ...]:
    """Return the names of the columns of a CSV or Parquet file."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise DataError(f"{path} {what}: expected a CSV or Parquet file, one row per event.")
    if file_format(path) == "parquet":
        return tuple(parquet_schema(path).names)
    line = first_line(path)
    return split_line(line, delimiter_of(line))


def list_columns(path: Path) -> tuple[str, ...]:
    """Return the names of the columns of a Parquet file that hold lists."""
    if file_format(path) != "parquet":
        return ()
    return tuple(field.name for field in parquet_schema(path) if pa.types.is_nested(field.type))


@contextmanager
def opened(path: Path, *, skip_malformed: bool = False) -> Iterator[tuple[DuckDB, SourceTable]]:
    """Context manager: open a CSV or Parquet file as the view `log`, cut into columns as in `prepare`."""
    names, kind = column_names(path), file_format(path)
    delimiter = delimiter_of(first_line(path)) if kind == "csv" else ""
    table = SourceTable(files=(path,), format=kind, columns={}, names=names, delimiter=delimiter)
    with tempfile.TemporaryDirectory() as scratch:
        engine = DuckDB(Path(scratch))
        try:
            if skip_malformed:
                engine.skip_malformed()
            engine.read("log", table, rows=False)
            if kind == "csv" and path.stat().st_size <= KEPT:  # else each of some forty questions parses it again
                engine.table("parsed", "SELECT * FROM log")
                engine.view("log", "SELECT * FROM parsed")
            yield engine, table
        finally:
            engine.close()


# ---------------------------------------------------------------------- titles


Titles = Mapping[str, str]  # an item's id, as text -> its title
# Names that mean a title, the surest first; compared in small letters without marks.
TITLES = (
    "title", "itemtitle", "itemname", "producttitle", "productname", "articlename", "movietitle", "trackname", "name",
)  # fmt: skip


def title_column(names: Sequence[str]) -> str | None:
    """Return the column that holds titles, by its name; None if there is none."""
    plain = {re.sub(r"[^a-z0-9]", "", name.lower()): name for name in reversed(names)}
    return next((plain[word] for word in TITLES if word in plain), None)


def read_titles(path: Path | str, *, item: str | None = None) -> Titles:
    """Read the title of each item from a CSV or Parquet file. `item` is the column of ids, if not a usual name."""
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
    # As in logs, 14.0 is the id 14 (unless others show that ids are texts).
    whole = {match[1]: title for key, title in rows if (match := re.fullmatch(r"(-?\d+)[.]0+", key))}
    return whole | dict(rows)
