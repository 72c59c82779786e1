"""Input logs of `prepare`: tables and paths as source tables, and the manifest's entries of their files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from localpolicy.data.config import PrepareConfig
from localpolicy.data.lakes import LakeTable
from localpolicy.data.object_store import Object
from localpolicy.data.readers import READERS, Reader
from localpolicy.data.readers.events import frame_table
from localpolicy.data.remote import fetch, remote
from localpolicy.data.sources import Origin, SourceTable, check_text
from localpolicy.errors import ConfigError, DataError
from localpolicy.runtime.files import sha256
from localpolicy.runtime.frames import is_table, table_name


def flat_list(logs: Sequence[Any]) -> list[Any]:
    """Tables, paths and addresses in one list, given as arguments or in a list."""
    flat: list[Any] = []
    for item in logs:
        if isinstance(item, list | tuple):
            flat += flat_list(item)
        elif isinstance(item, str) and (elsewhere := remote(item)) is not None:
            flat.append(elsewhere)
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
    """Source tables of the paths, by the reader, and of the given tables, in order. Objects are fetched first."""
    here, origins = _fetched(logs, scratch)
    if reader is not READERS["events"] and not all(isinstance(log, Path) for log in here):
        raise ConfigError("a named source reads files. Leave source out for a table, and map its columns (columns=…).")
    tables: list[Any] = []
    for are_paths, group in groupby(here, lambda log: isinstance(log, Path)):
        together = list(group)
        tables += reader.tables(together, config, scratch) if are_paths else together
    frames = sum(not isinstance(table, SourceTable) for table in tables)
    numbers = iter(range(1, frames + 1))
    return [
        replace(table, origins={file: origins[file] for file in table.inputs if file in origins})
        if isinstance(table, SourceTable)
        else _of_frame(table, frame_table(table, config, scratch, number=next(numbers), of=frames))
        for table in tables
    ]


def _fetched(logs: Sequence[Any], scratch: Path) -> tuple[list[Any], dict[Path, Origin]]:
    """The logs with local copies in place of objects, and the origin of each copy."""
    here: list[Any] = []
    origins: dict[Path, Origin] = {}
    for log in logs:
        if isinstance(log, Object):
            paths, more = fetch(log, scratch)
            here += paths
            origins |= more
        else:
            here.append(log)
    return here, origins


def _of_frame(frame: Any, table: SourceTable) -> SourceTable:
    """Source table of a frame, with the version of the lake table that it was read from."""
    if not isinstance(frame, LakeTable):
        return table
    return replace(table, origins={file: Origin(frame.label, frame.version) for file in table.files})


def refuse_inside(out: Path, tables: Sequence[SourceTable]) -> None:
    """Raise ConfigError if the folder that is to be replaced holds an input."""
    target = out.resolve()
    for file in (file for table in tables for file in table.inputs):
        if target in file.resolve().parents:
            raise ConfigError(
                f"{out} holds the log {file}, and would be replaced. Choose another folder for the data set."
            )


def digests(tables: Sequence[SourceTable]) -> list[dict[str, Any]]:
    """Name (or address and version), size and digest of each input file; DataError for text that is cut short."""
    for table in tables:
        for file in table.files if table.format == "csv" else ():
            check_text(file)
    origins = {file: origin for table in tables for file, origin in table.origins.items()}
    taken = []
    for file in (file for table in tables for file in table.inputs):
        origin = origins.get(file)
        called = {"name": file.name} if origin is None else {"name": origin.address, "version": origin.version}
        taken.append({**called, "bytes": file.stat().st_size, "sha256": sha256(file)})
    _refuse_copies(taken)
    return taken


def _refuse_copies(taken: Sequence[Mapping[str, Any]]) -> None:
    """Raise DataError if an object was given both from its bucket and as a file: its rows would count twice."""
    files = {file["sha256"]: file["name"] for file in taken if "version" not in file}
    for file in taken:
        if "version" in file and file["sha256"] in files:
            raise DataError(
                f"{file['name']} has the bytes of {files[file['sha256']]}, which was given too: its rows would count "
                "twice. Leave one out."
            )


def inputs_of(taken: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Manifest entry of the input files, with one digest over all of them, by name and content."""
    content = "".join(f"{file['name']}:{file['sha256']};" for file in taken)
    return {
        "files": len(taken),
        "bytes": sum(file["bytes"] for file in taken),
        "sha256": hashlib.sha256(content.encode()).hexdigest(),
        "taken": list(taken),
    }
