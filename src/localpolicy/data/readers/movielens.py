"""MovieLens, in each of its formats: `u.data` (100k), `ratings.dat` (1M, 10M), `ratings.csv` (20M, 25M, 32M, latest).

A sequence is a user, an event is a rating; rewards as the paper's for Netflix: below 3 -> 0, below 4 -> 0.5, else 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from localpolicy.data.config import PrepareConfig
from localpolicy.data.published_counts import COUNTED, README, UNVERIFIED, Count, Edition
from localpolicy.data.rewards import RATINGS
from localpolicy.data.sources import SourceTable, find
from localpolicy.errors import DataError

PRESET = {"rewards": RATINGS}
EDITIONS = tuple(
    Edition(
        f"MovieLens {name}",
        rows,
        (
            Count("sequences", users, source=README if name != "10M" else COUNTED),  # there it counts users of tags too
            Count("items", movies, source=source),  # the READMEs count films without a rating too
            Count("events", rows, source=README),
        ),
        source=README,
    )
    for name, users, movies, rows, source in (
        ("100k", 943, 1_682, 100_000, README),
        ("latest-small (2016)", 671, 9_066, 100_004, COUNTED),
        ("latest-small (2018)", 610, 9_724, 100_836, COUNTED),
        ("1M", 6_040, 3_706, 1_000_209, COUNTED),
        ("10M", 69_878, 10_677, 10_000_054, COUNTED),
        ("20M", 138_493, 26_744, 20_000_263, COUNTED),
        ("25M", 162_541, 59_047, 25_000_095, COUNTED),
        ("32M", 200_948, 84_432, 32_000_204, UNVERIFIED),
    )
)
NAMES = ("userId", "movieId", "rating", "timestamp")
COLUMNS = {"sequence_id": "userId", "item_id": "movieId", "event": "rating", "timestamp": "timestamp"}
LAYOUTS = {"u.data": ("\t", False), "ratings.dat": ("::", False), "ratings.csv": (",", True)}  # delimiter, header


def tables(paths: Sequence[Path], config: PrepareConfig, scratch: Path) -> list[SourceTable]:
    """Return the table of ratings, whose format the file's name decides."""
    patterns = [name + suffix for name in LAYOUTS for suffix in ("", ".gz")]
    files = find(paths, *patterns, what="one MovieLens ratings file")
    if len(files) > 1:
        raise DataError(f"found {len(files)} MovieLens ratings files ({', '.join(map(str, files))}): name one.")
    delimiter, header = LAYOUTS[files[0].name.removesuffix(".gz")]
    return [SourceTable((files[0],), "csv", COLUMNS, NAMES, header=header, delimiter=delimiter)]
