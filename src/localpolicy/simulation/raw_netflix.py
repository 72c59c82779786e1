"""Netflix Prize files: `combined_data_1..4.txt`, grouped by film.

Users are simulated in chunks, but the files are grouped by film: rows go first to buckets of films on disk, and
each bucket is then sorted in memory. The buckets hold about equally many rows, so memory stays bounded.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from localpolicy.settings import Settings
from localpolicy.simulation.assortment import Assortment, stock
from localpolicy.simulation.distributions import PopularityLaw
from localpolicy.simulation.events import Progress

CHUNK = 4_096  # users made at once
ROWS_PER_BUCKET = 2_000_000
MOST_OPEN = 256  # files that any system lets a process hold open
FILES = 4
FIRST_DAY, DAYS = 10_895, 2_243  # 1999-10-31 … 2005-12-31
ROW = np.dtype([("film", np.int32), ("user", np.int32), ("day", np.int16), ("rating", np.int8)])


class NetflixConfig(Settings):
    """Settings with 480,189 users and 17,770 films; lengths have median 96 and mean 209, as in the original."""

    items: int = Field(17_770, ge=FILES, description="films")
    categories: int = Field(20, ge=1, description="genres, over which users have their tastes")
    popularity: float = Field(0.6, gt=0, le=1, description="stretch of popularity within a genre; low: heavy tail")
    popularity_scale: float = Field(0.07, gt=0, description="share of a genre at which its popularity bends down")
    median_length: float = Field(105.0, ge=1, description="median ratings of a user, before repeats are dropped")
    length_spread: float = Field(1.35, ge=0, description="spread of the logarithm of that length")
    max_length: int = Field(10_000, ge=1, description="most ratings of a user")


def write_netflix(
    folder: Path, config: NetflixConfig, *, sequences: int, seed: int, progress: Progress | None
) -> dict[str, int]:
    """Write `combined_data_1..4.txt`: a line "film:", then its lines "user,rating,YYYY-MM-DD"."""
    films = stock(
        config.items,
        config.categories,
        law=PopularityLaw(config.popularity, config.popularity_scale),
        category_tail=0.7,
        bait=0.0,
        rng=np.random.default_rng([seed, 0]),
    )
    # Film numbers say nothing, as in the original: buckets and files then hold about equally many rows.
    number = 1 + np.random.default_rng([seed, 1]).permutation(config.items)
    spool = folder / "spool"
    spool.mkdir()
    rows_expected = sequences * config.median_length * np.exp(config.length_spread**2 / 2)
    buckets = FILES * int(np.clip(rows_expected / ROWS_PER_BUCKET / FILES, 1, MOST_OPEN / FILES))
    bounds = np.linspace(0, config.items, buckets + 1).astype(np.int64)
    files = [(spool / str(bucket)).open("wb") for bucket in range(buckets)]
    total = 0
    try:
        for chunk, first in enumerate(range(0, sequences, CHUNK)):
            rng = np.random.default_rng([seed, 2, chunk])
            rows = _ratings(first, min(CHUNK, sequences - first), films, config, rng)
            rows["film"] = number[rows["film"]]
            bucket_of = np.searchsorted(bounds, rows["film"], "left") - 1
            rows = rows[np.argsort(bucket_of, kind="stable")]
            ends = np.cumsum(np.bincount(bucket_of, minlength=buckets))
            for file, part in zip(files, np.split(rows, ends[:-1]), strict=True):
                file.write(part.tobytes())
            total += len(rows)
            if progress is not None:
                progress(min(CHUNK, sequences - first))
    finally:
        for file in files:
            file.close()
    for number_of_file, parts in enumerate(np.split(np.arange(buckets), FILES), start=1):
        with (folder / f"combined_data_{number_of_file}.txt").open("wb") as combined:
            for bucket in parts:
                _write_films(combined, np.fromfile(spool / str(bucket), ROW))
    shutil.rmtree(spool)
    return {"ratings": total}


def _ratings(first: int, users: int, films: Assortment, config: NetflixConfig, rng: np.random.Generator) -> np.ndarray:
    """Draw each user's films by taste and popularity, and ratings by taste, the film's quality and the user's mood."""
    taste = rng.standard_normal((users, config.categories), dtype=np.float32)
    lengths = np.exp(np.log(config.median_length) + config.length_spread * rng.standard_normal(users))
    user = np.repeat(np.arange(users), np.clip(lengths, 1, config.max_length).astype(np.int64))
    preference = films.share * np.exp(0.7 * taste)
    line = np.cumsum(preference, 1) / preference.sum(1, keepdims=True) + np.arange(users)[:, None]
    genre = np.searchsorted(line.ravel(), user + rng.random(len(user)), "right") - user * config.categories
    film = films.draw(genre.clip(0, config.categories - 1), rng.random(len(user)))
    user, film = np.divmod(np.unique(user * config.items + film), config.items)  # a film is rated once
    mood = 0.4 * rng.standard_normal(users)
    score = 3.5 + mood[user] + 0.4 * taste[user, films.category[film]] + 0.5 * films.quality[film]
    rows = np.empty(len(user), ROW)
    rows["film"], rows["user"] = film, 1 + first + user
    rows["rating"] = np.clip(np.round(score + 0.9 * rng.standard_normal(len(user))), 1, 5)
    joined = rng.integers(DAYS, size=users)
    rows["day"] = FIRST_DAY + joined[user] + (DAYS - joined[user]) * rng.random(len(user))
    return rows


def _write_films(file: BinaryIO, rows: np.ndarray) -> None:
    """Write the films of one bucket: "film:" before the first row of each."""
    if not len(rows):
        return
    rows = rows[np.argsort(rows["film"], kind="stable")]
    film = rows["film"]
    begins = np.diff(film, prepend=-1) != 0
    head = pc.if_else(pa.array(begins), pc.binary_join_element_wise(_text(film), ":\n", ""), "")
    user = pc.binary_join_element_wise(head, _text(rows["user"]), "")
    date = pc.cast(pa.array(rows["day"].astype("M8[D]")), pa.string())
    lines = pc.binary_join_element_wise(user, _text(rows["rating"]), pc.binary_join_element_wise(date, "\n", ""), ",")
    # The text of all lines lies in one buffer, one after another: that buffer is the file's content.
    offsets, text = lines.buffers()[1:]
    ends = np.frombuffer(offsets, np.int32)
    file.write(memoryview(text)[ends[0] : ends[len(lines)]])


def _text(numbers: np.ndarray) -> pa.Array:
    return pc.cast(pa.array(numbers), pa.string())
