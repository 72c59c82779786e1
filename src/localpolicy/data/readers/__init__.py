"""Readers, one per source: the places of its files, the meaning of their columns, and the published counts.

A reader from outside is an object with a method `tables(paths, config, scratch)`. It returns tables that messages can
name and engines can read: `SourceTable`s over files (its own may be written into the folder `scratch`), or frames. It
may have a `preset`: settings that hold unless the user gives others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localpolicy import plugins
from localpolicy.data.config import PrepareConfig
from localpolicy.data.published_counts import Edition
from localpolicy.data.readers import events, movielens, netflix, openbandit, retailrocket, yoochoose
from localpolicy.data.sources import SourceTable
from localpolicy.errors import ConfigError, nearest


@dataclass(frozen=True)
class Reader:
    """Reader of one source, with its preset and its published counts."""

    tables: Callable[[Sequence[Path], PrepareConfig, Path], Sequence[SourceTable | Any]]
    preset: Mapping[str, Any] = field(default_factory=dict)  # settings of the source's recipe
    editions: tuple[Edition, ...] = ()


READERS = {
    "events": Reader(events.tables),
    "yoochoose": Reader(yoochoose.tables, yoochoose.PRESET, yoochoose.EDITIONS),
    "retailrocket": Reader(retailrocket.tables, retailrocket.PRESET, retailrocket.EDITIONS),
    "netflix": Reader(netflix.tables, netflix.PRESET, netflix.EDITIONS),
    "movielens": Reader(movielens.tables, movielens.PRESET, movielens.EDITIONS),
    "openbandit": Reader(openbandit.tables, openbandit.PRESET, openbandit.EDITIONS),
}


def _named(source: str) -> Any:
    """Reader by name: one of ours, a registered one, or package.module:Name from the user, which is imported."""
    reader = READERS.get(source) or plugins.find("readers", source) or (plugins.load(source) if ":" in source else None)
    if reader is None:
        raise ConfigError(f"no source '{source}'{nearest(source, {*READERS, *plugins.registered('readers')})}")
    return reader() if isinstance(reader, type) else reader


def find_reader(source: str | object) -> tuple[str, Reader]:
    """Name that the manifest keeps, and the reader that `source` names or is."""
    reader: Any
    if isinstance(source, str):
        name, reader = source, _named(source)
    else:
        reader, name = source, f"{type(source).__module__}:{type(source).__qualname__}"
    if isinstance(reader, Reader):
        return name, reader
    if not callable(getattr(reader, "tables", None)):
        raise ConfigError(f"{name} is not a reader: it has no method tables(paths, config, scratch).")
    return name, Reader(reader.tables, dict(getattr(reader, "preset", {})))
