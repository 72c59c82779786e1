"""Netflix Prize: `combined_data_*.txt`, or the older folder of `mv_*.txt`; both are blocks of one movie each:

    1:
    1488844,3,2005-09-06        user, rating, date

SQL knows no "line above", so the blocks are first written as one Parquet table in the scratch folder.
The paper's recipe: users with at least 5 ratings, the most recent 200; rewards 1, 2 -> 0, 3 -> 0.5, 4, 5 -> 1;
20,000 users each for validation and test. Expected: 472,987 users, 17,770 items, 53 M interactions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from localpolicy.data.config import PrepareConfig
from localpolicy.data.expected import Count, Edition
from localpolicy.data.rewards import RATINGS
from localpolicy.data.sources import Table, find
from localpolicy.vocabulary.errors import DataError

PRESET = {"min_events": 5, "most_recent": 200, "rewards": RATINGS, "validation": 20_000, "test": 20_000}
EDITIONS = (
    Edition(
        "Netflix Prize",
        rows=100_480_507,
        counts=(
            Count("sequences", 472_987),
            Count("items", 17_770),
            Count("events", 53_000_000, rounded=True, note="after the cut to the most recent 200"),
        ),
    ),
)
TYPES = {"user": pa.int32(), "rating": pa.int8(), "date": pa.date32()}
SCHEMA = pa.schema({**TYPES, "movie": pa.int32()})
COLUMNS = {"sequence_id": "user", "item_id": "movie", "event": "rating", "timestamp": "date"}


def tables(paths: Sequence[Path | str], config: PrepareConfig, scratch: Path) -> list[Table]:
    """All ratings as one table."""
    files = find(paths, "combined_data_*.txt", "mv_*.txt", what="the Netflix Prize's ratings")
    made = scratch / "netflix.parquet"
    with pq.ParquetWriter(made, SCHEMA, compression="lz4") as writer:
        for file in files:
            _copy(file, writer)
    return [Table((made,), "parquet", COLUMNS, tuple(SCHEMA.names), originals=tuple(files))]


def _copy(file: Path, writer: pq.ParquetWriter) -> None:
    """Append a file's ratings to the table, each beside the movie whose heading it stands under."""
    headings: list[tuple[int, int]] = []  # (how many ratings stand above it, movie)

    def heading(line: csv.InvalidRow) -> str:
        if not (movie := re.fullmatch(r"(\d+):\s*", line.text)):
            return "error"
        headings.append((line.number - 1 - len(headings), int(movie[1])))
        return "skip"

    above = 0
    try:
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
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{file}: expected 'user,rating,date' lines under 'movie:' ({error}). It was altered or is another file."
        ) from None
    if above == 0:
        raise DataError(f"{file} holds no ratings: expected 'user,rating,date' lines under 'movie:'.")
