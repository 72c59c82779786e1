"""Real logs through the commands of docs/data.md. Skipped where the folder is absent."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from localpolicy.data.prepare import prepare
from localpolicy.data.rewards import RATINGS
from localpolicy.data.store import Prepared

FOLDER = Path(os.environ.get("LOCALPOLICY_REAL_DATA", Path(__file__).parents[3] / "shared" / "data"))
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="no real data: put it in ../shared/data, or name its folder in LOCALPOLICY_REAL_DATA"
)


def distinct(path: Path, *columns: str) -> int:
    return pq.read_table(path, columns=list(columns)).group_by(list(columns)).aggregate([]).num_rows


def test_movielens_has_its_counts(tmp_path: Path) -> None:
    log = FOLDER / "movielens-latest-small-2016" / "ratings.parquet"
    columns = {"sequence_id": "user_id", "item_id": "movie_id", "event": "rating"}
    data = prepare("events", [log], out=tmp_path / "data", columns=columns, rewards=RATINGS)
    counts = data.manifest["counts"]
    assert (counts["sequences"], counts["items"], sum(counts["events"].values())) == (671, 9_066, 100_004)
    ratings = pq.read_table(log).column("rating")
    good = pc.sum(pc.greater_equal(ratings, 4.0)).as_py()
    assert sum(int((split.arrays["reward"] == 1).sum()) for split in data.splits.values()) == good


def test_buyers_of_retailrocket_have_their_counts(tmp_path: Path) -> None:
    log = FOLDER / "retailrocket" / "retail_beh_buyer_sequences.parquet"
    data = prepare(
        "events",
        [log],
        out=tmp_path / "data",
        columns={"sequence_id": "split+seq_id"},
        rename={"0": "click", "1": "purchase"},
        drop_events=("2",),
    )
    codes = {row["values"]: row["counts"] for row in pq.read_table(log).column("event").value_counts().to_pylist()}
    assert data.manifest["counts"]["events"] == {"click": codes[0], "purchase": codes[1]}
    assert data.manifest["counts"]["sequences"] <= distinct(log, "split", "seq_id")


def test_views_of_retailrocket_have_their_counts(tmp_path: Path) -> None:
    log = FOLDER / "retailrocket" / "cotrec_train_view_sequences.parquet"
    data = prepare("events", [log], out=tmp_path / "data", columns={"sequence_id": "seq_id"}, event="click")
    counts = data.manifest["counts"]
    assert (counts["sequences"], counts["items"], counts["events"]) == (126_168, 36_968, {"click": 685_984})


@pytest.mark.parametrize("campaign", ["all", "men", "women"])
def test_open_bandit_has_its_counts(tmp_path: Path, campaign: str) -> None:
    logs = [FOLDER / "open-bandit-small" / f"{policy}_{campaign}.parquet" for policy in ("bts", "random")]
    data: Prepared = prepare("openbandit", logs, out=tmp_path / "data")
    clicks = sum(pc.sum(pq.read_table(log).column("click")).as_py() for log in logs)
    assert data.kind == "impressions"
    assert data.manifest["counts"]["events"] == {"click": clicks, "none": 20_000 - clicks}
    assert data.manifest["policies"] == ["bts", "random"]
    assert data.n_items == {"all": 80, "men": 34, "women": 46}[campaign]
