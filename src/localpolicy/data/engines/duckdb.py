"""DuckDB: the embedded default. Tables live in memory up to the limit, and beyond it in the scratch folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from localpolicy.data.sources import SourceTable, other_line_end
from localpolicy.errors import ConfigError, DataError
from localpolicy.runtime.full_disk import is_disk_full

ROWS_PER_BATCH = 1 << 20
TYPES = {
    r"U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)|DECIMAL\(\d+,0\)": "integer",  # warehouses write ids as decimals
    r"FLOAT|DOUBLE|DECIMAL.*": "float",
    r"VARCHAR|ENUM.*": "text",
    r"TIMESTAMP.*": "timestamp",
    r"DATE": "date",
    r"BOOLEAN": "boolean",
}


NANOSECONDS = ("TIMESTAMP_NS", "TIMESTAMPTZ_NS")
PATTERN = "*?["  # letters that make a name a pattern to DuckDB
OURS = (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException)  # about SQL, which no user writes
MEMORY = re.compile(r"\d+(\.\d+)?\s*([kmgt]i?b|%)", re.IGNORECASE)
MOST_THREADS = 1024  # DuckDB starts any number of threads


class DuckDB:
    """An `Engine` on a DuckDB database that spills into the folder `scratch`."""

    def __init__(self, scratch: Path, *, memory: str = "1GB", threads: int | None = None) -> None:
        config: dict[str, Any] = {"temp_directory": str(scratch / "spill"), "memory_limit": memory}
        if not MEMORY.fullmatch(memory.strip()) or not re.search("[1-9]", memory):
            raise ConfigError(f"memory={memory[:40]}: expected an amount such as 500MB or 2GB.")
        if threads is not None and not 1 <= threads <= MOST_THREADS:
            raise ConfigError(f"threads: expected 1 to {MOST_THREADS}, got {threads}.")
        if threads is not None:
            config["threads"] = threads
        try:
            self._connection = duckdb.connect(":memory:", config=config)
        except duckdb.Error as error:
            raise ConfigError(f"DuckDB does not accept memory={memory}, threads={threads}: {error}") from None
        # As Spark's, which cuts off what is below a millisecond; DuckDB's own rounds it.
        self._connection.execute("CREATE MACRO floor_div(a, b) AS (a - ((a % b + b) % b)) // b")
        self._connection.execute("CREATE MACRO unix_millis(instant) AS floor_div(epoch_us(instant), 1000)")
        self._rejects = ""
        self._texts: tuple[Path, ...] = ()  # text files that were opened

    def skip_malformed(self) -> None:
        self._rejects = ", store_rejects = true, rejects_limit = 0"

    def malformed(self) -> int:
        made = "SELECT COUNT(*) FROM duckdb_tables() WHERE table_name = 'reject_errors'"
        if not self._rejects or not self.rows(made)[0][0]:  # made by the first text file that is read
            return 0
        # A file is scanned more than once (for the sample, too), and each scan reports its lines.
        lines = "SELECT DISTINCT file_path, line FROM reject_errors JOIN reject_scans USING (scan_id, file_id)"
        return int(self.rows(f"SELECT COUNT(*) FROM ({lines})")[0][0])

    def read(self, view: str, table: SourceTable, *, rows: bool) -> Mapping[str, str]:
        files = "[" + ", ".join(_text(_literal(file)) for file in table.files) + "]"
        if table.format == "parquet":
            # By place: names that differ in case alone are one to DuckDB. And from the file, not from its folders.
            columns = ", ".join(f"#{place} AS c{number}" for number, place in enumerate(_places(table)))
            query = f"SELECT {columns} FROM read_parquet({files}, hive_partitioning = false)"
        else:
            columns = ", ".join(f"'c{number}': 'VARCHAR'" for number in range(len(table.names)))
            query = (
                f"SELECT * FROM read_csv({files}, columns = {{{columns}}}, header = {table.header}, quote = '\"', "
                f"delim = {_text(table.delimiter)}, auto_detect = false, "
                f"hive_partitioning = false, compression = {_compression(table)}{self._rejects})"
            )
        if rows:  # a window without an order keeps the files' own
            query = f"SELECT row_number() OVER () AS _row, * FROM ({query})"
        self._texts += table.files if table.format == "csv" else ()
        with self._errors():
            self.view(view, query)
            described = self._described(view)
            if fine := [name for name, kind in described.items() if kind in NANOSECONDS]:
                # A cast would round them, and some have no other function: what is below a microsecond is cut off.
                cut = (f"make_timestamp(CAST(floor_div(epoch_ns({name}), 1000) AS BIGINT)) AS {name}" for name in fine)
                self.view(view, f"SELECT * REPLACE ({', '.join(cut)}) FROM ({query})")
                described = self._described(view)
        return {name: _kind(described[f"c{number}"]) for number, name in enumerate(table.names)}

    def json(self, file: Path) -> str:
        """SQL of the objects in a file of JSON. Times stay texts: the rule of `times` reads them, not DuckDB's."""
        source, most = _text(_literal(file)), "maximum_object_size = 33554432"
        with self._errors():
            query = f"DESCRIBE SELECT * FROM read_json({source}, sample_size = -1, {most})"
            described = self._connection.execute(query).fetchall()
        kinds = {name: "VARCHAR" if re.match("DATE|TIME|UUID", kind) else kind for name, kind, *_ in described}
        columns = ", ".join(f"{_text(name)}: {_text(kind)}" for name, kind in kinds.items())
        return f"SELECT * FROM read_json({source}, columns = {{{columns}}}, {most})"

    def _described(self, view: str) -> dict[str, str]:
        return dict(row[:2] for row in self._connection.execute(f"DESCRIBE {view}").fetchall())

    def table(self, name: str, sql: str) -> None:
        with self._errors():
            self._connection.execute(f"CREATE OR REPLACE TABLE {name} AS {sql}")

    def drop(self, *tables: str) -> None:
        for name in tables:
            self._connection.execute(f"DROP TABLE {name}")

    def view(self, name: str, sql: str) -> None:
        self._connection.execute(f"CREATE OR REPLACE VIEW {name} AS {sql}")

    def small(self, name: str, content: pa.Table) -> None:
        self._connection.register("arriving", content)
        self._connection.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM arriving")
        self._connection.unregister("arriving")

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self._errors():
            return list(self._connection.execute(sql).fetchall())

    def arrow(self, sql: str) -> pa.Table:
        return self._connection.sql(sql).to_arrow_table()

    def batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        with self._errors():
            result = self._connection.sql(sql)
            # DuckDB 2 renamed it; both stream, so that Python never holds the whole result.
            stream = getattr(result, "to_arrow_reader", None) or result.fetch_record_batch
            yield from stream(ROWS_PER_BATCH)

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Context manager: turn DuckDB's errors about files, memory and disk into ours."""
        try:
            yield
        except duckdb.Error as error:
            if is_disk_full(error):
                remedy = "Free some space, choose --scratch on another, or raise --memory so that less goes there."
                raise DataError(f"the disk is full ({_first(error)}). {remedy}") from None
            if isinstance(error, duckdb.OutOfMemoryException):
                raise ConfigError(
                    f"DuckDB needs more memory than it was given ({_first(error)}). Raise --memory."
                ) from None
            if isinstance(error, duckdb.NotImplementedException):
                raise DataError(
                    "DuckDB cannot read this log to its end. A line or a quoted value may be longer than 32 MB."
                ) from None
            if isinstance(error, OURS):
                raise
            raise DataError(
                self._mixed_ends(error) or _malformed(error)
            ) from None  # a flipped bit may be anything to whoever decodes it

    def _mixed_ends(self, error: Exception) -> str:
        """Message on a file whose lines end in two ways, which DuckDB does not name; empty for other errors."""
        if "state machine" in str(error):
            for file in self._texts:
                if found := other_line_end(file):
                    number, end, first = found
                    return (
                        f"{file}, line {number}: it ends in {end}, and line 1 in {first}. Give all lines the same end."
                    )
        return ""


