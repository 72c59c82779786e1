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
from localpolicy.data.guess.plain_values import plainly
from localpolicy.data.log_schema import alias
from localpolicy.data.other_files import AS_UTF_8, as_parquet, as_utf_8, is_other, is_western
from localpolicy.data.sources import SourceTable
from localpolicy.runtime.files import whole_file

PLACE = "place"  # column added to a log of choices
JOINED = "timestamp"  # the column that a log with days and clock times apart gets
CLOCK = "[0-9]{1,2}:[0-9]{2}(:[0-9]{2}([.][0-9]+)?)?"
DAY = "[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}|[0-9]{1,2}([/.-])[0-9]{1,2}([/.-])[0-9]{4}"
TIMELY = ("date", "time", "day", "datum", "zeit", "tag", "heure", "jour", "fecha", "hora", "ora", "giorno")  # ends
COPY = ", plainly written.parquet"  # end of the name of a log's copy


def plainly_written(path: Path, folder: Path, *, skip_malformed: bool = False) -> tuple[Path, tuple[str, ...]]:
    """Return the log, or a copy under `folder` that `prepare` can read, with notes on what was converted.

    JSON and Excel become Parquet, Windows-1252 becomes UTF-8, decimal commas points, a day and its clock time one
    column, and rows of one choice get places.
    """
    notes = []
    if path.is_file() and is_other(path):
        copy = folder / f"{path.name}{COPY}"
        as_parquet(path, copy)
        path = copy
    elif path.is_file() and is_western(path):
        copy = folder / f"{path.stem}{AS_UTF_8}"
        as_utf_8(path, copy)
        path = copy
        notes.append("the file is not UTF-8, and read as Windows-1252, which Western European programs write")
    with opened(path, skip_malformed=skip_malformed) as (engine, table):
        changed = {}
        for name in table.names:
            if (plain_form := plainly(engine, alias(table, name))) is not None:
                changed[name], what = plain_form
                notes.append(f"{name} holds {what}")
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
            return path, tuple(notes)
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
    timely = [name for name in table.names if plain(name) in known or plain(name).endswith(TIMELY)]
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


def _share(engine: DuckDB, column: str, pattern: str) -> float:
    """Return the share of the non-empty values that match a regular expression."""
    value = f"CAST({column} AS VARCHAR)"
    query = f"SELECT AVG(CASE WHEN regexp_full_match({value}, '{pattern}') THEN 1.0 ELSE 0.0 END) FROM log"
    return float(engine.rows(f"{query} WHERE {column} IS NOT NULL AND {value} <> ''")[0][0] or 0.0)
