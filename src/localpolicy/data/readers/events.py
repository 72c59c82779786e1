"""Any log: CSV, Parquet, JSON, gzip, Excel, folders of these, or a table in memory, through a column map."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from localpolicy.data.config import PrepareConfig
from localpolicy.data.growing_files import ROWS_PER_SMALL_GROUP, ParquetFile
from localpolicy.data.log_schema import COLUMNS, check_columns
from localpolicy.data.other_files import as_parquet, is_other
from localpolicy.data.sources import (
    MOST_COLUMNS,
    SourceTable,
    delimiter_of,
    file_format,
    files_under,
    first_line,
    parquet_schema,
    split_line,
)
from localpolicy.errors import DataError
from localpolicy.runtime.frames import arrow_stream, plain, plain_type, table_name

log = logging.getLogger("localpolicy.data.prepare")
OF_LISTS = ("request", "place", "context_id", "past_event")  # columns that mean something together

Layout = tuple[str, tuple[str, ...], str, str]  # format, names, types, delimiter


def tables(paths: Sequence[Path], config: PrepareConfig, scratch: Path) -> list[SourceTable]:
    """One table per layout found at `paths`, and one for each file that is converted to be read."""
    layouts: dict[Layout, list[Path]] = defaultdict(list)
    written: list[SourceTable] = []
    for file in files_under(paths):
        if is_other(file):
            written.append(_rewritten(file, config, scratch / f"file-{len(written)}.parquet"))
        else:
            layouts[_layout(file, config)].append(file)
    return written + [
        SourceTable(
            files=tuple(files),
            format="parquet" if layout[0] == "parquet" else "csv",
            columns=_columns(layout[1], config),
            names=layout[1],
            header=not config.names,
            delimiter=layout[3],
            constants={} if config.event is None else {"event": config.event},
        )
        for layout, files in layouts.items()
    ]


def _rewritten(file: Path, config: PrepareConfig, target: Path) -> SourceTable:
    """Table of a JSON or Excel file, converted to Parquet in the scratch folder."""
    as_parquet(file, target)
    names = tuple(parquet_schema(target).names)
    return SourceTable(
        files=(target,),
        format="parquet",
        columns=_columns(names, config),
        names=names,
        constants={} if config.event is None else {"event": config.event},
        originals=(file,),
    )


def frame_table(frame: Any, config: PrepareConfig, scratch: Path, *, number: int = 1, of: int = 1) -> SourceTable:
    """Table in memory as a Parquet file in the scratch folder: both engines read that, and keep its rows' order.

    Only the columns that are read are written.
    """
    rows = arrow_stream(frame)
    names = tuple(rows.schema.names)
    table = SourceTable(
        files=(scratch / f"frame-{number}.parquet",),
        format="parquet",
        columns=_columns(names, config),
        names=names,
        constants={} if config.event is None else {"event": config.event},
        label=getattr(frame, "label", table_name(frame)) + (f" ({number} of {of})" if of > 1 else ""),
    )
    check_columns(table)
    read = {name for theirs in table.columns.values() for name in table.parts(theirs)}
    used = [name for name in names if name in read]
    try:
        schema = pa.schema([(name, plain_type(rows.schema.field(name).type)) for name in used])
        file = ParquetFile(table.files[0], compression="lz4", group=ROWS_PER_SMALL_GROUP)
        file.append(schema.empty_table())
        for batch in rows:
            file.append(pa.table([plain(batch.column(name)) for name in used], schema=schema))
        file.close()
    except (pa.ArrowException, KeyError) as error:
        raise DataError(f"{table.label} cannot be written as Parquet: {str(error)[:500]}") from None
    return replace(table, names=tuple(used))


def _layout(file: Path, config: PrepareConfig) -> Layout:
    if file_format(file) == "parquet":
        schema = parquet_schema(file)
        _refuse_wide(file, schema.names)
        return "parquet", tuple(schema.names), str(schema.types), ""
    line = first_line(file)
    delimiter = config.delimiter or delimiter_of(line)
    names = config.names or split_line(line, delimiter)
    _refuse_wide(file, names)
    return "csv", names, "", delimiter


def _refuse_wide(file: Path, names: Sequence[str]) -> None:
    if len(names) > MOST_COLUMNS:
        raise DataError(
            f"{file} has {len(names):,} columns; expected at most {MOST_COLUMNS:,}. Write those that say who, what and "
            "when to a file of their own (for text: cut -d, -f1-4)."
        )


def _columns(names: tuple[str, ...], config: PrepareConfig) -> dict[str, str]:
    """Map of our columns to the file's: the user's, and our own names for the others."""
    ours = {name: name for name in COLUMNS if name in names and name != "split"}  # that one is asked for
    columns = ours | dict(config.columns)
    if config.split_column is not None:
        columns["split"] = config.split_column
    if not {"request", "place"} <= columns.keys():  # one alone means something else: a place may be a town
        if "request" in columns and "propensity" in columns:
            log.warning(
                "rows say which request they belong to, and not their place in its list: each is read as a decision "
                "of its own. Name the column of places too: --columns place=COLUMN."
            )
        columns = {name: theirs for name, theirs in columns.items() if name not in OF_LISTS}
    if config.event is not None:
        columns.pop("event", None)
    return columns
