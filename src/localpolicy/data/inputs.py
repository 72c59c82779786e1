"""The logs that `prepare` was given: tables and paths, as source tables, and what the manifest says of their files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from localpolicy.data.config import PrepareConfig
from localpolicy.data.readers import READERS, Reader
from localpolicy.data.readers.events import frame_table
from localpolicy.data.remote import RemoteTable, is_remote
from localpolicy.data.sources import SourceTable, check_text
from localpolicy.errors import ConfigError, DataError
from localpolicy.runtime.files import sha256
from localpolicy.runtime.frames import is_table, table_name


def flat_list(logs: Sequence[Any]) -> list[Any]:
    """Tables and paths, one after another, whether they were given as arguments or in a list."""
    flat: list[Any] = []
    for item in logs:
        if isinstance(item, list | tuple):
            flat += flat_list(item)
        elif isinstance(item, str) and is_remote(item):
            flat.append(RemoteTable(item))
        elif isinstance(item, str | os.PathLike):
            flat.append(Path(item))
        elif is_table(item):
            flat.append(item)
        else:
            raise ConfigError(f"expected a table or the path of a log, got {table_name(item)}.")
    if not flat:
        raise DataError("no log given: name a file or a folder, or pass a table.")
    return flat


def source_tables(logs: Sequence[Any], reader: Reader, config: PrepareConfig, scratch: Path) -> list[SourceTable]:
    """What the reader makes of the paths, and the tables as they are, in the order given."""
    if reader is not READERS["events"] and not all(isinstance(log, Path) for log in logs):
        raise ConfigError("a named source reads files. Leave source out for a table, and map its columns (columns=…).")
    tables: list[Any] = []
    for are_paths, group in groupby(logs, lambda log: isinstance(log, Path)):
        together = list(group)
        tables += reader.tables(together, config, scratch) if are_paths else together
    frames = sum(not isinstance(table, SourceTable) for table in tables)
    numbers = iter(range(1, frames + 1))
    return [
        table
        if isinstance(table, SourceTable)
        else frame_table(table, config, scratch, number=next(numbers), of=frames)
        for table in tables
    ]


def refuse_inside(out: Path, tables: Sequence[SourceTable]) -> None:
    """Raise where the folder that is to be replaced holds an input."""
    target = out.resolve()
    for file in (file for table in tables for file in table.inputs):
        if target in file.resolve().parents:
            raise ConfigError(
                f"{out} holds the log {file}, and would be replaced. Choose another folder for the data set."
            )


def digests(tables: Sequence[SourceTable]) -> list[dict[str, Any]]:
    """Each input file's name, size and digest; raises on text that is not whole."""
    for table in tables:
        for file in table.files if table.format == "csv" else ():
            check_text(file)
    files = [file for table in tables for file in table.inputs]
    return [{"name": file.name, "bytes": file.stat().st_size, "sha256": sha256(file)} for file in files]


def inputs_of(taken: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the manifest says of the files, with one digest over all of them, by name and content."""
    content = "".join(f"{file['name']}:{file['sha256']};" for file in taken)
    return {
        "files": len(taken),
        "bytes": sum(file["bytes"] for file in taken),
        "sha256": hashlib.sha256(content.encode()).hexdigest(),
        "taken": list(taken),
    }
