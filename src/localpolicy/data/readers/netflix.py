"""Netflix Prize: `combined_data_*.txt`, or the older folder of `mv_*.txt`; both are blocks of one movie each:

    1:
    1488844,3,2005-09-06        user, rating, date

SQL knows no "line above", so the blocks are first written as one Parquet table in the scratch folder: at the speed of
Arrow's reader where every line is as it should be, else line by line, so that the bad ones can be named or passed over.
The paper's recipe: users with at least 5 ratings, the most recent 200; rewards 1, 2 -> 0, 3 -> 0.5, 4, 5 -> 1;
20,000 users each for validation and test. Expected: 472,987 users, 17,770 items, 53 M interactions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from localpolicy.data.config import PrepareConfig
from localpolicy.data.published_counts import COUNTED, PAPER, Count, Edition
from localpolicy.data.rewards import RATINGS
from localpolicy.data.sources import BadLines, SourceTable, bounded_lines, find
from localpolicy.errors import DataError

PRESET = {"min_events": 5, "most_recent": 200, "rewards": RATINGS, "validation": 20_000, "test": 20_000}
EDITIONS = (
    Edition(
        "Netflix Prize",
        rows=100_480_507,
        counts=(
            Count("sequences", 472_987, source=PAPER),
            Count("items", 17_770, source=PAPER),
            Count("events", 53_000_000, rounded=True, source=PAPER, note="after the cut to the most recent 200"),
        ),
        source=COUNTED,
    ),
)
TYPES = {"user": pa.int32(), "rating": pa.int8(), "date": pa.date32()}
HEADING = re.compile(r"(\d+):\s*")
RATING = re.compile(r"(\d{1,9}),(\d{1,2}),(\d{4}-\d{2}-\d{2})\s*")  # of numbers that fit their types
LINES = "'user,rating,date' lines under 'movie:'"
ROWS_PER_GROUP = 1 << 20
SCHEMA = pa.schema({**TYPES, "movie": pa.int32()})
COLUMNS = {"sequence_id": "user", "item_id": "movie", "event": "rating", "timestamp": "date"}


def tables(paths: Sequence[Path], config: PrepareConfig, scratch: Path) -> list[SourceTable]:
    """Return all ratings as one table, written to the scratch folder."""
    files = find(paths, "combined_data_*.txt", "mv_*.txt", what="the Netflix Prize's ratings")
    made = scratch / "netflix.parquet"
    bad: list[BadLines] = []
    try:
        with pq.ParquetWriter(made, SCHEMA, compression="lz4") as writer:
            for file in files:
                _copy(file, writer)
    except pa.ArrowInvalid:
        with pq.ParquetWriter(made, SCHEMA, compression="lz4") as writer:
            bad = [lines for file in files if (lines := _sift(file, writer)).count]
    return [SourceTable((made,), "parquet", COLUMNS, tuple(SCHEMA.names), originals=tuple(files), bad=tuple(bad))]


def _copy(file: Path, writer: pq.ParquetWriter) -> None:
    """Append a file's ratings to the table, each with the movie of its heading."""
    headings: list[tuple[int, int]] = []  # (how many ratings stand above it, movie)

    def heading(line: csv.InvalidRow) -> str:
        if not (movie := HEADING.fullmatch(line.text)):
            return "error"
        headings.append((line.number - 1 - len(headings), int(movie[1])))
        return "skip"

    above = 0
    ratings = csv.open_csv(
        file,
        read_options=csv.ReadOptions(column_names=list(TYPES), use_threads=False),  # threads lose line numbers
        parse_options=csv.ParseOptions(invalid_row_handler=heading),
        convert_options=csv.ConvertOptions(column_types=TYPES, null_values=[]),
    )
    for batch in ratings:
        starts, movies = np.array(headings, dtype=np.int64).reshape(-1, 2).T
        block = np.searchsorted(starts, above + np.arange(batch.num_rows), side="right") - 1
        if len(block) and block[0] < 0:
            raise DataError(f"{file}: expected 'movie:' on the first line. Is it a Netflix Prize file?")
        columns = {name: batch.column(name) for name in TYPES} | {"movie": movies[block].astype(np.int32)}
        writer.write_table(pa.table(columns, schema=SCHEMA))
        above += batch.num_rows
    if above == 0:
        raise DataError(f"{file} holds no ratings: expected {LINES}.")


def _sift(file: Path, writer: pq.ParquetWriter) -> BadLines:
    """Append a file's ratings line by line; return the lines that are neither heading nor rating."""
    movie, ratings, first, count = None, 0, "", 0
    waiting: list[tuple[int, int, date, int]] = []

    def write() -> None:
        columns = zip(*waiting, strict=True) if waiting else ([],) * len(SCHEMA)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
        writer.write_table(pa.table(arrays, schema=SCHEMA))
        waiting.clear()

    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(bounded_lines(lines), 1):
            if heading := HEADING.fullmatch(line):
                movie = int(heading[1])
            elif movie is not None and (rating := _rating(line)):
                waiting.append((*rating, movie))
                ratings += 1
            elif line.strip():
                first = first or f"{file}, line {number}: expected {LINES}, found '{line.rstrip()[:80]}'"
                count += 1
            if len(waiting) == ROWS_PER_GROUP:
                write()
    write()
    if ratings == 0:
        raise DataError(first or f"{file} holds no ratings: expected {LINES}.")
    return BadLines(first, count)


def _rating(line: str) -> tuple[int, int, date] | None:
    if not (match := RATING.fullmatch(line)):
        return None
    try:
        return int(match[1]), int(match[2]), date.fromisoformat(match[3])
    except ValueError:  # as the 30th of February
        return None
