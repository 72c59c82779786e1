"""Values of lists by places, by item and place, under a cascade, by whole lists: enumerated and chosen."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from localpolicy.errors import DataError
from localpolicy.measure.decisions import Decisions, OverlapRules
from localpolicy.measure.list_tests import stopping_test
from localpolicy.measure.list_values import (
    CAP,
    Examined,
    PlacedLists,
    against,
    contributions,
    examination,
    value_of_lists,
    weights,
)

V, K = 5, 3
MU = np.array([0.35, 0.25, 0.2, 0.15, 0.05])
PI = np.array([0.15, 0.2, 0.2, 0.25, 0.2])
WORTH = np.array([0.3, 0.5, 0.4, 0.8, 0.6])
LOOKED = np.array([1.0, 0.6, 0.25])
LISTS = np.array(list(itertools.permutations(range(V), K)))  # every list there is
FORMS = ("by places", "by item and place", "cascade", "whole lists")


def law(policy: np.ndarray, lists: np.ndarray = LISTS) -> np.ndarray:
    """π(a|open) of each place of each list."""
    chosen = policy[lists]
    return chosen / (1 - np.cumsum(chosen, 1) + chosen)


def at(policy: np.ndarray) -> np.ndarray:
    """P(item at place), from every list there is [V, K]."""
    chance = law(policy).prod(1)
    return np.array([[chance[LISTS[:, place] == item].sum() for place in range(K)] for item in range(V)])


def means(lists: np.ndarray, kind: str) -> np.ndarray:
    """Expected rewards [lists, K]: by places; those who take an item leave; or a better one below takes it."""
    by_place = WORTH[lists] * LOOKED
    if kind == "stops":
        return by_place * np.cumprod(np.append(np.ones((len(lists), 1)), 1 - by_place[:, :-1], axis=1), axis=1)
    if kind == "below":
        worth = WORTH[lists]
        best = np.maximum.accumulate(worth[:, ::-1], 1)[:, ::-1]
        return by_place * np.where(best > worth, 0.3, 1.0)
    return by_place


def placed(lists: np.ndarray, reward: np.ndarray, policy: np.ndarray = PI) -> PlacedLists:
    weight = (law(policy, lists) / law(MU, lists)).cumprod(1).ravel()
    log = Decisions(
        weight, reward.ravel(), np.repeat(np.arange(len(lists)), K), place=np.tile(np.arange(K), len(lists))
    )
    return PlacedLists(log, at(MU)[lists.ravel()], at(policy)[lists.ravel()])


def truth(policy: np.ndarray, kind: str) -> float:
    return float(law(policy).prod(1) @ means(LISTS, kind).sum(1))


def expected(lists: PlacedLists, weight: np.ndarray) -> float:
    """E_μ of what a list counts."""
    return float(law(MU).prod(1) @ contributions(lists, weight).values)


def drawn(count: int, kind: str, seed: int, *, worth: float = 1.0) -> PlacedLists:
    rng = np.random.default_rng(seed)
    lists = np.argsort(-(np.log(MU) + rng.gumbel(size=(count, V))), axis=1)[:, :K]
    by_place = rng.random(lists.shape) < worth * WORTH[lists] * LOOKED
    if kind == "stops":
        by_place &= np.cumsum(by_place, axis=1) <= 1
    if kind == "below":
        by_place = rng.random(lists.shape) < worth * means(lists, kind)
    return placed(lists, by_place.astype(float))


@pytest.mark.parametrize(("kind", "right"), [
    ("places", FORMS), ("stops", ("cascade", "whole lists")), ("below", ("whole lists",)),
])  # fmt: skip
def test_each_form_is_exact_where_its_assumption_holds(kind, right):
    lists, value = placed(LISTS, means(LISTS, kind)), truth(PI, kind)
    for form in FORMS:
        found = expected(lists, weights(lists, form, LOOKED))
        assert (found == pytest.approx(value)) == (form in right), form


def test_what_assumes_more_varies_less():
    lists = placed(LISTS, means(LISTS, "places"))
    chance = law(MU).prod(1)
    spread = []
    for form in FORMS:
        values = contributions(lists, weights(lists, form, LOOKED)).values
        spread.append(chance @ values**2 - (chance @ values) ** 2)
    assert spread[0] < spread[1] < spread[2] < spread[3]


def test_a_list_that_was_never_drawn_earns_what_its_places_earn():
    declared = np.array([3, 0, 4])
    where = np.full(V, -1)
    where[declared] = np.arange(K)
    lists = placed(LISTS, means(LISTS, "places"))
    weight = against(lists, where[LISTS.ravel()], LOOKED)
    assert expected(lists, weight) == pytest.approx(WORTH[declared] @ LOOKED)


def test_weights_are_capped_by_place_and_lower_a_value_alone():
    far = np.array([0.001, 0.001, 0.001, 0.001, 0.996])
    lists = placed(LISTS, means(LISTS, "places"), far)
    capped = weights(lists, "by item and place")
    first = (at(far) / at(MU))[4, 0]
    assert first > CAP == capped.max()
    assert expected(lists, capped) < truth(far, "places")
    assert weights(lists, "cascade").max() > CAP


def test_how_places_are_looked_at_is_exact_whatever_items_earn():
    log = placed(LISTS, means(LISTS, "places")).log
    chance = np.repeat(law(MU).prod(1), K)
    found = examination(at(MU)[LISTS.ravel()], log.places, chance * log.reward)
    np.testing.assert_allclose(found.curve, LOOKED, rtol=1e-6)
    assert (found.group == 0).all()


def test_places_are_compared_as_far_as_they_were_mixed():
    """The first place is pinned, the next two are mixed, and so are the last two; the fourth of them earns nothing."""
    mu = np.array([[1, 0, 0, 0, 0], *[[0, 0.5, 0.5, 0, 0]] * 2, *[[0, 0, 0, 0.5, 0.5]] * 2] * 4)
    found = examination(mu, np.tile(np.arange(5), 4), np.tile([9.0, 4.0, 2.0, 0.0, 3.0], 4))
    assert found.group.tolist() == [0, 1, 1, 3, 3]
    assert found.curve[:3] == pytest.approx([1, 1, 0.5]) and found.curve[4] > 1e6 * found.curve[3]
    with pytest.raises(DataError, match="at least 0"):
        examination(mu, np.tile(np.arange(5), 4), -np.ones(20))


@pytest.mark.parametrize(("kind", "form"), [
    ("places", "by places"), ("stops", "cascade"), ("below", "whole lists"),
])  # fmt: skip
def test_what_the_log_refutes_is_not_assumed(kind, form):
    lists = drawn(6_000, kind, 1)
    chosen = value_of_lists(lists)
    assert chosen.form == form and chosen.refusal is None
    found = chosen.contributions(lists)
    assert abs(found.mean - truth(PI, kind)) < 3 * found.se
    np.testing.assert_array_equal(chosen.weight, weights(lists, form, chosen.examined.curve))


@pytest.mark.parametrize("mixed", [True, False])
def test_pinned_places_are_no_obstacle_where_both_laws_pin_them(mixed):
    """The first place is pinned under μ. A law that draws it, too, needs how it is looked at, which nobody knows."""
    rng = np.random.default_rng(2)
    below = np.array([rng.permutation([1, 2]) for _ in range(3_000)])
    lists = np.column_stack([np.zeros(3_000, int), below])
    mu = np.array([[1.0, 0, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]])
    pi = np.array([[0.9, 0.1, 0], [0.1, 0.7, 0.2], [0, 0.2, 0.8]]) if mixed else mu
    reward = (rng.random(lists.shape) < 0.8 * np.array([1.0, 0.7, 0.4])).astype(float)
    log = Decisions(np.ones(9_000), reward.ravel(), np.repeat(np.arange(3_000), 3), place=np.tile(np.arange(3), 3_000))
    chosen = value_of_lists(PlacedLists(log, mu[lists.ravel()], pi[lists.ravel()]))
    assert chosen.examined.group.tolist() == [0, 1, 1]
    assert chosen.examined.curve == pytest.approx([1, 1, 4 / 7], abs=0.05)
    assert chosen.form == ("cascade" if mixed else "by places")
    known = value_of_lists(
        PlacedLists(log, mu[lists.ravel()], pi[lists.ravel()]), Examined.known(np.array([1.0, 0.7, 0.4]))
    )
    assert known.form == "by places"


def test_a_sample_that_is_too_small_is_no_estimate():
    lists = drawn(300, "places", 4)
    effective = value_of_lists(lists).effective * 300
    at_least = value_of_lists(lists, rules=OverlapRules(min_effective=np.floor(effective)))
    too_few = value_of_lists(lists, rules=OverlapRules(min_effective=np.ceil(effective)))
    assert at_least.refusal is None
    assert too_few.refusal is not None and "of 300 lists" in too_few.refusal


def test_stopping_is_found_and_keenness_is_not_taken_for_it():
    fired = sum(stopping_test(drawn(1_000, "stops", seed).log, np.zeros(3_000)).fails for seed in range(10))
    assert fired == 10
    rng = np.random.default_rng(0)
    lists = drawn(1_000, "places", 0)
    keen = np.repeat(rng.random(1_000) < 0.5, K) * 1.0
    found = stopping_test(lists.log._replace(reward=keen * lists.log.reward), np.zeros(3_000))
    assert found.t > 4 and not found.fails and found.p > 0.99


def test_stopping_after_the_largest_reward_alone_is_found():
    """Small rewards above go with more below (keenness); only after a large one people leave."""
    rng = np.random.default_rng(5)
    count = 3_000
    keen = np.where(rng.random(count) < 0.5, 0.15, 0.8)[:, None]
    wanted = rng.random((count, K)) < keen
    large = wanted & (rng.random((count, K)) < 0.15)
    gone = np.column_stack([np.zeros(count, bool), np.cumsum(large, 1)[:, :-1] > 0])
    reward = (wanted & ~gone) * np.where(large, 1.0, 0.1)
    log = Decisions(np.ones(count * K), reward.ravel(), np.repeat(np.arange(count), K),
                    place=np.tile(np.arange(K), count))  # fmt: skip
    assert stopping_test(log, np.zeros(count * K)).fails
    small = log._replace(reward=np.where(large & ~gone, 0.1, reward).ravel())
    assert stopping_test(small, np.zeros(count * K)).t > stopping_test(log, np.zeros(count * K)).t


def test_there_is_nothing_to_test_without_rewards_or_places_below():
    log = drawn(50, "places", 0).log
    assert stopping_test(log._replace(reward=np.zeros(150)), np.zeros(150)) is None
    assert stopping_test(log.at(log.places == 0), np.zeros(50)) is None
