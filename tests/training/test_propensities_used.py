"""When `mle` uses stated probabilities by itself: all that was shown is in the log."""

from __future__ import annotations

import numpy as np
import pytest
from small_logs import EVENTS, REWARDS, write_small

from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.errors import DataError
from localpolicy.objectives import MLE
from localpolicy.runs.config import Config
from localpolicy.training.checks import check_data
from localpolicy.training.setup import resolve
from localpolicy.training.train import train

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
def test_on_lists_and_under_filters_too(column, small, monkeypatch):
    """A list of one, as a service logs it where it shows one item, is no reason to learn from draws alone."""
    arrays = small["train"].arrays
    monkeypatch.setitem(arrays, column, np.zeros(len(arrays["item"]), np.int32))
    assert used(small) == "logged"
    check_data(small, MLE(propensities="logged"))


def test_positions_without_a_stated_probability_have_their_likelihood(small, monkeypatch):
    arrays = small["train"].arrays
    monkeypatch.setitem(arrays, "propensity", np.full(len(arrays["item"]), np.nan, np.float32))
    check_data(small, MLE(propensities="logged"))
    with pytest.raises(DataError, match=r"in \(0, 1\]"):
        monkeypatch.setitem(arrays, "propensity", np.full(len(arrays["item"]), 2.0, np.float32))
        check_data(small, MLE(propensities="logged"))


@pytest.mark.parametrize("true", [True, False])
def test_propensities_that_cannot_be_true_are_doubted(true, tmp_path, caplog):
    """E_μ[π/μ] = 1 for every π. Here the second log states each item's probability as another's."""
    mu = np.array([0.4, 0.3, 0.2, 0.06, 0.04])
    rng = np.random.default_rng(0)
    with writing(
        tmp_path / "data", kind="impressions", events=EVENTS, rewards=REWARDS, optional=("propensity",)
    ) as store:
        for split, n in {"train": 2_000, "validation": 500, "test": 10}.items():
            item = rng.choice(5, n, p=mu)
            stated = (mu if true else mu[::-1])[item]
            event = rng.integers(0, 2, n)
            arrays = {"item": item, "event": event, "reward": 0.2 * event, "propensity": stated}
            store.splits[split].append(np.full(n // 2, 2), arrays)
        store.write_items(np.arange(5), np.ones(5, np.int64))
    train(Prepared(tmp_path / "data"), "mle", out=tmp_path / "run", width=8, epochs=3, learning_rate=0.01, device="cpu")
    assert ("the log's propensities are doubtful" in caplog.text) is not true
