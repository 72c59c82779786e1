"""Simple baselines by their definitions, counted by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from measured import log, random_sequences
from scipy import sparse

from localpolicy.data.batches import batch_of_histories
from localpolicy.data.store import CONTEXT
from localpolicy.model.baselines import BASELINES, ItemNeighbours, LastItem, Popularity, popularity, recent, similarity

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


@pytest.mark.parametrize("name", BASELINES)
def test_rows_are_the_same_in_pieces(tmp_path, name):
    data = log(tmp_path / "data", random_sequences(20, 30), items=30)
    made = BASELINES[name](data)
    rows = made.logits(batch_of_histories(random_sequences(12, 30, seed=1), length=20))
    whole = rows.chunk(0, 30)
    assert torch.isfinite(whole).all()
    assert torch.equal(torch.cat([rows.chunk(0, 11), rows.chunk(11, 30)], dim=1), whole)
    assert torch.equal(rows.part(3, 9).chunk(0, 30), whole[3:9])
    items = torch.arange(12)
    assert torch.equal(rows.at(items), whole.gather(1, items[:, None]).squeeze(1))


def test_popularity_of_what_was_shown(tmp_path):
    """Item 0 was shown three times and answered once; context was chosen by nobody."""
    names = ["none", "click", CONTEXT]
    data = log(tmp_path / "data", [[0, 0, 0, 1, 2]], events=[[0, 0, 1, 1, 2]], items=3, names=names)
    np.testing.assert_allclose(popularity(data), np.array([1.5, 1.5, 0.5]) / 3.5)
    np.testing.assert_allclose(popularity(data, shown=True), np.array([3.5, 1.5, 0.5]) / 5.5)