def _literal(file: Path) -> str:
    """SQL literal of a file's name, which DuckDB must not take for a pattern or a home folder."""
    name = str(file)
    if "\\" in name and any(mark in name for mark in PATTERN):
        raise DataError(f"{file}: DuckDB cannot open a name with both a backslash and one of {PATTERN}. Rename it.")
    name = "".join(f"[{letter}]" if letter in PATTERN else letter for letter in name)
    return f"./{name}" if name.startswith("~") else name


def _compression(table: SourceTable) -> str:
    """Compression by the ends of the names, stated since DuckDB looks for it before a question mark."""
    packed = {file.name.endswith(".gz") for file in table.files}
    return _text("auto" if len(packed) > 1 else "gzip" if packed == {True} else "none")


def _places(table: SourceTable) -> list[int]:
    """Positions of the table's columns in its Parquet files, from 1."""
    all_names = pq.read_schema(table.files[0]).names
    places = {name: place for place, name in reversed(list(enumerate(all_names, 1)))}
    return [places[name] for name in table.names]


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _kind(sql_type: str) -> str:
    return next((kind for pattern, kind in TYPES.items() if re.fullmatch(pattern, sql_type)), "other")


def _malformed(error: Exception) -> str:
    """File, line and remedy from DuckDB's report of a line it could not cut."""
    text = str(error)
    text = text[:4000] + text[-4000:]  # it may quote a line without end
    line, original = re.search(r"CSV Error on Line: (\d+)", text), re.search(r"Original Line: ?(.*)", text)
    file, column_counts = re.search(r"file = (.*)", text), re.search(r"Expected Number of Columns.*", text)
    if line and file:
        what = column_counts[0] if column_counts else "the line cannot be cut into columns"
        quoted = f" ('{original[1][:80]}')" if original else ""
        return f"{file[1]}, line {line[1]}{quoted}: {what}. Fix it, or skip such lines with --skip-bad-rows."
    return f"{_first(error)} The file was cut short or altered, or is not what its name says: fetch it again."


def _first(error: Exception) -> str:
    return str(error)[:2000].strip().splitlines()[0][:300]
