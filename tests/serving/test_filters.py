"""Filters act before the draw: propensities are exact under each of them."""

from __future__ import annotations

import numpy as np
import pytest

from localpolicy.errors import DataError
from localpolicy.serving.filters import Filter

HISTORY = [100, 103, 999]


@pytest.mark.parametrize(
    ("item_filter", "allowed"),
    [
        (Filter(), range(100, 112)),
        (Filter(exclude=(101, 105, "no item")), set(range(100, 112)) - {101, 105}),
        (Filter(seen=True), set(range(100, 112)) - {100, 103}),
        (Filter(last=2), set(range(100, 112)) - {103}),
        (Filter(last=9, exclude=(101,)), set(range(100, 112)) - {100, 101, 103}),
        (Filter(candidates=(100, 102, 104, 104, 999)), {100, 102, 104}),
        (Filter(candidates=(100, 102, 104, 106, 108), exclude=(102,), seen=True), {104, 106, 108}),
    ],
    ids=["none", "deny", "seen", "last", "more than there are", "allow", "all three"],
)
def test_propensities_are_those_of_the_policy_over_what_may_be_shown(exported, item_filter, allowed):
    found = exported.recommend([HISTORY], 3, filters=[item_filter], seed=1)
    weights = np.exp(exported.logits([HISTORY])[0].astype(np.float64))
    left = {item: weights[exported.index[item]] for item in allowed}
    for item, propensity in zip(found.items[0], found.propensity[0], strict=True):
        assert propensity == pytest.approx(left.pop(item) / (sum(left.values()) + weights[exported.index[item]]))


def test_a_top_list_holds_the_best_of_what_may_be_shown(exported):
    scores = exported.logits([HISTORY])[0]
    item_filter = Filter(candidates=(101, 102, 103, 104), seen=True)
    found = exported.recommend([HISTORY], 2, filters=[item_filter], sample=False)
    assert found.items[0] == sorted((101, 102, 104), key=lambda item: -scores[exported.index[item]])[:2]


def test_each_history_has_its_own_filter(exported):
    filters = [Filter(candidates=(101, 102)), Filter(exclude=(100,)), Filter()]
    found = exported.recommend([HISTORY, HISTORY, []], 2, filters=filters, seed=0)
    assert set(found.items[0]) == {101, 102} and 100 not in found.items[1]


def test_a_filter_that_leaves_nothing_is_refused(exported):
    with pytest.raises(DataError, match="between 1 and 1 "):
        exported.recommend([HISTORY], 2, filters=[Filter(candidates=(100, 101), seen=True)])


def test_equal_filters_have_equal_digests():
    assert Filter().digest == ""
    assert Filter(exclude=(1, 2, "a")).digest == Filter(exclude=("a", 2, 1, 2)).digest
    distinct = {
        Filter(exclude=(1,)),
        Filter(exclude=("1",)),
        Filter(candidates=(1,)),
        Filter(seen=True),
        Filter(last=1),
        Filter(last=2),
        Filter(candidates=()),
    }
    assert len({one.digest for one in distinct}) == len(distinct)
    item_filter = Filter(exclude=("a", 2), candidates=(1, 5), seen=True, last=3)
    assert Filter.of(item_filter.content()).digest == item_filter.digest
