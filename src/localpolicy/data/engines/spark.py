"""Spark: the same SQL on a user's session or cluster, when one machine is outgrown.

Ordered results go through Parquet files in the scratch folder, which driver and executors must both reach.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from localpolicy.data.sources import SourceTable
from localpolicy.errors import ConfigError, DataError
from localpolicy.runtime.full_disk import is_disk_full

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_BATCH = 1 << 20
ROWS_PER_FILE = 2**36  # of a Parquet file, at most: rows are numbered by file, then row
CORRUPT = "_corrupt"
LOCAL = "local[*]"
TYPES = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), "integer"),
    **dict.fromkeys(("float", "double", "decimal"), "float"),
    **dict.fromkeys(("timestamp", "timestamp_ntz"), "timestamp"),
    "string": "text",
    "date": "date",
    "boolean": "boolean",
}
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.legacy.parquet.nanosAsLong": "true",  # else files with nanoseconds are refused
    "spark.sql.csv.parser.columnPruning.enabled": "false",  # else short and long lines go unnoticed
}
ARROW_TYPES = {pa.int32(): "int", pa.int64(): "bigint", pa.float64(): "double", pa.string(): "string"}


class Spark:
    """An `Engine` on a SparkSession: the one given, or one started on `master`."""

    def __init__(self, scratch: Path, *, session: SparkSession | None = None, master: str | None = None) -> None:
        try:
            from pyspark.sql import SparkSession
        except ImportError:
            raise ConfigError("--engine spark needs pyspark: pip install 'localpolicy[spark]'.") from None
        self._scratch = scratch
        self._started = session is None
        if session is None:
            try:
                builder = SparkSession.builder.appName("localpolicy")
                for quiet in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
                    builder = builder.config(quiet, "false")
                if (master or LOCAL).startswith("local"):  # all of it runs here: no other machine may reach it
                    for own in ("spark.driver.host", "spark.driver.bindAddress"):
                        builder = builder.config(own, "127.0.0.1")
                session = builder.master(master or LOCAL).getOrCreate()
                session.sparkContext.setLogLevel("ERROR")
            except Exception as error:  # py4j raises its own kinds, and plain RuntimeError where Java is missing
                raise ConfigError(
                    f"Spark did not start ({_first(error)}). It needs a Java 17 runtime; see 'lpi doctor'."
                ) from None
        self._parent = session
        self._session = session.newSession()  # our settings and views stay out of the user's
        for name, value in SETTINGS.items():
            self._session.conf.set(name, value)
        self._skip, self._malformed, self._results = False, 0, 0
        self._tables: dict[str, Path] = {}  # name -> its files

    def skip_malformed(self) -> None:
        self._skip = True

    def malformed(self) -> int:
        return self._malformed

    def read(self, view: str, table: SourceTable, *, rows: bool) -> Mapping[str, str]:
        with _errors():
            frame = self._parquet(table, rows=rows) if table.format == "parquet" else self._csv(table, rows=rows)
            frame.createOrReplaceTempView(view)
        kinds = {name: _kind(kind) for name, kind in frame.dtypes}
        return {name: kinds[f"c{number}"] for number, name in enumerate(table.names)}

    def _parquet(self, table: SourceTable, *, rows: bool) -> DataFrame:
        from pyspark.sql import functions as F

        def read(number: int, file: Path) -> DataFrame:
            frame = self._session.read.option("recursiveFileLookup", "true").parquet(_literal(file))
            plain = {"timestamp_ntz": "timestamp"}
            columns = [
                F.col(f"`{name}`").cast(plain.get(kind, kind)).alias(f"c{index}")
                for index, (name, kind) in enumerate((name, dict(frame.dtypes)[name]) for name in table.names)
            ]
            position = F.lit(number * ROWS_PER_FILE + 1) + F.col("_metadata.row_index")
            return frame.select(*columns, *([position.alias("_row")] if rows else []))

        return reduce(lambda left, right: left.unionAll(right), (read(*pair) for pair in enumerate(table.files)))

    def _csv(self, table: SourceTable, *, rows: bool) -> DataFrame:
        if rows:
            raise ConfigError(
                f"Spark reads text files in no order, and {table.files[0]} has no times to order it by. "
                "Write it as Parquet, map a timestamp column, or use --engine duckdb."
            )
        from pyspark.sql import functions as F

        names = [f"c{number}" for number in range(len(table.names))]
        frame = self._session.read.csv(
            [_literal(file) for file in table.files],
            schema=", ".join(f"{name} STRING" for name in [*names, CORRUPT]),
            sep=table.delimiter,
            header=table.header,
            quote='"',
            escape='"',
            mode="PERMISSIVE",
            columnNameOfCorruptRecord=CORRUPT,
            recursiveFileLookup=True,  # else folders such as event=click become columns
        )
        malformed = frame.where(F.col(CORRUPT).isNotNull()).select("c0", CORRUPT).rdd.count()
        if malformed and not self._skip:
            _name_malformed(table, self._scratch)
        self._malformed += malformed
        return frame.where(F.col(CORRUPT).isNull()).select(*names)

    def table(self, name: str, sql: str) -> None:
        # Written and read back rather than cached: the plans of repeated filters would grow without bound.
        with _errors():
            frame = self._session.sql(sql)
            folder = self._write(frame)
            self._session.read.schema(frame.schema).parquet(str(folder)).createOrReplaceTempView(name)
        self._tables[name] = folder

    def drop(self, *tables: str) -> None:
        for name in tables:
            self._session.catalog.dropTempView(name)
            shutil.rmtree(self._tables.pop(name), ignore_errors=True)

    def _write(self, frame: DataFrame) -> Path:
        folder = self._scratch / f"result_{self._results}"
        self._results += 1
        frame.write.parquet(str(folder))
        return folder

    def view(self, name: str, sql: str) -> None:
        with _errors():
            self._session.sql(sql).createOrReplaceTempView(name)

    def small(self, name: str, content: pa.Table) -> None:
        schema = ", ".join(f"`{field.name}` {ARROW_TYPES[field.type]}" for field in content.schema)
        rows = [tuple(row.values()) for row in content.to_pylist()]
        self._session.createDataFrame(rows, schema).createOrReplaceTempView(name)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with _errors():
            return [tuple(row) for row in self._session.sql(sql).collect()]

    def arrow(self, sql: str) -> pa.Table:
        return pa.Table.from_batches(list(self.batches(sql)))

    def batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        with _errors():
            folder = self._write(self._session.sql(sql))
        for part in sorted(folder.glob("part-*.parquet")):  # Spark numbers the parts of an ordered result in order
            yield from pq.ParquetFile(part).iter_batches(ROWS_PER_BATCH)

    def close(self) -> None:
        if self._started:
            self._parent.stop()


def _kind(sql_type: str) -> str:
    """Our name of an SQL type; warehouses write whole numbers as decimals."""
    return "integer" if re.fullmatch(r"decimal\(\d+,0\)", sql_type) else TYPES.get(sql_type.split("(")[0], "other")


def _literal(file: Path) -> str:
    """SQL literal of a file's name, which Hadoop must not take for a pattern."""
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", str(file))


def _name_malformed(table: SourceTable, scratch: Path) -> None:
    """Raise DataError with the bad line, which DuckDB finds: Spark only knows that there is one."""
    from localpolicy.data.engines.duckdb import DuckDB

    (scratch / "malformed").mkdir()
    engine = DuckDB(scratch / "malformed")
    try:
        engine.read("suspect", table, rows=False)
        engine.rows("SELECT MAX(c0) FROM suspect")
    finally:
        engine.close()
    raise DataError(f"{table.files[0]}: some lines cannot be cut into columns. Pass over them with --skip-bad-rows.")


@contextmanager
def _errors() -> Iterator[None]:
    """Context manager: turn Spark's errors about files and disk into ours."""
    from pyspark.errors import PySparkException

    logging.getLogger("py4j").setLevel(logging.ERROR)
    try:
        yield
    except PySparkException as error:
        if is_disk_full(error):
            raise DataError("the disk is full. Free some space, or choose --scratch on another.") from None
        raise DataError(f"Spark could not read or compute this ({_first(error)}).") from None


def _first(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:300]
