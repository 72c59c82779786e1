"""A capped tilt equals its formula, formed in chunks or a few positions at a time."""

from __future__ import annotations

import math

import pytest
import torch

from localpolicy.catalogue import BACKENDS, backend, dense
from localpolicy.catalogue.capped import CappedLogits
from localpolicy.catalogue.statistics import catalogue_statistics
from localpolicy.logits import DenseLogits, Head, LinearLogits

N, V, D, BETA, CAP = 6, 31, 4, 0.3, 2.5


def draw(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def both():
    """The capped logits, and their definition formed as a whole."""
    mu, q = (LinearLogits(draw(N, D, seed=s), Head(draw(V, D, seed=s + 1), draw(V, seed=s + 2))) for s in (0, 3))
    share, values = torch.softmax(mu.chunk(0, V), 1), q.chunk(0, V)
    baseline = (share * values).sum(1, keepdim=True)
    factor = ((values - baseline) / BETA).exp().clamp(max=CAP)
    assert 0.1 < (factor == CAP).double().mean() < 0.9, "the cap must bind here and not there"
    rows = CappedLogits(mu, q, 1 / BETA, math.log(CAP) + dense.mean(mu, q) / BETA)
    return rows, DenseLogits((share * factor / (share * factor).sum(1, keepdim=True)).log())


@pytest.mark.parametrize("name", BACKENDS)
def test_statistics_are_those_of_the_formula(name, both, monkeypatch):
    monkeypatch.setattr("localpolicy.catalogue.chunks._width", lambda rows, items, device: 7)
    rows, whole = both
    items = torch.arange(N) * 5
    other, close = backend(name), torch.testing.assert_close
    close(other.log_prob(rows, items), whole.at(items))
    close(other.entropy(rows), dense.entropy(whole))
    close(other.rank(rows, items), dense.rank(whole, items))
    assert torch.equal(other.top(rows, 5)[1], dense.top(whole, 5)[1])
    for found, expected in zip(other.divergence(rows, rows.base), dense.divergence(whole, rows.base), strict=True):
        close(found, expected)
    close(other.log_prob_and_mean(rows, items, rows.values)[1], dense.mean(whole, rows.values))


def test_a_block_of_positions_is_those_rows(both):
    rows, whole = both
    shift = rows.chunk(0, V)[:, :1] - whole.values[:, :1]
    torch.testing.assert_close(rows.part(2, 5).chunk(3, 20), (whole.values + shift)[2:5, 3:20])
    items = torch.arange(N)
    found = catalogue_statistics(rows, items, references={"mu": rows.base})
    torch.testing.assert_close(found["logp"], whole.at(items))
    torch.testing.assert_close(found["js:mu"], dense.divergence(whole, rows.base)[0])
