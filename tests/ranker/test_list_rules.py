"""Rules before the draw: laws of whole lists against enumeration, and what cannot be met."""

from __future__ import annotations

import numpy as np
import pytest

from localpolicy.errors import ConfigError, DataError
from localpolicy.ranker.rules import Boost, Openings, Rules, draw_under, openings, propensities_under

LOGITS = np.array([1.0, 0.2, -0.5, 0.8, 0.0])
ITEMS = ["a", "b", "c", "d", "e"]
COLUMNS = {"item": ITEMS, "brand": ["x", "x", "y", "x", "y"]}


def enumerated(weights, k, *, pins=None, groups=None, at_most=1, closed=()):
    """P(list) by hand: place by place, among what is open then."""
    pins = pins or {}
    found = {}

    def go(order, chance):
        if len(order) == k:
            found[tuple(order)] = found.get(tuple(order), 0) + chance
            return
        if len(order) in pins:
            go([*order, pins[len(order)]], chance)
            return
        held = [groups[one] for one in {*order, *pins.values()}] if groups else []
        open_ = [one for one in range(len(weights))
                 if one not in order and one not in pins.values() and one not in closed
                 and (not groups or held.count(groups[one]) < at_most)]  # fmt: skip
        total = sum(weights[one] for one in open_)
        for one in open_:
            go([*order, one], chance * weights[one] / total)

    go([], 1.0)
    return found


CASES = {
    "boosts": (Rules(boost=(Boost(item="c", times=3), Boost(column="brand", value="x", times=0.5))),
               np.exp(LOGITS) * [0.5, 0.5, 3, 0.5, 1], {}),
    "pins": (Rules(pin={2: "e"}), np.exp(LOGITS), {"pins": {1: 4}}),
    "groups": (Rules(group="brand", at_most=2), np.exp(LOGITS), {"groups": COLUMNS["brand"], "at_most": 2}),
    "all": (Rules(group="brand", at_most=2, pin={3: "a"}, boost=(Boost(item="b", times=2),)),
            np.exp(LOGITS) * [1, 2, 1, 1, 1], {"pins": {2: 0}, "groups": COLUMNS["brand"], "at_most": 2}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_lists_and_propensities_equal_enumeration(case):
    rules, weights, about = CASES[case]
    expected = enumerated(weights, 3, **about)
    assert sum(expected.values()) == pytest.approx(1)
    opened = openings(LOGITS, 3, rules, ITEMS, COLUMNS)
    rng, draws, seen = np.random.default_rng(0), 6000, {}
    for _ in range(draws):
        order, propensities = draw_under(opened, 3, rng=rng)
        assert np.prod(propensities) == pytest.approx(expected[tuple(order)], rel=1e-12)
        assert propensities_under(opened, order) == pytest.approx(propensities, rel=1e-12)
        seen[tuple(order)] = seen.get(tuple(order), 0) + 1
    chi = sum((seen.get(one, 0) - draws * p) ** 2 / (draws * p) for one, p in expected.items())
    assert chi < len(expected) + 5 * np.sqrt(2 * len(expected))


def test_resting_items_are_closed():
    opened = openings(LOGITS, 3, Rules(rest_hours=24), ITEMS, COLUMNS, resting=["a", "unknown"])
    expected = enumerated(np.exp(LOGITS), 3, closed=(0,))
    order, propensities = draw_under(opened, 3, rng=np.random.default_rng(1))
    assert np.prod(propensities) == pytest.approx(expected[tuple(order)], rel=1e-12)
    pinned = openings(LOGITS, 3, Rules(pin={1: "a"}), ITEMS, COLUMNS, resting=["a"])
    assert draw_under(pinned, 3).order[0] == 0  # a pin stands


def test_places_of_many_pins_are_certain():
    opened = openings(LOGITS, 3, Rules(pin={1: "b", 2: "a", 3: "e"}), ITEMS, COLUMNS)
    order, propensities = draw_under(opened, 3)
    assert order.tolist() == [1, 0, 4]
    assert propensities.tolist() == [1, 1, 1]


@pytest.mark.parametrize(("k", "works"), [(4, True), (5, False)])
def test_the_rules_must_leave_k_candidates(k, works):
    rules = Rules(group="brand", at_most=2)
    if works:
        assert len(draw_under(openings(LOGITS, k, rules, ITEMS, COLUMNS), k).order) == k
    else:
        with pytest.raises(DataError, match="the rules leave 4 of 5 candidates for a list of 5"):
            openings(LOGITS, k, rules, ITEMS, COLUMNS)


@pytest.mark.parametrize(("rules", "error", "says"), [
    (dict(group="colour"), ConfigError, "no column 'colour' of candidates"),
    (dict(boost=(Boost(column="colour", value="red", times=2),)), ConfigError, "no column 'colour'"),
    (dict(pin={4: "a"}), ConfigError, "place 4 is not between 1 and k = 3"),
    (dict(pin={1: "z"}), DataError, "'z' is none of the candidates"),
    (dict(pin={1: "a", 2: "a"}), ConfigError, "pinned to two places"),
    (dict(pin={1: "a", 2: "b"}, group="brand"), ConfigError, "more than 1 pinned items are of one group"),
])  # fmt: skip
def test_rules_that_cannot_hold_are_refused(rules, error, says):
    with pytest.raises(error, match=says):
        openings(LOGITS, 3, Rules(**rules), ITEMS, COLUMNS)


@pytest.mark.parametrize(("values", "value", "boosted"), [
    ([5, 4, 5.0, "5", None], 5, [0, 2, 3]), ([5, 4, 5.0, "5", None], "5", [0, 2, 3]),
    (np.array([5.0, 4.5, 5.0, 1.0, np.nan]), 5, [0, 2]), (np.array([5.0, 4.5, 5.0, 1.0, np.nan]), "4.5", [1]),
    ([True, False, True, None, False], True, [0, 2]), (np.array([True, False, True, False, False]), "True", [0, 2]),
])  # fmt: skip
def test_numbers_and_truths_name_groups_as_texts_do(values, value, boosted):
    rules = Rules(boost=({"column": "stars", "value": value, "times": 2},))
    again = Rules.parse(rules.model_dump(mode="json"))
    for one in (rules, again):
        found = openings(LOGITS, 1, one, ITEMS, COLUMNS | {"stars": values}).logits - LOGITS
        assert np.flatnonzero(found > 0.5).tolist() == boosted


def test_a_boost_names_an_item_or_a_group():
    with pytest.raises(ConfigError, match="an item, or a column"):
        Boost(times=2)
    with pytest.raises(ConfigError, match="a column and its value"):
        Boost(column="brand", times=2)
    with pytest.raises(ConfigError, match="times"):
        Boost(item="a", times=0)


def test_closed_items_are_never_drawn():
    logits = np.array([0.0, -np.inf, 0.0])
    for seed in range(50):
        assert 1 not in draw_under(Openings(logits, {}), 2, rng=np.random.default_rng(seed)).order
