"""Off-policy estimates on real logs of two policies: right where overlap allows, refused where it does not."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from localpolicy.measure.decisions import Decisions
from localpolicy.measure.value import value_of

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("LOCALPOLICY_REAL_DATA", ROOT.parent / "shared" / "data")) / "open-bandit-small"
CAMPAIGNS = ("all", "men", "women")

pytestmark = pytest.mark.skipif(
    not FOLDER.exists(), reason="the Open Bandit sample is not here (set LOCALPOLICY_REAL_DATA)"
)


def read(name: str) -> dict[str, np.ndarray]:
    table = pq.read_table(FOLDER / f"{name}.parquet", columns=["item_id", "position", "click", "propensity_score"])
    return {column: table[column].to_numpy().astype(np.float64) for column in table.column_names}


def frequencies(log: dict[str, np.ndarray], items: int) -> np.ndarray:
    """[position, item] shares of a policy's own log: its propensities vary within them."""
    counts = np.zeros((4, items))
    np.add.at(counts, (log["position"].astype(int), log["item_id"].astype(int)), 1)
    return counts / np.maximum(counts.sum(1, keepdims=True), 1)


def as_decisions(log: dict[str, np.ndarray], policy: np.ndarray) -> Decisions:
    """One decision per row; r̂ is the mean click rate of all, so the doubly robust estimate differs from plain IPS."""
    position, item = log["position"].astype(int), log["item_id"].astype(int)
    mean = np.full(len(item), log["click"].mean())
    return Decisions(policy[position, item] / log["propensity_score"], log["click"], np.arange(len(item)), mean, mean)


@pytest.mark.parametrize("campaign", CAMPAIGNS)
def test_thompson_sampling_is_valued_from_the_random_log(campaign):
    random, thompson = read(f"random_{campaign}"), read(f"bts_{campaign}")
    items = int(max(random["item_id"].max(), thompson["item_id"].max())) + 1
    found = value_of(as_decisions(random, frequencies(thompson, items)))
    assert found.refusal is None
    assert found.overlap.effective > 2000
    # Both the estimate and the click rate of its own log are noisy: a two-sample interval.
    own = thompson["click"].mean()
    own_se = thompson["click"].std(ddof=1) / math.sqrt(len(thompson["click"]))
    for name in ("IPS", "SNIPS", "DR"):
        estimate = found.estimates[name]
        assert abs(estimate.value - own) < 1.96 * math.hypot(estimate.se, own_se), name


def test_the_other_way_round_on_the_womens_campaign_is_refused():
    random, thompson = read("random_women"), read("bts_women")
    found = value_of(as_decisions(thompson, frequencies(random, 46)))
    assert found.estimates == {}
    assert found.overlap.effective == pytest.approx(2.03, abs=0.05)
    assert found.overlap.largest > 20_000
    assert "effective sample 2.0 of 10,000 decisions" in (found.refusal or "")
