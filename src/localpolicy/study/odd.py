"""Numbers with decimal commas (4,5) or signs ($9.90, 85 %): `prepare` reads plain ones, so `go` writes the log anew."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from localpolicy.data.engines.duckdb import DuckDB
from localpolicy.data.reading import alias
from localpolicy.runtime.files import whole_file
from localpolicy.study.log_columns import opened

NUMBER = "-?[0-9]+,[0-9]+"
SIGN = "[$€£¥₹₽%]"
SIGNED = f"{SIGN} ?-?[0-9]+([.,][0-9]+)?|-?[0-9]+([.,][0-9]+)? ?{SIGN}"
WHOLE = "-?[0-9]+"
COPY = ", plainly written.parquet"  # how the name of a log's copy ends
LOOKED_AT = 1000  # rows that tell which columns to look at


def plainly_written(path: Path, folder: Path, *, skip_malformed: bool = False) -> tuple[Path, tuple[str, ...]]:
    """The log itself, or its copy under `folder` with decimal points; and what was read how."""
    with opened(path, skip_malformed=skip_malformed) as (engine, table):
        changed, notes = {}, []
        for name in table.names:
            column = alias(table, name)
            if _has_signs(engine, column):
                bare = f"trim(regexp_replace(CAST({column} AS VARCHAR), '{SIGN}', '', 'g'))"
                changed[name] = f"replace({bare}, ',', '.')"
                notes.append(f"{name} holds numbers with signs such as $ or %, read without them")
            elif _has_commas(engine, column):
                changed[name] = f"replace(CAST({column} AS VARCHAR), ',', '.')"
                notes.append(f"{name} holds numbers with decimal commas, read as such")
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


def _has_signs(engine: DuckDB, column: str) -> bool:
    """Numbers that all have a sign of money or percent."""
    return bool(_share(engine, column, SIGNED, rows=_first(column))) and _share(engine, column, SIGNED) == 1


def _has_commas(engine: DuckDB, column: str) -> bool:
    """Numbers with decimal commas; whole ones may stand among them."""
    return (
        bool(_share(engine, column, NUMBER, rows=_first(column))) and _share(engine, column, f"{NUMBER}|{WHOLE}") == 1
    )
