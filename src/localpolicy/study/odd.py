"""Columns that are written as people write them: 31.12.2024, 12/31/2024 23:59, 4,5. A log with such is written anew.

`prepare` reads ISO times and numbers with points alone, so that nothing is guessed there. `go` may guess, and says so.
Days and months are told apart by a number above 12; 31.12.2024 always begins with the day. Where neither tells, it
asks.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from localpolicy.data.engines.duckdb import DuckDB
from localpolicy.data.reading import alias
from localpolicy.errors import DataError
from localpolicy.runtime.files import whole_file
from localpolicy.study.guess import opened

NUMBER = "-?[0-9]+,[0-9]+"
WHOLE = "-?[0-9]+"
DATE = "([0-9]{1,2})([./-])([0-9]{1,2})[./-][0-9]{4}([ T][0-9]{1,2}:[0-9]{2}(:[0-9]{2})?)?"
COPY = ", plainly written.parquet"  # how the name of a log's copy ends
LOOKED_AT = 1000  # rows that tell which columns to look at


def plainly_written(path: Path, folder: Path) -> tuple[Path, tuple[str, ...]]:
    """The log itself, or its copy under `folder` with ISO times and decimal points; and what was read how."""
    with opened(path) as (engine, table):
        changed, notes = {}, []
        for name in table.names:
            found = _number(engine, alias(table, name)) or _date(engine, alias(table, name), f"{path}: {name}")
            if found is not None:
                changed[name], said = found
                notes.append(f"{name} {said}")
        if not changed:
            return path, ()
        columns = ", ".join(changed.get(name, alias(table, name)) for name in table.names)
        copy = folder / f"{path.stem}{COPY}"
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(copy) as partial:
            writer = None
            for batch in engine.batches(f"SELECT {columns} FROM log"):
                part = pa.Table.from_batches([batch]).rename_columns(list(table.names))
                writer = writer or pq.ParquetWriter(partial, part.schema)
                writer.write_table(part)
            if writer is not None:
                writer.close()
    return copy, tuple(notes)


def _share(engine: DuckDB, column: str, pattern: str, *, rows: str = "log") -> float:
    """Of the values that there are, how many have this form."""
    value = f"CAST({column} AS VARCHAR)"
    query = f"SELECT AVG(CASE WHEN regexp_full_match({value}, '{pattern}') THEN 1.0 ELSE 0.0 END) FROM {rows}"
    return float(engine.rows(f"{query} WHERE {column} IS NOT NULL AND {value} <> ''")[0][0] or 0.0)


def _first(column: str) -> str:
    return f"(SELECT {column} FROM log LIMIT {LOOKED_AT})"


def _number(engine: DuckDB, column: str) -> tuple[str, str] | None:
    """Numbers with decimal commas; whole ones may stand among them."""
    if not _share(engine, column, NUMBER, rows=_first(column)):
        return None
    if _share(engine, column, f"{NUMBER}|{WHOLE}") < 1:
        return None
    return f"replace(CAST({column} AS VARCHAR), ',', '.')", "holds numbers with decimal commas, read as such"


def _date(engine: DuckDB, column: str, where: str) -> tuple[str, str] | None:
    """Times with the day or the month first."""
    if _share(engine, column, DATE, rows=_first(column)) < 1 or _share(engine, column, DATE) < 1:
        return None
    first, mark, second = (f"regexp_extract(CAST({column} AS VARCHAR), '{DATE}', {group})" for group in (1, 2, 3))
    query = f"SELECT MAX(TRY_CAST({first} AS INT)), MAX(TRY_CAST({second} AS INT)), MIN({mark}), MIN({column}) FROM log"
    most_first, most_second, point, example = engine.rows(query)[0]
    if most_first > 12 and most_second > 12:
        return None  # no date: prepare says what is wrong with it
    if most_first <= 12 and most_second <= 12 and point != ".":
        raise DataError(
            f"{where}: is {example} the day or the month first? No value tells. Write the times as 2024-12-31."
        )
    day_first = most_first > 12 or (most_second <= 12 and point == ".")
    date = "%d{0}%m{0}%Y" if day_first else "%m{0}%d{0}%Y"
    text = f"replace(CAST({column} AS VARCHAR), 'T', ' ')"
    forms = ", ".join(f"'{date.format(point)}{clock}'" for clock in (" %H:%M:%S", " %H:%M", ""))
    said = f"holds times such as {example}, read with the {'day' if day_first else 'month'} first"
    return f"strftime(strptime({text}, [{forms}]), '%Y-%m-%d %H:%M:%S')", said
