"""`lp.rerank`: the law of its lists against enumeration, and what it refuses."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest

import localpolicy as lp
from localpolicy.errors import ConfigError, DataError
from localpolicy.plackett_luce import law, rerank
from localpolicy.ranker.exposure import place_chances

SCORES = np.array([2.0, 0.5, -1.0, 1.0])


def chance(weights, order):
    """Of a whole list, by hand: the product of w(a) / Σ w(open)."""
    left, found = sum(weights), 1.0
    for item in order:
        found *= weights[item] / left
        left -= weights[item]
    return found


def counted(draws, k, **asked):
    """How often each list came, and its logged propensities."""
    rng = np.random.default_rng(3)
    seen, logged = {}, {}
    for _ in range(draws):
        order, propensities = rerank(SCORES, k, rng=rng, **asked)
        seen[tuple(order)] = seen.get(tuple(order), 0) + 1
        logged[tuple(order)] = propensities
    return seen, logged


def agree(seen, expected, draws):
    assert set(seen) <= set(expected)
    assert sum(expected.values()) == pytest.approx(1)
    chi = sum((seen.get(one, 0) - draws * p) ** 2 / (draws * p) for one, p in expected.items())
    assert chi < len(expected) + 5 * np.sqrt(2 * len(expected))


def test_lists_follow_the_law():
    seen, logged = counted(20_000, 2, temperature=0.7)
    weights = np.exp(SCORES / 0.7)
    expected = {order: chance(weights, order) for order in itertools.permutations(range(4), 2)}
    agree(seen, expected, 20_000)
    for order, propensities in logged.items():
        assert np.prod(propensities) == pytest.approx(expected[order], rel=1e-12)


def test_pins_keep_their_places_and_the_rest_follows_the_law():
    seen, logged = counted(10_000, 3, temperature=1.0, pinned=1)
    weights = np.exp(SCORES)
    expected = {(0, *rest): chance(weights[[1, 2, 3]], [one - 1 for one in rest])
                for rest in itertools.permutations((1, 2, 3), 2)}  # fmt: skip
    agree(seen, expected, 10_000)
    for order, propensities in logged.items():
        assert propensities[0] == 1
        assert np.prod(propensities) == pytest.approx(expected[order], rel=1e-12)


def test_excluded_are_never_shown_and_not_in_the_propensities():
    seen, logged = counted(10_000, 2, temperature=1.0, exclude=[0])
    weights = np.exp(SCORES[1:])
    expected = {tuple(one + 1 for one in order): chance(weights, order)
                for order in itertools.permutations(range(3), 2)}  # fmt: skip
    agree(seen, expected, 10_000)
    for order, propensities in logged.items():
        assert np.prod(propensities) == pytest.approx(expected[order], rel=1e-12)
    mask = np.array([True, False, False, False])
    one, two = (rerank(SCORES, 3, temperature=1.0, exclude=gone, rng=np.random.default_rng(0)) for gone in ([0], mask))
    assert np.array_equal(one.order, two.order)


def smoothed(temperature, share):
    weights = np.exp((SCORES - SCORES.max()) / temperature)
    return (1 - share) * weights / weights.sum() + share / len(SCORES)


def test_smoothed_probabilities_are_drawn_without_replacement():
    seen, logged = counted(10_000, 4, temperature=0.3, smoothing=0.2)
    weights = smoothed(0.3, 0.2)
    agree(seen, {order: chance(weights, order) for order in itertools.permutations(range(4))}, 10_000)
    for order, propensities in logged.items():
        assert np.prod(propensities) == pytest.approx(chance(weights, order), rel=1e-12)
    with pytest.warns(DeprecationWarning, match="smoothing"):
        old = rerank(SCORES, 4, temperature=0.3, floor=0.2, rng=np.random.default_rng(0))
    new = rerank(SCORES, 4, temperature=0.3, smoothing=0.2, rng=np.random.default_rng(0))
    assert np.array_equal(old.order, new.order) and np.array_equal(old.propensities, new.propensities)


def by_place(list_chance):
    """Probability of each item at each place [item, place], enumerated."""
    found = np.zeros((4, 3))
    for order in itertools.permutations(range(4), 3):
        found[list(order), range(3)] += list_chance(order)
    return found


@pytest.mark.parametrize("temperature", [0.05, 0.3, 2.0])
def test_smoothing_is_no_floor_of_every_place(temperature):
    """Its places are exactly those of `place_chances`; a floor leaves every place 1 - ε of the ranker's own law."""
    share, own = 0.2, smoothed(temperature, 0.0)

    def floored(order):  # the law of the service's floor
        places = [(1 - share) * own[item] / np.delete(own, order[:at]).sum() + share / (4 - at)
                  for at, item in enumerate(order)]  # fmt: skip
        return np.prod(places)

    weights = smoothed(temperature, share)
    enumerated, floor = by_place(lambda order: chance(weights, order)), by_place(floored)
    assert place_chances(np.log(weights)[None], np.arange(4)[None], 3)[0] == pytest.approx(enumerated, abs=1e-6)
    assert enumerated[:, 0] == pytest.approx(floor[:, 0])  # the first place is the same
    second = np.argsort(-SCORES)[1]
    if temperature == 0.05:  # where the ranker is sure, smoothing draws its lower places almost evenly
        first = np.argmax(SCORES)
        after = {order[1]: chance(weights, order) for order in itertools.permutations(range(4), 2) if order[0] == first}
        assert after[second] / sum(after.values()) == pytest.approx(1 / 3, abs=0.02)
        assert floor[second, 1] > 2 * enumerated[second, 1]


