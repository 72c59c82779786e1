"""Loading of files into the table `loaded`, one event per row. Bad rows are refused by name, or skipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from localpolicy.data import sql
from localpolicy.data.engines import Engine
from localpolicy.data.event_codes import EventCodes
from localpolicy.data.events import EventSelect, fields_of
from localpolicy.data.log_schema import ROW, ROW_NUMBER, SAMPLE, SAMPLED, LogSchema, Raw, alias, check_columns
from localpolicy.data.sources import SourceTable
from localpolicy.data.times import Notation, written
from localpolicy.errors import DataError

Problems = dict[str, int]  # how many rows have each
MALFORMED = "the line cannot be cut into columns"
SHOWN = 80  # characters of a value in a message
REMEDY = "Fix the log, or skip such rows with --skip-bad-rows."


def open_tables(
    engine: Engine, tables: Sequence[SourceTable], *, skip_malformed: bool, dates: Notation | None = None
) -> list[Raw]:
    """Let the engine open the files, and read the first rows of each table."""
    for table in tables:
        check_columns(table)
    if skip_malformed:
        engine.skip_malformed()
    # Row numbers cost a pass in file order, so they are read only if they mean something.
    rows = any("timestamp" not in table.columns or ROW in table.columns.values() for table in tables)
    return [_open(engine, number, table, rows=rows, dates=dates) for number, table in enumerate(tables)]


def _open(engine: Engine, number: int, table: SourceTable, *, rows: bool, dates: Notation | None) -> Raw:
    raw = Raw(number, table, {}, {})
    types = engine.read(raw.view, table, rows=rows)
    mapped = [name for name in SAMPLED if name in table.columns]  # a column of the log may have no name at all
    columns = [name for name in mapped if types.get(table.columns[name]) in ("text", "integer", "float")]
    sample: dict[str, list[Any]] = {}
    if columns:
        chosen = ", ".join(alias(table, table.columns[name]) for name in columns)
        first = engine.rows(f"SELECT {chosen} FROM {raw.view} LIMIT {SAMPLE}")
        sample = {name: [row[index] for row in first if row[index] is not None] for index, name in enumerate(columns)}
    raw = replace(raw, types=types, sample=sample)
    if "timestamp" not in columns:
        return raw
    times = alias(table, table.columns["timestamp"])
    return replace(raw, written=written(sample["timestamp"], engine.rows, raw.view, times, asked=dates))


def load(
    engine: Engine, raws: Sequence[Raw], schema: LogSchema, codes: EventCodes, *, skip_bad_rows: bool, scratch: Path
) -> tuple[dict[str, int], Problems]:
    """Fill `loaded`; return its rows by event, and the skipped rows."""
    left_out = [bad for raw in raws for bad in raw.table.bad]
    if left_out and not skip_bad_rows:
        total = sum(bad.count for bad in left_out)
        raise DataError(f"{left_out[0].first}{f' ({total:,} bad lines in all)' if total > 1 else ''}. {REMEDY}")
    selects = [EventSelect(raw, schema, codes) for raw in raws]
    fields = fields_of(schema, codes)

    def fill(narrow: Sequence[str] = ()) -> dict[int | None, int]:
        parts = [select.sql(select.raw.view, fields=fields, narrow=narrow) for select in selects]
        engine.table("loaded", "\nUNION ALL\n".join(parts))
        return {code: int(count) for code, count in engine.rows(sql.ROWS)}

    counts = fill(schema.narrow)
    problems: Problems = {}
    if unusable := counts.pop(None, 0):
        bad = "\nUNION ALL\n".join(select.problem_sql(select.raw.view) for select in selects)
        query = f"SELECT problem, COUNT(*) FROM ({bad}) b GROUP BY problem ORDER BY problem"
        problems = {str(problem): int(count) for problem, count in engine.rows(query)}
        if problems and not skip_bad_rows:
            raise DataError(_first_bad_row(engine, selects, problems, scratch))
        if unusable > sum(problems.values()):  # other ids do not fit the 4 bytes that the first ones need
            counts = fill()
            left = counts.pop(None, 0) - sum(problems.values())
            assert left == 0, f"{left:,} rows are unusable, and no check says why"
        engine.view("usable", "SELECT * FROM loaded WHERE event IS NOT NULL")
    else:
        engine.view("usable", "SELECT * FROM loaded")
    if malformed := engine.malformed() + sum(bad.count for bad in left_out):
        problems[MALFORMED] = malformed
    if not counts:
        passed = f": all {sum(problems.values()):,} are bad ({_listed(problems)})" if problems else ""
        files = _named([raw.table for raw in raws])
        raise DataError(f"no usable rows in {files}{passed}. Expected a log with at least one event.")
    return {codes.events[code]: counts[code] for code in sorted(code for code in counts if code is not None)}, problems


def _first_bad_row(engine: Engine, selects: Sequence[EventSelect], problems: Problems, scratch: Path) -> str:
    """Message on the first bad row, found file by file.

    Always by DuckDB, whichever engine found it: Spark reads text in no order, and so cannot number its rows.
    """
    from localpolicy.data.engines.duckdb import DuckDB

    total = sum(problems.values())
    more = f" ({total:,} bad rows in all: {_listed(problems)})" if total > 1 else ""
    (scratch / "search").mkdir()
    finder = DuckDB(scratch / "search")
    try:
        for name in ("event_codes", "policies"):
            finder.small(name, engine.arrow(f"SELECT * FROM {name}"))
        for select in selects:
            table = select.raw.table
            names = [name for theirs in table.columns.values() for name in table.parts(theirs) if name != ROW]
            values = {f"shown_{number}": f"CAST({alias(table, name)} AS STRING)" for number, name in enumerate(names)}
            for file in table.files:
                finder.read("suspect", replace(table, files=(file,)), rows=True)
                found = select.problem_sql("suspect", also={ROW_NUMBER: ROW_NUMBER, **values})
                query = f"{found} ORDER BY {ROW_NUMBER} LIMIT 1"
                for problem, row, *came in finder.rows(query):
                    shown = ", ".join(f"{name}={_short(value)}" for name, value in zip(names, came, strict=True))
                    at = f"row {row}" + (f" (position {row - 1}, counted from 0)" if table.label else "")
                    return f"{table.shown(file)}, {at}: {problem} ({shown}){more}. {REMEDY}"
    finally:
        finder.close()
    return f"{_named([select.raw.table for select in selects])}: {_listed(problems)}. {REMEDY}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _named(tables: Sequence[SourceTable]) -> str:
    files = [table.shown(file) for table in tables for file in table.inputs]
    return ", ".join(files[:3]) + (f" and {len(files) - 3} more files" if len(files) > 3 else "")


def _listed(problems: Mapping[str, int]) -> str:
    return "; ".join(f"{count:,} × {problem}" for problem, count in problems.items())
