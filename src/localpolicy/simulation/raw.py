"""Raw files in the original formats, at any size, for readers and for measuring; they have no truth.

`yoochoose` and `retailrocket` are visits to the simulated shop in which nearly every item shown is clicked, so that
rows are users' actions. `netflix` (in its own module) rates films. Users come in chunks, so memory does not grow with
the size of the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from localpolicy.limits import DAY
from localpolicy.simulation.distributions import Lengths
from localpolicy.simulation.events import Events, Progress
from localpolicy.simulation.store_config import StoreConfig
from localpolicy.simulation.store_world import StoreWorld

CHUNK = 131_072  # visits made at once
Rows = dict[str, int]  # rows written, by kind


# 52,739 items; 5.5 % of sessions buy, and those that do buy about twice.
YOOCHOOSE = StoreConfig(items=52_739, click_base=6.0, purchase_base=-14.0, intent=8.0, lookahead=0.0)
# Of 9.25 M sessions 13.5 % have one click and 38.6 % two; the others' mean is 5.6.
YOOCHOOSE_LENGTHS = Lengths(short=(0.135, 0.386), tail=3.0, scale=6.1, longest=200)
YOOCHOOSE_BEGIN, YOOCHOOSE_DAYS = 1_396_310_400_000, 183  # 2014-04-01
YOOCHOOSE_FIRST_ITEM = 214_500_000


# 235,061 items; 2.5 carts per 100 views. The item marginal is fitted to the real one after the paper's filters
# (visitors, then items, with more than two events), at full size: 68,219 items remain of 70,852 and 1,230,264
# events of 1,233,949; the number of items with at least c events is within 4 % for every c from 3 to 200, within
# 10 % beyond. A Zipf-Mandelbrot law misses by up to 60 %: the real marginal bends.
RETAILROCKET = StoreConfig(
    items=235_061,
    popularity=0.641,
    popularity_scale=0.068,
    category_tail=0.48,
    repeats=0.368,
    click_base=6.0,
    purchase_base=-5.2,
    intent=2.0,
    lookahead=0.0,
)
# P(L >= k) = k^-1.79: of 1.41 M visitors 71 % have one event, 14 % more than two (mean 1.9, in truth 1.96).
RETAILROCKET_LENGTHS = Lengths(tail=1.79, scale=1.0, longest=300)
RETAILROCKET_BEGIN, RETAILROCKET_DAYS = 1_430_622_000_000, 138  # 2015-05-03
TRANSACTIONS = 0.32  # share of carts that are paid
RETURN = 0.1  # share of a visitor's events that come on another day


def write_yoochoose(folder: Path, config: StoreConfig, *, sequences: int, seed: int, progress: Progress | None) -> Rows:
    """Write `yoochoose-clicks.dat` (session,time,item,category) and `-buys.dat` (session,time,item,price,quantity)."""
    rows = {"clicks": 0, "buys": 0}
    with (folder / "yoochoose-clicks.dat").open("wb") as clicks, (folder / "yoochoose-buys.dat").open("wb") as buys:
        for visits, rng in _visits(config, YOOCHOOSE_LENGTHS, sequences, seed, progress):
            session = 1 + np.repeat(visits.sequence, visits.lengths)
            time = _spread(visits, YOOCHOOSE_BEGIN, YOOCHOOSE_DAYS, 0.0, rng)
            # The original names the category of few clicks: "0" is unknown, "S" a special offer, 1-12 a shelf.
            category = np.where(rng.random(len(session)) < 0.5, 0, 1 + visits.item % 13)
            shelf = pa.array([*map(str, range(13)), "S"]).take(pa.array(category))
            item = YOOCHOOSE_FIRST_ITEM + visits.item.astype(np.int64)
            rows["clicks"] += _write_csv(clicks, session, _iso(time), item, shelf)
            bought = visits.event == 2
            price = 100 * (1 + visits.item[bought] % 97)
            quantity = rng.geometric(0.8, int(bought.sum()))
            # Carts are paid at the end of a session, after its last click.
            paid = np.repeat(time[np.cumsum(visits.lengths) - 1], visits.lengths)[bought] + 60_000
            rows["buys"] += _write_csv(buys, session[bought], _iso(paid), item[bought], price, quantity)
    return rows


def write_retailrocket(
    folder: Path, config: StoreConfig, *, sequences: int, seed: int, progress: Progress | None
) -> Rows:
    """Write `events.csv`: timestamp,visitorid,event,itemid,transactionid; events view, addtocart, transaction."""
    names = ["view", "addtocart", "transaction"]
    counts = np.zeros(3, np.int64)
    with (folder / "events.csv").open("wb") as file:
        file.write(b"timestamp,visitorid,event,itemid,transactionid\n")
        for visits, rng in _visits(config, RETAILROCKET_LENGTHS, sequences, seed, progress):
            time = _spread(visits, RETAILROCKET_BEGIN, RETAILROCKET_DAYS, RETURN, rng)
            carted = visits.event == 2
            paid = carted & (rng.random(len(carted)) < TRANSACTIONS)
            # Each event gives one row, two or three: viewed, put into the cart, paid.
            copies = 1 + carted + paid
            first = np.cumsum(copies) - copies
            kind = np.arange(copies.sum()) - np.repeat(first, copies)
            transaction = np.where(kind == 2, int(counts[2]) + np.cumsum(kind == 2) - 1, -1)
            _write_csv(
                file,
                np.repeat(time, copies) + 2_000 * kind,
                np.repeat(np.repeat(visits.sequence, visits.lengths), copies),
                pa.array(names).take(pa.array(kind)),
                np.repeat(visits.item, copies),
                pa.array(transaction, mask=transaction < 0),
            )
            counts += np.bincount(kind, minlength=3)
    return dict(zip(names, counts.tolist(), strict=True))


def _visits(
    config: StoreConfig, law: Lengths, sequences: int, seed: int, progress: Progress | None
) -> Iterator[tuple[Events, np.random.Generator]]:
    """Answered items of every visit, and a random generator for the other columns of a row."""
    world = StoreWorld(config, seed=seed)
    for number, first in enumerate(range(0, sequences, CHUNK)):
        shop, choices, rest = (np.random.default_rng([seed, part, number]) for part in (1, 2, 3))
        size = min(CHUNK, sequences - first)
        lengths = law.sample(size, rest)
        visits = world.visits(np.arange(first, first + size, dtype=np.int64), lengths, shop, choices)
        yield visits.interactions(world.events), rest
        if progress is not None:
            progress(size)


def _spread(visits: Events, begin: int, days: int, returns: float, rng: np.random.Generator) -> np.ndarray:
    """Draw times over `days`: a visit begins at any moment; some of its events come on another day."""
    gaps = rng.exponential(60_000, len(visits)) + np.where(
        rng.random(len(visits)) < returns, rng.exponential(3 * DAY, len(visits)), 0
    )
    elapsed = np.cumsum(1 + gaps.astype(np.int64))
    start = begin + rng.integers(days * DAY, size=len(visits.lengths))
    first = np.cumsum(visits.lengths) - visits.lengths
    return np.asarray(np.repeat(start - elapsed[first], visits.lengths) + elapsed)


def _iso(time: np.ndarray) -> pa.Array:
    """Times as texts: 2014-04-07T10:51:09.277Z."""
    text = pc.cast(pa.array(time.astype("M8[ms]")), pa.string())  # eight times as fast as strftime
    return pc.binary_join_element_wise(pc.utf8_replace_slice(text, 10, 11, "T"), "Z", "")


def _write_csv(file: Any, *columns: Any) -> int:
    table = pa.table(list(map(pa.array, columns)), names=[str(number) for number in range(len(columns))])
    csv.write_csv(table, file, csv.WriteOptions(include_header=False, quoting_style="none"))
    return int(table.num_rows)
