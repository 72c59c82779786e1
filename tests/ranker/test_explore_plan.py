"""`explore.plan`: what it says a draw costs and needs, against simulated truth and against what must scale how."""

from __future__ import annotations

import numpy as np
import pytest

import localpolicy as lp
from localpolicy.errors import ConfigError, DataError
from localpolicy.ranker.explore import CUT, SIZES, Rate, _costs, _exchanged, _fitted, _size, _spread
from localpolicy.ranker.law import Law
from localpolicy.ranker.log import Answers
from localpolicy.ranker.reading import read_requests
from localpolicy.ranker.values import CAP, ListValues
from localpolicy.simulation.foreign_ranker import ForeignRanker, RankerConfig

SHOP = RankerConfig(items=300, people=400, candidates=20, places=5, temperature=0)
ONE = {"temperatures": (0.2,), "pins": (0,), "shares": (1.0,)}


def logged(count=2000, seed=1):
    """An undrawn log of a shop."""
    world, rng = ForeignRanker(SHOP, seed=seed), np.random.default_rng(seed)
    requests = world.requests(count, rng)
    lists = world.lists(requests, rng)
    return world, world.tables(requests, lists, world.clicks(requests, lists, rng))


@pytest.fixture(scope="module")
def shop():
    return logged()


def small(count, *, candidates=4, places=2, rate=None, seed=0):
    """A log whose rewards follow a rate."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(count, candidates))
    shown = np.argsort(-scores, axis=1)[:, :places]
    rows = [{"request": str(n), "candidates": list("abcdefgh"[:candidates]), "scores": scores[n].tolist(),
             "shown": ["abcdefgh"[at] for at in shown[n]]} for n in range(count)]  # fmt: skip
    import pyarrow as pa

    answers = [{"request": "0", "item": rows[0]["shown"][0]}]
    if rate is not None:
        z = (scores - scores.mean(1, keepdims=True)) / scores.std(1, keepdims=True)
        chance = rate.of(np.take_along_axis(z, shown, 1), np.arange(places))
        answers = [{"request": str(n), "item": rows[n]["shown"][at]} for n, at in zip(*np.nonzero(
            rng.random(chance.shape) < chance), strict=True)]  # fmt: skip
    return read_requests(pa.Table.from_pylist(rows), pa.Table.from_pylist(answers))


def test_the_cost_of_a_draw_is_that_of_simulated_truth(shop):
    world, tables = shop
    requests = world.requests(20_000, np.random.default_rng(5))
    own = world.value(requests, world.lists(requests, np.random.default_rng(6))).mean()
    rng, world_drawn = np.random.default_rng(7), ForeignRanker(SHOP.model_copy(update={"temperature": 0.2}), seed=1)
    earned = world.value(requests, world_drawn.lists(requests, rng)).mean()
    (found,) = lp.explore.plan(*tables, **ONE).draws
    assert 0.5 < found.cost / (1 - earned / own) < 2
    undrawn = np.argsort(-requests.score, axis=1)[:, :5]
    drawn = world_drawn.lists(requests, rng)
    assert found.overlap == pytest.approx((drawn[:, :, None] == undrawn[:, None]).any(2).mean(), abs=0.02)


def test_the_cost_equals_enumeration():
    log, rate, tau = small(3), Rate(np.log([0.5, 0.2]), 0.8), 0.7
    lost, total = 0.0, 0.0
    for block in log.padded():
        scores = log.score[block.rows]
        for z in (scores - scores.mean(1, keepdims=True)) / scores.std(1, keepdims=True):
            weight, worth = np.exp(z / tau), np.exp(0.8 * z)
            expected = sum(
                weight[a] / weight.sum() * weight[b] / (weight.sum() - weight[a]) * (0.5 * worth[a] + 0.2 * worth[b])
                for a in range(4) for b in range(4) if a != b
            )  # fmt: skip
            first, second = np.sort(worth)[::-1][:2]
            lost, total = lost + 0.5 * first + 0.2 * second - expected, total + 0.5 * first + 0.2 * second
    rng = np.random.default_rng(1)
    cost = np.mean([_costs(log, rate, tau, 0, rng)[0] for _ in range(300)])
    assert cost == pytest.approx(lost / total, rel=0.03)
    assert _costs(log, rate, tau, 1, rng)[0] < cost
    assert _costs(log, rate, tau, 2, rng) == (pytest.approx(0, abs=1e-12), 1.0)


def test_the_steepness_of_rewards_is_found():
    log = small(6000, candidates=8, places=4, rate=Rate(np.log([0.3, 0.2, 0.1, 0.05]), 0.5))
    found = _fitted(log, log.reward())
    assert found.slope / CUT == pytest.approx(0.5, abs=0.06)
    assert np.exp(found.places) == pytest.approx([0.3, 0.2, 0.1, 0.05], rel=0.15)


def test_the_variance_is_that_of_the_verdicts_own_estimate():
    """On lists drawn again, answered by the same rate, judged by the code that gives verdicts."""
    rate, tau, count = Rate(np.log([0.3, 0.15, 0.1]), 0.4), 0.3, 3000
    log = small(count, candidates=8, places=3)
    rng = np.random.default_rng(2)
    planned = np.mean([_spread(log, rate, tau, 0, 1.0, 1.0, rng) for _ in range(5)])
    z = np.concatenate([log.score[start : start + 8] for start in log.start[:-1]]).reshape(count, 8)
    z = (z - z.mean(1, keepdims=True)) / z.std(1, keepdims=True)
    order = np.argsort(-rng.gumbel(size=z.shape) - z / tau, axis=1)[:, :3]
    place = np.zeros((count, 8), np.int64)
    np.put_along_axis(place, order, np.arange(1, 4), 1)
    clicked = rng.random((count, 3)) < rate.of(np.take_along_axis(z, order, 1), np.arange(3))
    reward = np.zeros((count, 8))
    np.put_along_axis(reward, order, clicked.astype(float), 1)
    from dataclasses import replace

    nothing = Answers(np.empty(0, np.int64), np.empty(0, np.int64), (), np.empty(0))
    drawn = replace(log, place=place.ravel(), answers=nothing)
    values = ListValues(drawn, Law("scores", tau, True), np.arange(count), np.exp(rate.places - rate.places[0]),
                        reward.ravel())  # fmt: skip
    noise = rng.normal(size=len(log.item))
    beta = values.spread(noise)
    weight = values.weights(lambda block: block.of(noise, 0.0) / beta)
    assert (weight < CAP).mean() > 0.95
    found = values.gain(weight, over=values.undrawn)
    assert planned == pytest.approx(found.se**2 * count, rel=0.15)


def test_the_size_of_noise_is_found_by_what_it_exchanges():
    """Against lists drawn by hand: with the noise, and without."""
    log, tau, count = small(1500, candidates=8, places=3), 0.3, 1500
    exchanged = _exchanged(log, tau, 0, np.random.default_rng(7))
    assert (np.diff(exchanged) > 0).all()
    z = log.score.reshape(count, 8)
    z = (z - z.mean(1, keepdims=True)) / z.std(1, keepdims=True)
    weight = np.exp(z / tau) / np.exp(z / tau).sum(1, keepdims=True)
    own, rng = np.argsort(-z, axis=1)[:, :3], np.random.default_rng(1)

    def outside(kappa):
        noise = rng.normal(size=z.shape)
        squares = (weight * noise**2).sum(1) - (weight * noise).sum(1) ** 2
        logits = z / tau + kappa * noise / np.sqrt(squares.mean())
        order = np.argsort(-rng.gumbel(size=z.shape) - logits, axis=1)[:, :3]
        return 1 - (order[:, :, None] == own[:, None]).any(2).mean()

    for kappa, share in zip(SIZES, exchanged, strict=True):
        by_hand = np.mean([outside(kappa) - outside(0.0) for _ in range(8)])
        assert share == pytest.approx(by_hand, abs=0.015)
        assert _size(exchanged, share) == pytest.approx(kappa)
    assert _size(exchanged, exchanged[0] / 4) == pytest.approx(SIZES[0] / 2)
    assert _size(exchanged, 2.0) == SIZES[-1]
    pinned = _exchanged(log, tau, 2, np.random.default_rng(7))
    assert pinned[-1] > exchanged[-1]  # of the drawn places, not of all


def test_lists_cost_and_days_scale_as_they_must(shop):
    _, tables = shop
    some = {"temperatures": (0.1, 0.3), "pins": (0, 2), "shares": (1.0, 0.25), "per_day": 1000.0}
    found = lp.explore.plan(*tables, **some)
    larger = lp.explore.plan(*tables, **some, gain=0.1)
    by = {(one.temperature, one.pinned, one.share): one for one in found.draws}
    assert len(by) == 8
    for whole, part in ((by[tau, pins, 1.0], by[tau, pins, 0.25]) for tau in (0.1, 0.3) for pins in (0, 2)):
        assert part.cost == pytest.approx(whole.cost / 4)
        assert part.lists == whole.lists
        assert part.days == pytest.approx(4 * whole.days) == pytest.approx(4 * whole.lists / 1000)
        assert 1 - part.overlap == pytest.approx((1 - whole.overlap) / 4)
    for small_gain, large_gain in zip(found.draws, larger.draws, strict=True):
        assert 2 < small_gain.lists / large_gain.lists < 4, "a larger gain takes a larger tilt"
    assert found.ab_test == pytest.approx(4 * larger.ab_test, rel=0.01)
    assert by[0.3, 0, 1.0].cost > 3 * by[0.1, 0, 1.0].cost
    assert by[0.3, 2, 1.0].cost < by[0.3, 0, 1.0].cost
    assert found.interleaving < found.ab_test / 3
    assert found.paid_back == pytest.approx(found.best.cost * found.best.lists / found.best.share / 0.05)
    assert found.to_dict()["paid_back"] > 2 * larger.to_dict()["paid_back"]
    assert found.best.cost * found.best.lists == min(one.cost * one.lists / one.share for one in found.draws) * \
        found.best.share  # fmt: skip


def test_without_answers_a_stated_reward_takes_their_place(shop):
    _, (requests, outcomes) = shop
    with pytest.raises(DataError, match="no answers: give outcomes=, or reward="):
        lp.explore.plan(requests, **ONE)
    (stated,) = lp.explore.plan(requests, reward=1.1, **ONE).draws
    (fitted,) = lp.explore.plan(requests, outcomes, **ONE).draws
    assert 0.4 < stated.cost / fitted.cost < 2.5
    assert 0.3 < stated.lists / fitted.lists < 3


def test_what_makes_no_sense_is_refused(shop):
    _, tables = shop
    with pytest.raises(DataError, match="5 pinned places leave nothing to draw in lists of 5"):
        lp.explore.plan(*tables, pins=(0, 5))
    for wrong in ({"temperatures": (0.0,)}, {"shares": (1.5,)}, {"pins": (-1,)}, {"gain": 0}, {"temperatures": ()}):
        with pytest.raises(ConfigError):
            lp.explore.plan(*tables, **wrong)
