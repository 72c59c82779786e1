"""What `lpi_observed` takes from the log: the smallest reward and the form, and a run that keeps them."""

from __future__ import annotations

import numpy as np
import pytest
from shop_logs import write_shop

from localpolicy.data.store import CONTEXT, Prepared
from localpolicy.data.store_writer import writing
from localpolicy.objectives import LPIObserved
from localpolicy.training import setup
from localpolicy.training.setup import resolved_by, rewards_of
from localpolicy.training.train import train

TINY = {"width": 8, "epochs": 2, "batch_size": 32, "device": "cpu", "min_history": 0}


@pytest.mark.parametrize("block", [1, 3, 1 << 20])
def test_the_smallest_three_rewards_whatever_the_blocks(block, tmp_path, monkeypatch):
    monkeypatch.setattr(setup, "BLOCK", block)
    with writing(tmp_path / "data", kind="interactions", events=["play"]) as store:
        reward = np.array([0.5, 3.0, 0.25, 0.5, 2.0, -1.0, 3.0], np.float32)
        store.splits["train"].append(
            np.array([7]), {"item": np.zeros(7, int), "event": np.zeros(7, int), "reward": reward}
        )
        store.write_items(np.arange(1), np.ones(1, np.int64))
    assert rewards_of(Prepared(tmp_path / "data")) == [-1.0, 0.25, 0.5]


def test_rows_that_nobody_chose_have_no_reward(tmp_path):
    with writing(tmp_path / "data", kind="impressions", events=["click", "purchase", CONTEXT]) as store:
        columns = {
            "item": np.zeros(4, int),
            "event": np.array([2, 0, 1, 0]),
            "reward": np.array([0.0, 0.25, 1.0, 0.25]),
        }
        store.splits["train"].append(np.array([4]), columns)
        store.write_items(np.arange(1), np.ones(1, np.int64))
    data = Prepared(tmp_path / "data")
    assert rewards_of(data) == [0.25, 1.0]
    assert resolved_by(LPIObserved(), data) == LPIObserved(form="exponential", smallest=0.25)


def test_a_run_keeps_what_it_took_and_fine_tunes_with_a_td_loss(tmp_path):
    data = write_shop(tmp_path / "data")
    run = train(data, "lpi_observed", out=tmp_path / "run", **TINY)
    found = run.config.objective
    assert (found.form, found.smallest) == ("exponential", pytest.approx(0.2))
    weights = run.selected_metrics()["weights"]
    assert 0.5 < weights["effective_share"] < 0.99, "purchases weigh e^0.8, clicks 1"
    tuned = LPIObserved(beta=3.0, td_weight=1.0, form="affine")
    again = train(data, tuned, out=tmp_path / "tuned", warm_start=str(run.folder), **TINY)
    assert again.config.objective.td_weight == 1.0 and again.manifest["warm_start"]["heads"] == ["policy"]
