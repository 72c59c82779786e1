"""Simple baselines are exported and served like trained policies, and give what their definitions give."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient

from localpolicy.errors import ConfigError
from localpolicy.model.baselines import KINDS
from localpolicy.model.histories import batch_from, index_of, recommend_with
from localpolicy.model.item_orders import ItemOrder
from localpolicy.runs.baselines import fit_baseline
from localpolicy.serving.app import make_app
from localpolicy.serving.baseline_scorer import BaselineScorer
from localpolicy.serving.config import ServeConfig
from localpolicy.serving.export import export

HISTORIES = [[], [100], [103, 104, 100, 111], [100 + n % 12 for n in range(30)], [999, 105, 999]]
EVENTS = [[], ["click"], ["none", "click", "purchase", "none"], ["none", "click"] * 15, ["click", "purchase", "none"]]


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("dearest", "most recent")])
def test_an_exported_baseline_gives_what_the_baseline_gives(name, small, tmp_path):
    baseline = fit_baseline(name, small, out=tmp_path / "fitted")
    made = export(tmp_path / "fitted", out=tmp_path / "export")
    batch = batch_from(HISTORIES, EVENTS, index=index_of(baseline.items), names=baseline.origin.events)
    expected = torch.log_softmax(baseline.logits(batch).chunk(0, len(baseline.items)), dim=1).double()
    scores = torch.log_softmax(torch.from_numpy(made.logits(HISTORIES, EVENTS)).double(), dim=1)
    assert (scores - expected).abs().max() < 1e-5
    assert issubclass(KINDS[name], ItemOrder) == bool((expected - expected[0]).abs().max() < 1e-6), "histories matter"
    # Without events, a history was answered. Equal scores may swap places: so scores are compared, not items.
    lists, best = made.recommend(HISTORIES, 5, sample=False), recommend_with(baseline, HISTORIES, 5)
    difference = made.log_probabilities(HISTORIES, lists.indices) - best.log_probability.numpy()
    assert np.abs(difference).max() < 1e-5
    with pytest.raises(ConfigError, match=f"a {name} policy has no dial"):
        made.logits([[100]], beta=1.0)
    with pytest.raises(ConfigError, match="no rows to round"):
        export(tmp_path / "fitted", out=tmp_path / "rounded", int8=True)


def test_item_neighbours_by_hand():
    """S[0] = (1, ½, 0), S[2] = (0, 0, 1): items 2 then 0 give 0.8 · 1 at item 2, and 1 and ½ at items 0 and 1."""
    arrays = {
        "share": np.array([0.5, 0.25, 0.25]), "data": np.array([1.0, 0.5, 1.0]), "indices": np.array([0, 1, 2]),
        "indptr": np.array([0, 2, 2, 3]),
    }  # fmt: skip
    settings = {"codes": [1], "depth": 2, "decay": 0.8, "background": 0.1}
    items, events = np.array([[-1, 1, 2, 0, 1]]), np.array([[0, 1, 1, 1, 0]])  # the last was shown in vain
    logits = BaselineScorer(arrays, settings).logits(items, events, np.array([5]))
    total = 1 + 0.5 + 0.8
    expected = [0.9 * 1 / total + 0.1 * 0.5, 0.9 * 0.5 / total + 0.1 * 0.25, 0.9 * 0.8 / total + 0.1 * 0.25]
    np.testing.assert_allclose(np.exp(logits[0]), expected, rtol=1e-6)


def test_a_baseline_is_served_with_exact_propensities(small, tmp_path):
    fit_baseline("item-knn", small, out=tmp_path / "fitted")
    made = export(tmp_path / "fitted", out=tmp_path / "export")
    config = ServeConfig.parse({"export": made.folder, "log": str(tmp_path / "log.db")})
    with TestClient(make_app(config)) as client:
        answer = client.post("/v1/recommend", json={"history": [100, 104], "k": 3}).json()
        assert client.post("/v1/recommend", json={"history": [100], "beta": 0.5}).status_code == 422
    weights = np.exp(made.logits([[100, 104]])[0].astype(np.float64))
    left = weights.sum()
    for item, propensity in zip(answer["items"], answer["propensities"], strict=True):
        weight = weights[made.index[item]]
        assert propensity == pytest.approx(weight / left, rel=1e-5)
        left -= weight
    assert (answer["mode"], answer["policy"]) == ("drawn", made.version)
