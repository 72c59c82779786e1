"""Open Bandit (ZOZO): `{random,bts}/{all,men,women}/*.csv`, or `{random,bts}_{all,men,women}.parquet`.

An impression log: one row per shown item with its true propensity. It names no users, so each row is a sequence
of its own with an empty context (map sequence_id through the generic reader to group rows by user features).
Campaigns number their items apart, and cannot be mixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from localpolicy.data.config import PrepareConfig
from localpolicy.data.log_schema import ROW
from localpolicy.data.published_counts import COUNTED, README, Count, Edition
from localpolicy.data.sources import SourceTable, file_format, find, first_line, parquet_schema, split_line
from localpolicy.errors import DataError

PRESET = {"rename": {"1": "click", "0": "none"}, "rewards": "click=1,none=0"}
EDITIONS = tuple(
    Edition(
        f"Open Bandit, {campaign}",
        rows,
        (
            Count("sequences", rows, source=COUNTED),
            Count("items", items, source=README),
            Count("events", rows, source=COUNTED),
        ),
        source=COUNTED,
    )
    for campaign, items, rows in (
        ("all (random)", 80, 1_374_327),
        ("men (random)", 34, 452_949),
        ("women (random)", 46, 864_585),
        ("all (bts)", 80, 12_357_200),
        ("men (bts)", 34, 4_077_727),
        ("women (bts)", 46, 7_765_497),
    )
)
POLICIES, CAMPAIGNS = ("random", "bts"), ("all", "men", "women")
COLUMNS = {
    "sequence_id": ROW,
    "item_id": "item_id",
    "event": "click",
    "timestamp": "timestamp",
    "propensity": "propensity_score",
}


def tables(paths: Sequence[Path], config: PrepareConfig, scratch: Path) -> list[SourceTable]:
    """Return one table per logging policy."""
    patterns = [f"{campaign}.csv{suffix}" for campaign in CAMPAIGNS for suffix in ("", ".gz")]
    patterns += [
        f"{policy}_{campaign}.{suffix}"
        for policy in POLICIES
        for campaign in CAMPAIGNS
        for suffix in ("csv", "parquet")
    ]
    files = find(paths, *patterns, what="an Open Bandit log")
    named = [_policy_and_campaign(file) for file in files]
    campaigns = sorted({campaign for _, campaign in named})
    if len(campaigns) > 1:
        raise DataError(
            f"these are logs of the campaigns {', '.join(campaigns)}, whose item ids differ: name one of them."
        )
    return [_table(file, policy) for file, (policy, _) in zip(files, named, strict=True)]


def _policy_and_campaign(file: Path) -> tuple[str, str]:
    words = [*file.parent.parts, *file.name.split(".")[0].split("_")]
    policy = next((word for word in reversed(words) if word in POLICIES), None)
    campaign = next((word for word in reversed(words) if word in CAMPAIGNS), None)
    if policy is None or campaign is None:
        raise DataError(f"{file}: cannot tell its policy: expected a folder or file named {' or '.join(POLICIES)}.")
    return policy, campaign


def _table(file: Path, policy: str) -> SourceTable:
    kind = file_format(file)
    names = tuple(parquet_schema(file).names) if kind == "parquet" else split_line(first_line(file), ",")
    return SourceTable((file,), kind, COLUMNS, names, constants={"policy": policy})
