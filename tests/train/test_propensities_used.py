"""When `mle` uses stated probabilities by itself: all that was shown is in the log, and all could be shown."""

from __future__ import annotations

import numpy as np
import pytest
from small_logs import write_small

from localpolicy.errors import DataError
from localpolicy.objectives import MLE
from localpolicy.runs.config import Config
from localpolicy.training.checks import check_data
from localpolicy.training.loop import train
from localpolicy.training.setup import resolve

CONFIG = Config.parse(
    {"objective": {"name": "mle"}, "model": {"width": 8}, "train": {"epochs": 1, "device": "cpu", "batch_size": 64}}
)


def used(data):
    return resolve(CONFIG, data).objective.propensities


def test_on_impressions_and_not_on_interactions(small, tmp_path):
    assert used(small) == "logged"
    assert used(write_small(tmp_path / "interactions", propensity=False)) == "unused"
    run = train(small, out=tmp_path / "run", config=CONFIG)
    assert run.config.objective.propensities == "logged" and "control" in run.metrics()[-1]["losses"]


@pytest.mark.parametrize("column", ["above", "filter"])
def test_not_where_some_items_could_not_be_chosen(column, small, monkeypatch):
    arrays = small["train"].arrays
    monkeypatch.setitem(arrays, column, np.zeros(len(arrays["item"]), np.int32))
    assert used(small) == "unused"
    with pytest.raises(DataError, match="every item could be chosen"):
        check_data(small, MLE(propensities="logged"))


def test_positions_without_a_stated_probability_have_their_likelihood(small, monkeypatch):
    arrays = small["train"].arrays
    monkeypatch.setitem(arrays, "propensity", np.full(len(arrays["item"]), np.nan, np.float32))
    check_data(small, MLE(propensities="logged"))
    with pytest.raises(DataError, match=r"in \(0, 1\]"):
        monkeypatch.setitem(arrays, "propensity", np.full(len(arrays["item"]), 2.0, np.float32))
        check_data(small, MLE(propensities="logged"))
