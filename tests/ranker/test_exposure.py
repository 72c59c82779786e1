"""Chances of items at places against enumeration, and values by places against the truth."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from localpolicy.ranker.exposure import place_chances
from localpolicy.ranker.law import Law
from localpolicy.ranker.reading import read_requests
from localpolicy.ranker.values import ListValues
from localpolicy.simulation.foreign_ranker import ForeignRanker, RankerConfig, drawn


@pytest.mark.parametrize("spread", [0.0, 1.0, 5.0, 30.0])
def test_chances_equal_enumeration(spread):
    rng = np.random.default_rng(1)
    logits = spread * rng.normal(size=(3, 6))
    logits[2, 4:] = -np.inf
    expected = np.zeros((3, 6, 3))
    for row, law in enumerate(logits):
        weight = np.exp(law - law.max())
        for order in itertools.permutations(np.flatnonzero(np.isfinite(law)), 3):
            chance = 1.0
            for place, item in enumerate(order):
                chance *= weight[item] / np.delete(weight, order[:place]).sum()
            for place, item in enumerate(order):
                expected[row, item, place] += chance
    found = place_chances(logits, np.tile(np.arange(6), (3, 1)), 3)
    assert found == pytest.approx(expected, abs=1e-6)
    some = place_chances(logits, np.array([[2, -1], [0, 5], [3, 1]]), 3)
    assert some[0, 0] == pytest.approx(found[0, 2]) and not some[0, 1].any()


def test_the_value_of_the_undrawn_list_is_not_lower_where_a_layer_hardly_shows_it():
    """In samples of a far law its rare items are mostly missing: plain weights then make too little of it."""
    world = ForeignRanker(RankerConfig(items=80, people=300, candidates=15, places=4))
    rng = np.random.default_rng(8)
    requests = world.requests(9_000, rng)
    far = world.law(requests) + 6 * np.random.default_rng(1).normal(size=requests.score.shape)
    lists = drawn(far, 4, rng)
    log = read_requests(*world.tables(requests, lists, world.clicks(requests, lists, rng), logits=far))
    truth = world.value(requests, np.argsort(-requests.score, axis=1)[:, :4]).mean()
    errors = []
    for some in np.array_split(np.arange(len(log)), 30):
        values = ListValues(log, Law("probabilities"), some, world.examined, log.reward())
        errors.append([(weight * values.shown.reward).sum() / len(some) / truth - 1
                       for weight in (values.undrawn, values.undrawn_whole)])  # fmt: skip
    plain, whole = np.median(errors, axis=0)
    assert plain < -0.1
    assert whole == pytest.approx(0, abs=0.05)


def test_gains_by_places_are_those_of_the_world():
    """Over the drawn list and over the undrawn one, for a tilt that knows what the ranker misses."""
    world, rng = ForeignRanker(RankerConfig(items=80, people=300, candidates=15, places=4, temperature=0.4)), None
    rng = np.random.default_rng(3)
    requests = world.requests(12_000, rng)
    lists = world.lists(requests, rng)
    log = read_requests(*world.tables(requests, lists, world.clicks(requests, lists, rng)))
    tilt = 0.5 * (requests.log_odds - requests.log_odds.mean(1, keepdims=True))
    law = Law("scores", 0.4, True)
    values = ListValues(log, law, np.arange(len(log)), world.examined, log.reward())
    better = drawn(world.law(requests) + tilt, 4, rng)
    own = np.argsort(-requests.score, axis=1)[:, :4]
    truth = {name: world.value(requests, one).mean() for name, one in
             (("drawn", lists), ("better", better), ("own", own))}  # fmt: skip
    over_drawn = values.gain(values.weights(lambda block: block.of(tilt.ravel(), 0.0)))
    assert over_drawn.mean == pytest.approx(truth["better"] - truth["drawn"], abs=3 * over_drawn.se)
    price = values.gain(values.undrawn)
    assert price.mean == pytest.approx(truth["own"] - truth["drawn"], abs=3 * price.se)
    over_own = values.gain(values.weights(lambda block: block.of(tilt.ravel(), 0.0)), over=values.undrawn)
    assert over_own.mean == pytest.approx(truth["better"] - truth["own"], abs=3 * over_own.se)
    assert over_own.se < 0.1 * truth["own"]
    nothing = values.gain(values.weights(lambda block: 0.0))
    assert nothing.mean == pytest.approx(0, abs=1e-12)
    assert nothing.effective == pytest.approx(1)
