"""One reader per source: where its files lie, what their columns mean, and the counts it should give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localpolicy.data.config import PrepareConfig
from localpolicy.data.expected import Edition
from localpolicy.data.readers import events, movielens, netflix, openbandit, retailrocket, yoochoose
from localpolicy.data.sources import Table


@dataclass(frozen=True)
class Reader:
    """How one source is read."""

    tables: Callable[[Sequence[Path | str], PrepareConfig, Path], list[Table]]
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
