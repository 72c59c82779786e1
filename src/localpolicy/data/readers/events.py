"""Any log: CSV, Parquet, gzip of CSV, or folders of these, through a column map."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from localpolicy.data.config import PrepareConfig
from localpolicy.data.reading import COLUMNS
from localpolicy.data.sources import (
    Table,
    delimiter_of,
    file_format,
    files_under,
    first_line,
    parquet_schema,
    split_line,
)

Layout = tuple[str, tuple[str, ...], str, str]  # format, names, types, delimiter


def tables(paths: Sequence[Path | str], config: PrepareConfig, scratch: Path) -> list[Table]:
    """One table per layout found at `paths`."""
    layouts: dict[Layout, list[Path]] = defaultdict(list)
    for file in files_under(paths):
        layouts[_layout(file, config)].append(file)
    return [
        Table(
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


def _layout(file: Path, config: PrepareConfig) -> Layout:
    if file_format(file) == "parquet":
        schema = parquet_schema(file)
        return "parquet", tuple(schema.names), str(schema.types), ""
    line = first_line(file)
    delimiter = config.delimiter or delimiter_of(line)
    return "csv", config.names or split_line(line, delimiter), "", delimiter


def _columns(names: tuple[str, ...], config: PrepareConfig) -> dict[str, str]:
    """The user's map, and our own names for what it leaves out."""
    columns = {name: name for name in COLUMNS if name in names} | dict(config.columns)
    if not {"request", "place"} <= columns.keys():  # one alone means something else: a place may be a town
        columns = {name: theirs for name, theirs in columns.items() if name not in ("request", "place")}
    if config.event is not None:
        columns.pop("event", None)
    return columns
