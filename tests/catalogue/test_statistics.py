"""Statistics of rows formed once equal the definitions, whatever the blocks."""

from __future__ import annotations

import math

import pytest
import torch

from localpolicy.catalogue import blocks, dense
from localpolicy.catalogue.sparse import SparseLogits
from localpolicy.catalogue.statistics import catalogue_statistics
from localpolicy.logits import DenseLogits, Head, LinearLogits


def linear(seed: int, n: int = 23, v: int = 37, d: int = 5, scale: float = 1.0) -> LinearLogits:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(v, d, generator=generator, dtype=torch.float64) * scale
    return LinearLogits(
        torch.randn(n, d, generator=torch.Generator().manual_seed(99), dtype=torch.float64),
        Head(weight, torch.randn(v, generator=generator, dtype=torch.float64)),
    )


def tied(seed: int, n: int = 23, v: int = 37) -> DenseLogits:
    """Logits of few distinct values, so that most items tie."""
    return DenseLogits(torch.randint(0, 3, (n, v), generator=torch.Generator().manual_seed(seed)).double())


@pytest.mark.parametrize("cells", [1, 40, 37 * 5 + 1, 1 << 20])
@pytest.mark.parametrize("rows", [linear(0), tied(0)], ids=["linear", "tied"])
def test_equals_the_definitions(rows, cells, monkeypatch):
    monkeypatch.setitem(blocks.CELLS, "cpu", cells)
    items = torch.randint(0, 37, (23,), generator=torch.Generator().manual_seed(1))
    one, two, values = linear(1), tied(2), linear(3)
    found = catalogue_statistics(rows, items, references={"one": one, "two": two}, values=values, lists=4)
    formed = rows.chunk(0, 37)
    torch.testing.assert_close(found["rank"], dense.rank(rows, items).to(found["rank"]))
    torch.testing.assert_close(found["logp"], dense.log_prob(rows, items))
    torch.testing.assert_close(found["entropy"], dense.entropy(rows))
    torch.testing.assert_close(found["value_taken"], dense.log_prob(values, items) + dense.logsumexp(values))
    torch.testing.assert_close(found["value_expected"], dense.mean(rows, values))
    torch.testing.assert_close(formed.gather(1, found["lists"]), formed.topk(4, dim=1).values)
    for name, other in (("one", one), ("two", two)):
        js, kl = dense.divergence(rows, other)
        torch.testing.assert_close(found[f"js:{name}"], js)
        torch.testing.assert_close(found[f"kl:{name}"], kl)
        torch.testing.assert_close(found[f"logp:{name}"], dense.log_prob(other, items))
    floor_js, floor_kl = dense.divergence(one, two)
    torch.testing.assert_close(found["js:one|two"], floor_js)
    torch.testing.assert_close(found["kl:one|two"], floor_kl)
    assert "js:one|two" not in catalogue_statistics(rows, items, references={"one": one, "two": two}, floor=False)


def test_references_may_have_any_name():
    rows, other, items = linear(0), linear(1), torch.zeros(23, dtype=torch.long)
    expected = catalogue_statistics(rows, items, references={"x": other})["js:x"]
    for name in ("policy", "values", "gap"):
        found = catalogue_statistics(rows, items, references={name: other}, values=linear(2))
        torch.testing.assert_close(found[f"js:{name}"], expected)


def test_ranks_equal_those_by_brute_force_with_ties():
    rows, items = tied(5, n=40, v=9), torch.arange(40) % 9
    expected = []
    for scores, item in zip(rows.values.tolist(), items.tolist(), strict=True):
        above = sum(score > scores[item] for score in scores)
        same = sum(score == scores[item] for place, score in enumerate(scores) if place != item)
        expected.append(1 + above + same / 2)
    assert catalogue_statistics(rows, items)["rank"].tolist() == expected


