"""A copy of a log that `prepare` can read: plain numbers, one column for the time, lists of alternatives with places.

JSON and Excel become Parquet first.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from localpolicy.data.column_names import ALTERNATIVES, CASES, NAMES, columns_meant, plain
from localpolicy.data.engines.duckdb import DuckDB
from localpolicy.data.guess.choices import case_and_item
from localpolicy.data.guess.log_columns import ANSWERS, LogColumns, opened
from localpolicy.data.log_schema import alias
from localpolicy.data.other_files import as_parquet, is_other
from localpolicy.data.sources import SourceTable
from localpolicy.runtime.files import whole_file

# With decimal commas (4,5) or signs ($9.90, 85 %): `prepare` reads plain ones, so `go` writes the log again.
NUMBER = "-?[0-9]+,[0-9]+"
SIGN = "[$€£¥₹₽%]"
SIGNED = f"{SIGN} ?-?[0-9]+([.,][0-9]+)?|-?[0-9]+([.,][0-9]+)? ?{SIGN}"
WHOLE = "-?[0-9]+"
PLACE = "place"  # column added to a log of choices
JOINED = "timestamp"  # the column that a log with days and clock times apart gets
CLOCK = "[0-9]{1,2}:[0-9]{2}(:[0-9]{2}([.][0-9]+)?)?"
DAY = "[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}|[0-9]{1,2}([/.-])[0-9]{1,2}([/.-])[0-9]{4}"
COPY = ", plainly written.parquet"  # end of the name of a log's copy
LOOKED_AT = 1000  # first rows, which decide the columns to examine


def plainly_written(path: Path, folder: Path, *, skip_malformed: bool = False) -> tuple[Path, tuple[str, ...]]:
    """Return the log, or a copy under `folder` that `prepare` can read, with notes on what was converted.

    JSON and Excel become Parquet, decimal commas points, a day and its clock time one column, and rows of one choice
    get places.
    """
    if path.is_file() and is_other(path):
        copy = folder / f"{path.name}{COPY}"
        as_parquet(path, copy)
        path = copy
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
        names, query = table.names, f"SELECT {', '.join(changed.get(n, alias(table, n)) for n in table.names)}"
        if parts := _day_and_clock(engine, table):
            day, clock = (alias(table, part) for part in parts)
            changed[JOINED] = f"concat(CAST({day} AS VARCHAR), ' ', CAST({clock} AS VARCHAR))"
            names, query = (*names, JOINED), f"{query}, {changed[JOINED]}"
            notes.append(f"{' and '.join(parts)} are read together, as the time of the row")
        if case := _case_of_choices(engine, table):
            changed[PLACE] = f"row_number() OVER (PARTITION BY {alias(table, case)} ORDER BY n)"
            names, query = (*names, PLACE), f"{query}, {changed[PLACE]}"
            notes.append(
                f"rows of one {case} are alternatives that were shown together, and one of them was chosen: they are "
                "read as one list, in the order of the file"
            )
        if not changed:
            return path, ()
        copy = folder / f"{path.stem.removesuffix(COPY)}{COPY}"
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(copy) as partial:
            writer = None
            for batch in engine.batches(f"{query} FROM (SELECT row_number() OVER () AS n, * FROM log) ORDER BY n"):
                part = pa.Table.from_batches([batch]).rename_columns(list(names))
                writer = writer or pq.ParquetWriter(partial, part.schema)
                writer.write_table(part)
            if writer is not None:
                writer.close()
    return copy, tuple(notes)


def _day_and_clock(engine: DuckDB, table: SourceTable) -> tuple[str, str] | None:
    """Names of the column of days and of the column of clock times, if no other column holds the time."""
    known = [plain(name) for name in NAMES["timestamp"]]
    timely = [name for name in table.names if plain(name) in known]
    if JOINED in map(plain, table.names):
        return None
    days, clocks = (
        [name for name in timely if _share(engine, alias(table, name), form) == 1.0] for form in (DAY, CLOCK)
    )
    return (days[0], clocks[0]) if len(days) == len(clocks) == 1 else None


def _case_of_choices(engine: DuckDB, table: SourceTable) -> str | None:
    """Column of cases, in a log of choices: each has several alternatives, one of them chosen. None in other logs.

    A case has a name of its own; with a column of alternatives it may be the person, or the column `id`. Without
    such names the values may tell.
    """
    meant, log = columns_meant(table.names, ("request", "sequence_id", "item_id", "place")), LogColumns(engine, table)
    if "place" in meant:
        return None
    found = case_and_item(log, items=[meant["item_id"]] if "item_id" in meant else ())
    if "item_id" not in meant:
        return None if found is None else found[0]
    request = meant.get("request")
    cases = [request] if request is not None and plain(request) in CASES else []
    if not cases and plain(meant["item_id"]) in ALTERNATIVES:
        who = meant.get("sequence_id")
        cases = [who] if who is not None else [name for name in table.names if plain(name) == "id"]
    answers = [name for name in table.names if name not in cases and log.answers(name)] if cases else []
    for case in cases:
        for name in answers:
            yes = ", ".join(f"'{form}'" for form, event in ANSWERS.items() if event != "none")
            chosen = f"SUM(CASE WHEN CAST({alias(table, name)} AS VARCHAR) IN ({yes}) THEN 1 ELSE 0 END)"
            each = f"SELECT COUNT(*) AS n, {chosen} AS chosen FROM log GROUP BY {alias(table, case)}"
            one, rows = engine.rows(f"SELECT AVG(CASE WHEN chosen = 1 THEN 1.0 ELSE 0.0 END), AVG(n) FROM ({each})")[0]
            if one is not None and one > 0.95 and rows > 1:
                return case
    return None if found is None else found[0]


def _share(engine: DuckDB, column: str, pattern: str, *, rows: str = "log") -> float:
    """Return the share of the non-empty values that match a regular expression."""
    value = f"CAST({column} AS VARCHAR)"
    query = f"SELECT AVG(CASE WHEN regexp_full_match({value}, '{pattern}') THEN 1.0 ELSE 0.0 END) FROM {rows}"
    return float(engine.rows(f"{query} WHERE {column} IS NOT NULL AND {value} <> ''")[0][0] or 0.0)


def _first(column: str) -> str:
    return f"(SELECT {column} FROM log LIMIT {LOOKED_AT})"


def _has_signs(engine: DuckDB, column: str) -> bool:
    """Whether a column holds numbers that all have a sign of money or percent."""
    return bool(_share(engine, column, SIGNED, rows=_first(column))) and _share(engine, column, SIGNED) == 1


def _has_commas(engine: DuckDB, column: str) -> bool:
    """Whether a column holds numbers with decimal commas; some may be whole."""
    return (
        bool(_share(engine, column, NUMBER, rows=_first(column))) and _share(engine, column, f"{NUMBER}|{WHOLE}") == 1
    )
