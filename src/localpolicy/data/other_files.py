"""Logs in JSON and in Excel sheets, written as Parquet, since later steps read CSV and Parquet alone.

Times stay the texts that they are in JSON, so that one rule reads all of them; a sheet's are times.
"""

from __future__ import annotations

import codecs
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from localpolicy.data.sources import JSON_LINES
from localpolicy.errors import ConfigError, DataError
from localpolicy.runtime.files import whole_file

JSON = (*JSON_LINES, ".json", ".json.gz")
EXCEL = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
MOST_UNPACKED = 2 << 30  # bytes of a workbook, which is read into memory as a whole
WESTERN = "cp1252"
AS_UTF_8 = ", in UTF-8.csv"  # end of the name of a copy
BLOCK = 1 << 20  # bytes


def is_other(path: Path) -> bool:
    """Whether the file's name ends like JSON or Excel."""
    return path.name.lower().endswith((*JSON, *EXCEL))


def as_parquet(path: Path, target: Path) -> None:
    """Write the rows of a JSON or Excel file to the Parquet file `target`."""
    tables = _sheet(path) if path.name.lower().endswith(EXCEL) else _objects(path)
    with whole_file(target) as partial:
        writer = None
        for table in tables:
            writer = writer or pq.ParquetWriter(partial, table.schema)
            writer.write_table(table)
        if writer is None:
            raise DataError(f"{path} holds no rows: expected a log with at least one.")
        writer.close()


def _objects(path: Path) -> Iterator[pa.Table]:
    """Objects of a JSON file, one a line or in one array, as tables."""
    with path.open("rb") as file:
        if not file.read(1):
            raise DataError(f"{path} is empty: expected a log with at least one row.")
    from localpolicy.data.engines.duckdb import DuckDB  # not needed where prepared data are read

    with tempfile.TemporaryDirectory() as scratch:
        engine = DuckDB(Path(scratch))
        try:
            rows = False
            for batch in engine.batches(engine.json(path)):
                rows = rows or batch.num_rows > 0
                table = pa.Table.from_batches([batch])
                while any(pa.types.is_struct(field.type) for field in table.schema):
                    table = table.flatten()  # user.id and product.id, as columns of their own
                yield table
        finally:
            engine.close()
        if not rows:
            raise DataError(f"{path} holds no rows: expected a log with at least one.")


# ---------------------------------------------------------------------- text that is not UTF-8


def is_western(path: Path) -> bool:
    """Whether a CSV file is no UTF-8 and can be Windows-1252: without a letter that UTF-8 alone would write so."""
    if not path.name.lower().endswith((".csv", ".tsv", ".txt")):
        return False
    decoder = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            try:
                decoder.decode(block)
            except UnicodeDecodeError:
                return b"\0" not in block and block.decode("utf-8", errors="ignore").isascii() and _is_western(block)
    return False


def _is_western(block: bytes) -> bool:
    try:
        block.decode(WESTERN)
    except UnicodeDecodeError:
        return False
    return True


def as_utf_8(path: Path, target: Path) -> None:
    """Write a file of Windows-1252 as UTF-8."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        whole_file(target) as partial, path.open(encoding=WESTERN, newline="") as source,
        partial.open("w", encoding="utf-8", newline="") as copy,
    ):  # fmt: skip
        try:
            shutil.copyfileobj(source, copy, BLOCK)
        except UnicodeDecodeError:
            raise DataError(f"{path} is neither UTF-8 nor Windows-1252 text: save it as UTF-8.") from None


# ---------------------------------------------------------------------- Excel


def _sheet(path: Path) -> Iterator[pa.Table]:
    """The first sheet of a workbook that holds rows; its first row names the columns."""
    try:
        import python_calamine as calamine
    except ImportError:
        raise ConfigError(
            f"{path} is a workbook, and reading one needs python-calamine: pip install 'localpolicy[excel]'. Or save "
            "the sheet as CSV."
        ) from None
    _refuse_huge(path)
    try:
        with calamine.CalamineWorkbook.from_path(path) as book:
            sheets = ((name, book.get_sheet_by_name(name).to_python()) for name in book.sheet_names)
            name, rows = next(((name, rows) for name, rows in sheets if len(rows) > 1), ("", []))
    except calamine.PasswordError:
        raise DataError(f"{path} has a password: save it without one, or as CSV.") from None
    except (calamine.CalamineError, OSError, ValueError) as error:
        raise DataError(
            f"{path} is no whole workbook ({str(error)[:200]}): it was cut short or altered, or is not what its name "
            "says. Fetch it again, or save the sheet as CSV."
        ) from None
    if not rows:
        raise DataError(f"{path} has no sheet with a row of names and rows below: expected a log with at least one.")
    names = [str(value).strip() for value in rows[0]]
    if twice := next((name for name in names if name and names.count(name) > 1), None):
        raise DataError(f"{path}: two columns of the sheet {name} are called '{twice}'. Rename one.")
    kept = [place for place, called in enumerate(names) if called]
    body = [row for row in rows[1:] if any(value != "" for value in row)]
    yield pa.table({names[place]: _column([row[place] for row in body]) for place in kept})


def _refuse_huge(path: Path) -> None:
    """Raise DataError if a small file unpacks to more than memory should hold."""
    try:
        with zipfile.ZipFile(path) as packed:
            unpacked = sum(part.file_size for part in packed.infolist())
    except (zipfile.BadZipFile, OSError, ValueError):
        unpacked = path.stat().st_size  # an old .xls, or broken: its reader says so
    if unpacked > MOST_UNPACKED:
        raise DataError(
            f"{path} unpacks to {unpacked / 2**30:.1f} GiB, and at most {MOST_UNPACKED >> 30} are read: save it as CSV."
        )


def _column(values: list[Any]) -> pa.Array:
    """Values as an array: numbers, times, truth values, or texts if they are mixed; empty cells are nulls."""
    stated = [value for value in values if value != ""]
    given = [None if value == "" else value for value in values]
    if stated and all(isinstance(value, bool) for value in stated):
        return pa.array(given, pa.bool_())
    if stated and all(isinstance(value, int | float) and not isinstance(value, bool) for value in stated):
        whole = all(float(value).is_integer() and abs(value) <= 2**53 for value in stated)
        return pa.array([None if value is None else int(value) if whole else float(value) for value in given])
    if stated and all(isinstance(value, date) for value in stated):  # a datetime is a date too
        moments = [None if value is None else _moment(value) for value in given]
        return pa.array(moments, pa.timestamp("us"))
    return pa.array([None if value is None else _text(value) for value in given], pa.string())


def _moment(value: date) -> datetime:
    return value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)


def _text(value: Any) -> str:
    """Text of a value as it is written: 14, never 14.0."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