def test_products_tie_within_rounding_and_given_scores_where_they_are_equal():
    head, near = Head(torch.tensor([[1.0], [1.0 + 2.0**-20], [1.0 + 2.0**-12]])), torch.tensor([0])
    found = catalogue_statistics(LinearLogits(torch.ones(1, 1), head), near)
    assert (found["rank"].item(), found["tied"].item()) == (1 + 1 + 1 / 2, 1)
    found = catalogue_statistics(DenseLogits(head.weight.T.clone()), near)
    assert (found["rank"].item(), found["tied"].item()) == (3, 0)


def test_excluded_items_rank_last_and_enter_no_list():
    scores = torch.tensor([[3.0, 2.0, 1.0, 0.0], [3.0, 2.0, 1.0, 0.0]])
    excluded = (torch.tensor([0, 0, 1]), torch.tensor([0, 2, 3]))
    found = catalogue_statistics(DenseLogits(scores), torch.tensor([3, 3]), excluded=excluded, lists=2)
    assert found["rank"].tolist() == [2.0, 4.0]
    assert found["lists"].tolist() == [[1, 3], [0, 1]]
    assert found["top"].tolist() == [1, 0]
    # Of two that are excluded neither is above the other.
    assert catalogue_statistics(DenseLogits(scores), torch.tensor([0, 3]), excluded=excluded)["rank"].tolist() == [
        3.5,
        4.0,
    ]
    # The policy's own likelihood is of what it was trained to do.
    plain = catalogue_statistics(DenseLogits(scores), torch.tensor([3, 3]))
    torch.testing.assert_close(found["logp"], plain["logp"])
    torch.testing.assert_close(found["entropy"], plain["entropy"])


def test_divergence_is_bounded_symmetric_and_zero_for_equals():
    one, two = linear(1, scale=8.0), linear(2, scale=8.0)
    items = torch.zeros(23, dtype=torch.long)
    there = catalogue_statistics(one, items, references={"x": two})["js:x"]
    back = catalogue_statistics(two, items, references={"x": one})["js:x"]
    torch.testing.assert_close(there, back)
    assert (there >= 0).all() and (there <= math.log(2) + 1e-12).all()
    assert there.max() > 0.3, "the two must differ for this to say anything"
    same = catalogue_statistics(one, items, references={"x": one})
    torch.testing.assert_close(same["js:x"], torch.zeros(23, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(same["kl:x"], torch.zeros(23, dtype=torch.float64), atol=1e-12, rtol=0)


def test_disjoint_policies_are_log_2_apart():
    one, two = torch.full((1, 6), -200.0), torch.full((1, 6), -200.0)
    one[0, :3], two[0, 3:] = 0.0, 0.0
    found = catalogue_statistics(DenseLogits(one), torch.tensor([0]), references={"x": DenseLogits(two)})
    assert found["js:x"].item() == pytest.approx(math.log(2), abs=1e-6)


def test_large_scores_stay_finite():
    rows = DenseLogits(torch.tensor([[1e4, -1e4, 0.0], [80.0, -80.0, 0.0]]))
    found = catalogue_statistics(rows, torch.tensor([1, 1]), references={"x": DenseLogits(-rows.values)})
    assert all(torch.isfinite(values).all() for values in found.values())


def test_sparse_rows_are_rows():
    base = torch.randn(8, generator=torch.Generator().manual_seed(0))
    rows = SparseLogits(base, 3, torch.tensor([0, 0, 2]), torch.tensor([1, 7, 3]), torch.tensor([5.0, 6.0, 7.0]))
    formed = base.expand(3, -1).clone()
    formed[0, 1], formed[0, 7], formed[2, 3] = 5.0, 6.0, 7.0
    assert torch.equal(rows.chunk(0, 8), formed)
    assert torch.equal(rows.chunk(2, 5, out=torch.empty(3, 3)), formed[:, 2:5])
    for items in ([1, 1, 1], [7, 0, 3], [3, 3, 3]):
        assert torch.equal(rows.at(torch.tensor(items)), formed.gather(1, torch.tensor(items)[:, None]).squeeze(1))
    assert torch.equal(rows.part(1, 3).chunk(0, 8), formed[1:])
