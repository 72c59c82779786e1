"""Simple baselines by their definitions, counted by hand."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from measured import log, random_sequences
from scipy import sparse

import localpolicy as lp
from localpolicy.data.batches import batch_of_histories
from localpolicy.data.store import CONTEXT
from localpolicy.errors import ConfigError
from localpolicy.model.baselines import (
    BASELINES,
    ItemNeighbours,
    LastItem,
    Popularity,
    popularity,
    recent,
    similarity,
    simple_baselines,
)
from localpolicy.model.factors import Factors
from localpolicy.model.fold_in import fold_in
from localpolicy.model.item_orders import Dearest, ItemMean, MostRecent
from localpolicy.runs.baselines import fit_baseline

SEQUENCES = [[0, 1, 2], [0, 1], [1, 3, 1], [4, 0]]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return log(tmp_path_factory.mktemp("baselines") / "data", SEQUENCES, items=6)


def distribution(made, history, events=None):
    batch = batch_of_histories([history], None if events is None else [events], length=50)
    batch.previous_event[1:] = torch.tensor(events or [1] * len(history))
    rows = made.logits(batch)
    return torch.softmax(rows.chunk(0, rows.shape[1]).double(), dim=1)[0].numpy()


def test_popularity_counts_answers(data, tmp_path):
    counts = np.array([3, 4, 1, 1, 1, 0]) + 0.5
    np.testing.assert_allclose(distribution(Popularity.fit(data), [2]), counts / counts.sum(), rtol=1e-5)
    ignored = log(tmp_path / "some", [[0, 1, 1]], events=[[0, 1, 2]], items=3)
    counts = np.array([0, 2, 0]) + 0.5
    np.testing.assert_allclose(distribution(Popularity.fit(ignored), []), counts / counts.sum(), rtol=1e-5)


def test_last_item_comes_first_then_popularity(data):
    made = LastItem.fit(data)
    share = distribution(Popularity.fit(data), [])
    found = distribution(made, [0, 5])
    np.testing.assert_allclose(found, 0.5 * share + 0.5 * (np.arange(6) == 5), rtol=1e-5)
    np.testing.assert_allclose(distribution(made, []), share, rtol=1e-5)
    # An item that was shown in vain is not an answer.
    assert distribution(made, [0, 5], [1, 0]).argmax() == 0


def test_similarity_is_the_cosine_of_sets_of_sequences():
    members = sparse.csr_matrix(np.array([[1, 1, 1, 0], [1, 1, 0, 0], [0, 1, 0, 1]], dtype=float))
    found = similarity(members, neighbours=10).toarray()
    sets = [{0, 1}, {0, 1, 2}, {0}, {2}]
    expected = [[len(a & b) / math.sqrt(len(a) * len(b)) for b in sets] for a in sets]
    np.testing.assert_allclose(found, expected)
    nearest = similarity(members, neighbours=2).toarray()
    assert (nearest > 0).sum(1).max() == 2
    assert (nearest.max(1) == found.max(1)).all()


def test_neighbours_weigh_recent_items_more(data):
    made = ItemNeighbours.fit(data)
    similar = made.similar.toarray()
    share = distribution(Popularity.fit(data), [])
    for history in ([2], [2, 4], [4, 3, 1]):
        scores = sum(0.8**lag * similar[item] for lag, item in enumerate(reversed(history)))
        expected = 0.9 * scores / scores.sum() + 0.1 * share
        np.testing.assert_allclose(distribution(made, history), expected, rtol=1e-4)


def test_recent_answers_of_each_position():
    batch = batch_of_histories([[5, 6, 7], [], [8]], [[1, 0, 2], [], [1]], length=10)
    row, item, lag = recent(batch, [1, 2], depth=2)
    assert list(zip(row.tolist(), item.tolist(), lag.tolist(), strict=True)) == [(0, 7, 0), (0, 5, 1), (2, 8, 0)]
    row, item, lag = recent(batch, [1, 2], depth=1)
    assert list(zip(row.tolist(), item.tolist(), strict=True)) == [(0, 7), (2, 8)]


@pytest.mark.parametrize("name", [name for name in BASELINES if name not in ("dearest", "most recent")])
def test_rows_are_the_same_in_pieces(tmp_path, name):
    data = log(tmp_path / "data", random_sequences(20, 30), items=30)
    made = BASELINES[name](data)
    rows = made.logits(batch_of_histories(random_sequences(12, 30, seed=1), length=20))
    whole = rows.chunk(0, 30)
    assert torch.isfinite(whole).all()
    assert torch.equal(torch.cat([rows.chunk(0, 11), rows.chunk(11, 30)], dim=1), whole)
    if name != "ALS":  # linear in a hidden state, of which a part is a slice
        assert torch.equal(rows.part(3, 9).chunk(0, 30), whole[3:9])
    items = torch.arange(12)
    assert torch.equal(rows.at(items), whole.gather(1, items[:, None]).squeeze(1))


def test_folding_in_is_the_ridge_regression():
    """(G + λI + α Σ_taken y yᵀ) x = (1 + α) Σ_taken y, solved row by row; a user without answers has factors 0."""
    rng = np.random.default_rng(0)
    factors, ridge, alpha = rng.normal(size=(9, 4)), 0.3, 5.0
    gram = factors.T @ factors + ridge * np.eye(4)
    taken = [[0, 3, 4], [], [8], [1, 1, 2]]
    row = np.repeat(np.arange(4), [len(each) for each in taken])
    found = fold_in(factors, gram, row, np.concatenate(taken).astype(int), 4, alpha=alpha, steps=4)
    for x, items in zip(found, taken, strict=True):
        here = factors[items]
        expected = np.linalg.solve(gram + alpha * here.T @ here, (1 + alpha) * here.sum(0))
        np.testing.assert_allclose(x, expected, atol=1e-9)


def test_factors_put_items_of_one_group_together(tmp_path):
    """Two groups of items, each answered by its own people: one item of a group puts the others of it first."""
    rng = np.random.default_rng(0)
    groups = [range(6), range(6, 12)]
    sequences = [rng.choice(groups[n % 2], 4, replace=False).tolist() for n in range(60)]
    made = Factors.fit(log(tmp_path / "data", sequences, items=12))
    for item in range(12):
        best = np.argsort(-distribution(made, [item]))[:6]
        assert set(best) == set(groups[item // 6])
    np.testing.assert_allclose(distribution(made, []), made.share, rtol=1e-5)


PRICES = {"item_id": list(range(4)), "price": [3.0, 9.0, 1.0, 9.0]}


def test_orders_by_hand(tmp_path):
    """Item 0 is taken most and early, 1 late, 2 is bought; prices are a column of the item table."""
    rows = [(f"s{n}", n % 2, "view", 1_000_000 + n) for n in range(60)]
    rows += [(f"s{n}", 0, "view", 1_000_100 + n) for n in range(60)]
    rows += [(f"s{n}", 2, "buy", 1_000_200 + n) for n in range(0, 60, 6)]
    rows += [(f"s{n}", 1, "view", 1_009_000 + n) for n in range(30)]
    log_of = pd.DataFrame(rows, columns=["sequence_id", "item_id", "event", "timestamp"])
    data = lp.prepare(log_of, out=tmp_path / "data", rewards={"view": 0.2, "buy": 1.0}, items=pd.DataFrame(PRICES))
    arrays, ids = data["train"].arrays, data.catalogue["item_id"].to_pylist()
    popular = {ids[n]: share for n, share in enumerate(popularity(data).tolist())}

    def order(kind):
        made = kind.fit(data).share.tolist()
        assert sorted(made) == sorted(popular.values()), "the same shares, dealt out anew"
        return [ids[n] for n in np.argsort([-share for share in made], kind="stable")]

    assert order(ItemMean)[0] == 2 and order(MostRecent)[0] == 1
    assert order(Popularity)[0] == max(popular, key=popular.get) == 0
    dear = order(Dearest)
    assert set(dear[:2]) == {1, 3} and dear[0] == 1 and dear[-1] == 2, "of equal prices the more popular one"
    of_two = arrays["item"] == ids.index(2)
    mean = arrays["reward"].mean()
    expected = (of_two.sum() * 1.0 + 5 * mean) / (of_two.sum() + 5)
    np.testing.assert_allclose(ItemMean.scores(data)[ids.index(2)], expected, rtol=1e-6)
    assert set(simple_baselines(data)) == set(BASELINES)


def test_a_log_has_the_baselines_that_it_supports(tmp_path):
    clicks = log(tmp_path / "clicks", random_sequences(20, 9), names=["click", "other"], events=None)
    assert {"popularity", "last item", "item-kNN", "ALS"} <= set(simple_baselines(clicks))
    assert {"dearest", "most recent"}.isdisjoint(simple_baselines(clicks))
    with pytest.raises(ConfigError, match="no baseline 'most recent': the log has no times"):
        fit_baseline("most-recent", clicks, out=tmp_path / "out")


def test_popularity_counts_shown_items_on_request(tmp_path):
    """Item 0 was shown three times and answered once; context was chosen by nobody."""
    names = ["none", "click", CONTEXT]
    data = log(tmp_path / "data", [[0, 0, 0, 1, 2]], events=[[0, 0, 1, 1, 2]], items=3, names=names)
    np.testing.assert_allclose(popularity(data), np.array([1.5, 1.5, 0.5]) / 3.5)
    np.testing.assert_allclose(popularity(data, shown=True), np.array([3.5, 1.5, 0.5]) / 5.5)
