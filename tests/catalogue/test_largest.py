"""The k largest through maxima of groups equal those of sorted rows, whatever the shape."""

from __future__ import annotations

import pytest
import torch

from localpolicy.catalogue.largest import GROUP, WORTH, largest


@pytest.mark.parametrize("columns", [1, GROUP, 5 * GROUP * WORTH - 1, 5 * GROUP * WORTH, 5 * GROUP * WORTH + 3, 5000])
@pytest.mark.parametrize("k", [1, 5])
def test_largest_equals_sorting_whole_rows(columns, k):
    k = min(k, columns)
    scores = torch.randn(7, columns, generator=torch.Generator().manual_seed(columns))
    scores[:, ::3] = -torch.inf  # forbidden items
    scores += 10 * torch.arange(7)[:, None]  # whatever is read from the next row is larger
    value, column = largest(scores, k)
    torch.testing.assert_close(value, scores.topk(k, dim=1).values, rtol=0, atol=0)
    assert torch.equal(scores.gather(1, column), value)


def test_few_numbers_are_sorted(monkeypatch):
    sort, widths = torch.Tensor.topk, []
    monkeypatch.setattr(
        torch.Tensor, "topk", lambda given, *how, **more: widths.append(given.shape[1]) or sort(given, *how, **more)
    )
    largest(torch.randn(7, 5000, generator=torch.Generator().manual_seed(0)), 5)
    assert len(widths) == 1 and 5 <= widths[0] <= WORTH * 5


def test_the_best_may_all_stand_in_one_group_or_in_the_rest():
    columns = 5 * GROUP * WORTH + 3
    groups = columns // GROUP
    scores = torch.zeros(2, columns)
    scores[0, 2 : 2 + 5 * groups : groups] = torch.arange(5.0, 0, -1)
    scores[1, -3:] = torch.tensor([1.0, 2.0, 3.0])
    assert largest(scores, 5)[1][0].tolist() == [2 + step * groups for step in range(5)]
    assert largest(scores, 3)[1][1].tolist() == [columns - 1, columns - 2, columns - 3]


def test_nan_comes_first_as_in_a_sort():
    scores = torch.randn(4, 5000, generator=torch.Generator().manual_seed(0))
    scores[1, 70] = scores[2, ::2] = torch.nan
    value, column = largest(scores, 5)
    torch.testing.assert_close(value, scores.topk(5, dim=1).values, rtol=0, atol=0, equal_nan=True)
    assert column[1, 0] == 70


def test_ties_give_the_same_values_and_no_column_twice():
    scores = torch.randint(0, 3, (9, 5000), generator=torch.Generator().manual_seed(0)).float()
    value, column = largest(scores, 20)
    assert torch.equal(value, scores.topk(20, dim=1).values)
    assert all(len(set(row)) == 20 for row in column.tolist())
