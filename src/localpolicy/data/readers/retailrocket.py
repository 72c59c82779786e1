"""RetailRocket: `events.csv` (timestamp, visitorid, event, itemid, transactionid).

The paper's recipe, from its lineage's public scripts: rows with a transaction id are dropped, a click is a view,
a purchase is an addtocart, a sequence is a visitor; visitors with at most two events go, then items with at most
two, in one pass; sequences that the item filter shortened stay.
Expected: 195,523 sequences, 70,852 items, 1,233,949 events, 57,269 of them purchases.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from localpolicy.data.config import PrepareConfig
from localpolicy.data.published_counts import PAPER, Count, Edition
from localpolicy.data.sources import SourceTable, find, first_line, split_line

PRESET = {"rename": {"view": "click", "addtocart": "purchase"}, "min_events": 3, "min_item_events": 3}
EDITIONS = (
    Edition(
        "RetailRocket",
        rows=2_664_312 + 69_332,
        counts=(
            Count("sequences", 195_523, source=PAPER),
            Count("items", 70_852, source=PAPER),
            Count("events", 1_233_949, source="the sum of its lineage's item counts"),
            Count("click", 1_176_680, source=PAPER, note="published as 1.18 M, here the rest of the events"),
            Count("purchase", 57_269, source=PAPER),
        ),
        source="its page at Kaggle",
    ),
)
COLUMNS = {"sequence_id": "visitorid", "timestamp": "timestamp", "item_id": "itemid", "event": "event"}


def tables(paths: Sequence[Path], config: PrepareConfig, scratch: Path) -> list[SourceTable]:
    """Return the table of events, without rows of transactions."""
    files = find(paths, "events.csv", "events.csv.gz", what="RetailRocket's events")
    names = split_line(first_line(files[0]), ",")
    where = "{transactionid} IS NULL" if "transactionid" in names else ""
    return [SourceTable(tuple(files), "csv", COLUMNS, names, where=where)]
