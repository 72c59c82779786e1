"""Sums over a sample of the catalogue against sums over all of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from localpolicy.catalogue import dense
from localpolicy.catalogue.sampled import Sampler
from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError
from localpolicy.logits import Head, LinearLogits
from localpolicy.runs.config import Config
from localpolicy.training.setup import sampler_of

V, N, D = 12, 5, 3
COUNTS = torch.tensor([400, 0, 3, 8, 1, 0, 24, 99, 0, 2, 5, 1])


def logits(seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden, weight, bias = (torch.randn(size, generator=generator, dtype=torch.float64) for size in ((N, D), (V, D), V))
    return LinearLogits(hidden, Head(weight, bias))


def test_chances_follow_the_root_of_counts_and_sum_to_the_size():
    chance = Sampler.by_counts(COUNTS, 4).chance
    assert float(chance.sum()) == pytest.approx(4) and float(chance.max()) == 1
    assert chance[3] / chance[1] == pytest.approx(3), "√9 and √1"
    assert torch.equal(Sampler.by_counts(COUNTS, V).chance, torch.ones(V, dtype=torch.float64))


def test_every_item_is_drawn_as_often_as_its_chance_says():
    torch.manual_seed(0)
    sampler, drawn = Sampler.by_counts(COUNTS, 4), torch.zeros(V)
    for _ in range(4000):
        found = sampler.draw()
        assert len(found.items) == 4 and torch.equal(found.column[found.items], torch.arange(4))
        drawn[found.items] += 1
    torch.testing.assert_close(drawn / 4000, sampler.chance.float(), atol=0.03, rtol=0)


def test_the_estimated_normaliser_is_unbiased():
    """E[e^{row_y - log p̂_y}] = Σ_a e^{row_a}, by the mean over points u of the systematic sample."""
    torch.manual_seed(0)
    rows, items = logits(), torch.tensor([0, 1, 7, 11, 5])
    sampler = Sampler.by_counts(COUNTS, 5)
    estimates = torch.stack([(rows.at(items) - sampler.log_prob(rows, items)).exp() for _ in range(6000)])
    whole = rows.chunk(0, V).exp().sum(1)
    error = estimates.std(0) / np.sqrt(len(estimates))
    assert bool(((estimates.mean(0) - whole).abs() < 4 * error).all())
    assert bool((estimates.std(0) > 0.05 * whole).all()), "a sample of everything would prove nothing"


def test_a_sample_of_everything_is_the_softmax_in_value_and_gradient():
    items = torch.tensor([0, 1, 7, 7, 5])
    found = []
    for log_prob in (Sampler.by_counts(COUNTS, V).log_prob, dense.log_prob):
        hidden, (weight, bias) = logits()
        leaves = [each.clone().requires_grad_() for each in (hidden, weight, bias)]
        value = log_prob(LinearLogits(leaves[0], Head(leaves[1], leaves[2])), items)
        (value * torch.arange(1.0, N + 1)).sum().backward()
        found.append([value.detach(), *(leaf.grad for leaf in leaves)])
    for ours, whole in zip(*found, strict=True):
        torch.testing.assert_close(ours, whole)
    assert float(found[1][2].abs().max()) > 0.1


def test_means_are_weighed_by_chances():
    torch.manual_seed(0)
    rows, values = logits(), logits(seed=1)
    whole = dense.mean(rows, values)
    torch.testing.assert_close(Sampler.by_counts(COUNTS, V).mean(rows, values), whole)
    sampler = Sampler.by_counts(COUNTS, 9)
    near = torch.stack([sampler.mean(rows, values) for _ in range(2000)]).mean(0)
    spread = values.chunk(0, V).std(1)
    assert bool(((near - whole).abs() < 0.15 * spread).all())


@pytest.mark.parametrize(
    ("objective", "train", "text"),
    [
        ("ips", {}, "ips weighs by probabilities"),
        ("mle", {"shard_catalogue": True}, "split over processes"),
        ("mle", {"device": "cuda"}, "fast on a GPU"),
    ],
)
def test_a_sample_is_refused_where_sums_over_all_items_are_needed(shop, objective, train, text):
    changes = {"objective": {"name": objective}, "train": {"device": "cpu", "sampled": 2, **train}}
    with pytest.raises(ConfigError, match=text):
        sampler_of(shop, Config.parse(changes))


@pytest.fixture
def shop(tmp_path):
    from shop_logs import write_shop

    write_shop(tmp_path / "data")
    return Prepared(tmp_path / "data")


def test_a_policy_learns_from_samples(shop, tmp_path):
    """Samples of a few items, the noisiest ones: near the whole sums' likelihood after as many steps."""
    import localpolicy as lp

    found = {}
    for sampled in (None, 3 * shop.n_items // 4):
        train = {"seed": 1, "device": "cpu", "epochs": 4, "batch_size": 16, "sampled": sampled}
        run = lp.train(
            shop, out=tmp_path / str(sampled), config=Config.parse({"objective": {"name": "mle"}, "train": train})
        )
        found[sampled] = [line["validation"]["logp"] for line in run.metrics()]
    whole, part = found.values()
    assert part != whole and max(part) == pytest.approx(max(whole), rel=0.2)
    assert max(part) > part[0] + 0.01
