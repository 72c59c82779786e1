"""Lists: the exact k best, and draws without replacement whose propensities are those of the draw."""

from __future__ import annotations

from itertools import permutations
from math import prod, sqrt

import pyarrow as pa
import pytest
import torch

from localpolicy.catalogue import BACKENDS, backend, chunks
from localpolicy.catalogue.masked import MaskedLogits
from localpolicy.errors import DataError
from localpolicy.logits import DenseLogits, Head
from localpolicy.model import lists as lists_module
from localpolicy.model.lists import draw_lists

P = [0.5, 0.25, 0.15, 0.1]
DRAWS = 40_000


def draw(values, k, *, sample=False, forbidden=None, seed=0, name="chunked"):
    return draw_lists(
        DenseLogits(values), k, ids=pa.array([f"i{item}" for item in range(values.shape[1])]),
        forbidden=forbidden or [[] for _ in range(len(values))], sample=sample,
        generator=torch.Generator().manual_seed(seed), catalogue=backend(name),
    )  # fmt: skip


def rows_of(p, n=1):
    return (torch.tensor(p, dtype=torch.float64).log() + 1.7).repeat(n, 1)


@pytest.mark.parametrize("name", list(BACKENDS))
def test_the_k_best_are_exact(name, monkeypatch):
    monkeypatch.setattr(chunks, "_width", lambda *_: 3)
    values = torch.randn(9, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for k in (1, 5, 20):
        lists = draw(values.clone(), k, name=name)
        expected = torch.log_softmax(values, 1).sort(1, descending=True)
        assert torch.equal(lists.indices, expected.indices[:, :k])
        torch.testing.assert_close(lists.log_probability, expected.values[:, :k], rtol=1e-11, atol=1e-12)
        assert lists.items == [[f"i{item}" for item in row] for row in lists.indices.tolist()]
        assert lists.propensity is None


@pytest.mark.parametrize("scale", [1.0, 300.0])  # of the latter e^score is beyond float32
@pytest.mark.parametrize("half", [False, True])
def test_linear_rows_are_read_in_parts(monkeypatch, scale, half):
    """Seven rows, three at a time, each with its own forbidden items, equal one matrix of all scores."""
    monkeypatch.setattr(lists_module, "CACHED", 3)
    random = torch.Generator().manual_seed(1)
    hidden, weight, bias = (torch.randn(*shape, generator=random) for shape in ((7, 4), (500, 4), (500,)))
    hidden, weight = (hidden.bfloat16(), weight.bfloat16()) if half else (hidden, weight)
    rows = Head(weight, scale * bias).logits(scale * hidden)
    forbidden = [[], [5], [], [], [], list(range(0, 500, 2)), [499, 7]]
    lists = draw_lists(
        rows,
        6,
        ids=pa.array(range(500)),
        forbidden=forbidden,
        sample=False,
        generator=None,
        catalogue=backend("chunked"),
    )
    scores = rows.chunk(0, 500).float()
    for row, items in enumerate(forbidden):
        scores[row, items] = -torch.inf
    expected = scores.log_softmax(1).topk(6)
    torch.testing.assert_close(lists.log_probability, expected.values, rtol=2e-6, atol=2e-5)
    torch.testing.assert_close(scores.log_softmax(1).gather(1, lists.indices), expected.values, rtol=2e-6, atol=2e-5)
    assert all(not set(mine) & set(gone) for mine, gone in zip(lists.indices.tolist(), forbidden, strict=True))


def test_forbidden_items_never_come_and_the_others_share_their_probability():
    lists = draw(rows_of(P, 2), 2, forbidden=[[0, 2], []])
    assert lists.indices.tolist() == [[1, 3], [0, 1]]
    expected = [[0.25 / 0.35, 0.1 / 0.35], [0.5, 0.25]]
    torch.testing.assert_close(
        lists.log_probability.exp(), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0
    )
    sampled = draw(rows_of(P, 500), 2, sample=True, forbidden=[[0, 2]] * 500)
    assert set(sampled.indices.flatten().tolist()) == {1, 3}
    first = torch.where(sampled.indices[:, 0] == 1, 0.25 / 0.35, 0.1 / 0.35).double()
    torch.testing.assert_close(
        sampled.propensity, torch.stack([first, torch.ones(500, dtype=torch.float64)], 1), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("width", [1, 4])
def test_draws_without_replacement_have_their_sequential_propensities(monkeypatch, width):
    """Σ over all ordered triples of Π_j π(a_j)/(1 - Σ_{i<j} π(a_i)) is 1, and 40,000 draws agree with each."""
    monkeypatch.setattr(chunks, "_width", lambda *_: width)
    lists = draw(rows_of(P, DRAWS), 3, sample=True, seed=3)
    chances = {}
    for triple in permutations(range(4), 3):
        steps = [P[a] / (1 - sum(P[b] for b in triple[:place])) for place, a in enumerate(triple)]
        chances[triple] = prod(steps)
        mine = (lists.indices == torch.tensor(triple)).all(1)
        count = int(mine.sum())
        spread = sqrt(DRAWS * chances[triple] * (1 - chances[triple]))
        assert abs(count - DRAWS * chances[triple]) < 4.5 * spread, triple
        torch.testing.assert_close(
            lists.propensity[mine], torch.tensor([steps] * count, dtype=torch.float64), rtol=1e-10, atol=0
        )
        own = torch.tensor([[P[a] for a in triple]] * count, dtype=torch.float64)
        torch.testing.assert_close(lists.log_probability[mine].exp(), own, rtol=1e-10, atol=0)
    assert sum(chances.values()) == pytest.approx(1.0, abs=1e-12)


def test_a_whole_draw_ends_with_certainty():
    lists = draw(rows_of(P, 50), 4, sample=True)
    torch.testing.assert_close(lists.propensity[:, -1], torch.ones(50, dtype=torch.float64), rtol=1e-9, atol=0)
    assert (lists.indices.sort(1).values == torch.arange(4)).all()


def test_too_long_a_list_is_refused():
    with pytest.raises(DataError, match=r"between 1 and 2 \(items left after exclusions\), got 3"):
        draw(rows_of(P, 2), 3, forbidden=[[], [0, 1]])


@pytest.mark.parametrize("name", list(BACKENDS))
@pytest.mark.parametrize("sample", [True, False])
def test_drawing_lists_leaves_the_logits_unchanged(name, sample):
    """Logits that were formed already must not be drawn over: propensities are read from them afterwards."""
    values = rows_of(P, 3)
    lists = draw(values, 2, sample=sample, forbidden=[[0], [], [1]], name=name)
    assert torch.equal(values, rows_of(P, 3))
    assert (lists.log_probability <= 0).all()


def test_exclusions_meet_the_right_columns():
    made = MaskedLogits.of_lists(DenseLogits(rows_of(P, 2)), [[3], [0, 1]])
    whole = made.chunk(0, 4)
    assert whole.isinf().tolist() == [[False, False, False, True], [True, True, False, False]]
    made = MaskedLogits.of_lists(DenseLogits(rows_of(P, 2)), [[3], [0, 1]])
    assert made.chunk(1, 3).isinf().tolist() == [[False, False], [True, False]]


def test_propensities_of_a_peaked_policy_keep_their_precision():
    """π = (1 - 2e-9, 1.5e-9, 0.5e-9): the second place has 3/4 or 1/4, whatever the precision of the rows."""
    values = torch.tensor([[0.0, 1.5e-9, 0.5e-9]], dtype=torch.float64).clamp(min=1e-300).log()
    values[0, 0] = 0.0
    lists = draw(values.float().repeat(200, 1), 2, sample=True)
    second = torch.where(lists.indices[:, 1] == 1, 0.75, 0.25).double()
    torch.testing.assert_close(lists.propensity[:, 1], second, rtol=1e-4, atol=0)
