"""YooChoose (RecSys Challenge 2015): `yoochoose-clicks.dat` and `yoochoose-buys.dat`, no header.

The paper's recipe: sessions with more than two clicks, with their buys, sorted by session and time.
Published: 4.43 M sequences, 48,255 items, 24.6 M clicks and 1.15 M purchases (before the cut to the latest 20).
The last is the total of the raw file; after the filter about 0.97 M would fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from localpolicy.data.config import PrepareConfig
from localpolicy.data.published_counts import COUNTED, PAPER, Count, Edition
from localpolicy.data.sources import SourceTable, find

PRESET = {"min_clicks": 3}
EDITIONS = (
    Edition(
        "YooChoose",
        rows=33_003_944 + 1_150_753,
        counts=(
            Count("sequences", 4_430_000, rounded=True, source=PAPER),
            Count("items", 48_255, source=PAPER),
            Count("click", 24_600_000, rounded=True, source=PAPER),
            Count(
                "purchase", 1_150_000, rounded=True, source=PAPER, note="probably unfiltered, about 0.97 M would fit"
            ),
        ),
        source=COUNTED,
    ),
)
COLUMNS = {"sequence_id": "session", "timestamp": "time", "item_id": "item"}


def tables(paths: Sequence[Path], config: PrepareConfig, scratch: Path) -> list[SourceTable]:
    """Return the tables of clicks, then of buys."""
    clicks = find(paths, "yoochoose-clicks.dat", "yoochoose-clicks.dat.gz", what="YooChoose's clicks")
    buys = find(paths, "yoochoose-buys.dat", "yoochoose-buys.dat.gz", what="YooChoose's buys")
    names = {
        "click": ("session", "time", "item", "category"),
        "purchase": ("session", "time", "item", "price", "quantity"),
    }
    return [
        SourceTable(tuple(files), "csv", COLUMNS, names[event], header=False, constants={"event": event})
        for event, files in (("click", clicks), ("purchase", buys))
    ]