def test_all_pinned_is_their_own_order():
    scores = np.array([1.0, 3.0, 3.0, 2.0])
    order, propensities = rerank(scores, 4, temperature=1.0, pinned=4)
    assert order.tolist() == [1, 2, 3, 0]
    assert propensities.tolist() == [1, 1, 1, 1]


def test_standardised_scores_have_no_scale():
    def first(scores):
        return rerank(scores, 4, temperature=0.1, standardise=True, rng=np.random.default_rng(5))

    one, two = first(SCORES), first(1e6 * SCORES + 17)
    assert np.array_equal(one.order, two.order)
    assert two.propensities == pytest.approx(one.propensities, rel=1e-6)
    assert law(SCORES, temperature=0.1, standardise=True) == pytest.approx((SCORES - 2) / SCORES.std() / 0.1)


def test_far_scores_neither_overflow_nor_vanish():
    order, propensities = rerank([0.0, 1e5, -1e5], 3, temperature=0.1)
    assert order.tolist() == [1, 0, 2]
    assert propensities.tolist() == [1, 1, 1]
    big = rerank(np.linspace(0, 2000, 500), 10, temperature=1.0, rng=np.random.default_rng(0))
    assert np.isfinite(big.propensities).all() and (big.propensities > 0).all()


@pytest.mark.parametrize(("asked", "says"), [
    (dict(scores=[1.0, np.nan]), "score 1 is nan"),
    (dict(scores=[1.0, np.inf]), "score 1 is inf"),
    (dict(scores=[0.0, 1.0, 1e300], standardise=True), "too far apart"),
    (dict(scores=[-1.7e308, 1.7e308]), "too far apart"),
    (dict(scores=[1.0, 1.0], standardise=True), "all scores are equal"),
    (dict(scores=[1.0], k=2), "k must be between 1 and 1"),
    (dict(scores=[1.0, 2.0], k=0), "k must be between"),
    (dict(scores=[1.0, 2.0], pinned=2), "pinned must be between 0 and k = 1"),
    (dict(scores=[1.0, 2.0], exclude=[2]), "positions from 0 to 1"),
    (dict(scores=[1.0, 2.0], exclude=[0, 1]), "no candidate is left"),
    (dict(scores=[1.0, 2.0], exclude=[True]), "one entry per score"),
    (dict(scores=[[1.0, 2.0]]), "shape"),
    (dict(scores=[]), "no candidate is left"),
    (dict(scores=["high", "low"]), "scores must be numbers"),
    (dict(scores=[1.0, 2.0], k=1.5), "k must be a whole number, got 1.5"),
    (dict(scores=[1.0, 2.0], k=True), "k must be a whole number, got True"),
])  # fmt: skip
def test_bad_input_is_refused(asked, says):
    with pytest.raises(DataError, match=says):
        rerank(**({"k": 1, "temperature": 1.0} | asked))


@pytest.mark.parametrize(
    "asked",
    [{"temperature": 0}, {"temperature": np.nan}, {"temperature": "0.1"}, {"temperature": 1.0, "smoothing": 1.5}],
)
def test_bad_settings_are_refused(asked):
    with pytest.raises(ConfigError):
        rerank([1.0, 2.0], 1, **asked)


def test_one_candidate_and_equal_scores_are_drawn():
    assert rerank([4.0], 1, temperature=1.0, standardise=True).propensities.tolist() == [1]
    assert rerank([1.0, 1.0], 1, temperature=1.0).propensities.tolist() == [0.5]


def test_it_needs_numpy_alone():
    heavy = ("torch", "pyarrow", "pydantic", "scipy", "duckdb")
    code = f"import sys, localpolicy as lp; lp.rerank([1, 2], 1, temperature=1); print(set({heavy}) & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
    assert lp.rerank is rerank
