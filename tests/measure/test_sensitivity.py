"""How strong a hidden cause must be: the sort against every assignment, a world with a known cause, the yardstick."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.measure.sensitivity import (
    Sensitivity,
    lowest_gain,
    lowest_weights,
    seen_causes,
    seen_factor,
    sensitivity,
    strength_to_undo,
)


def value(weight, reward):
    return (weight * reward).sum() / weight.sum()


@pytest.mark.parametrize("strength", [1.0, 1.3, 3.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_sort_finds_the_lowest_of_all_assignments(strength, seed):
    """A ratio of sums is lowest at a corner of the box: all 2^8 of them are tried, with ties among the rewards."""
    rng = np.random.default_rng(seed)
    weight, reward = rng.exponential(size=8), rng.integers(-2, 3, size=8).astype(float)
    corners = [value(weight * np.array(each), reward) for each in product((1 / strength, strength), repeat=8)]
    worst = lowest_weights(weight, reward, strength)
    assert value(worst, reward) == pytest.approx(min(corners), abs=1e-12)
    assert set(np.round(worst / weight, 12)) <= {round(1 / strength, 12), round(strength, 12)}


def test_a_known_hidden_cause_is_bounded_by_its_own_strength_and_not_by_less():
    """An intent u of the moment: half of the people take item 1 with .8 instead of .2, and these buy whatever it is.

    Enumerated: every cell as many rows as it is likely. The candidate always shows item 1: truly it earns what μ earns,
    the log says more. Marginally p(1) = .5; given u it is .8 or .2: the cause has strength 2.5 at most.
    """
    cells = {(u, a): (0.8 if (a == 1) == (u == 1) else 0.2) / 2 for u in (0, 1) for a in (0, 1)}
    rows = [(u, a) for (u, a), share in cells.items() for _ in range(round(1000 * share))]
    hidden, item = np.array(rows).T
    reward, weight = hidden.astype(float), np.where(item == 1, 2.0, 0.0)  # 1 / p(item) where it is shown
    truth = reward.mean()
    assert value(weight, reward) == pytest.approx(0.8) and truth == pytest.approx(0.5)
    assert value(lowest_weights(weight, reward, 2.5), reward) <= truth
    found = strength_to_undo(weight, reward, np.arange(len(rows)))
    # The lowest value 4/Γ / (4/Γ + Γ) is the log's 1/2 at Γ = 2; the interval's lower end meets it a little sooner.
    assert 1.5 < found < 2.0
    assert strength_to_undo(*(np.tile(each, 100) for each in (weight, reward)), np.arange(100 * len(rows))) > 1.95


def test_the_lower_end_is_that_of_the_gain_and_falls_with_the_strength():
    rng = np.random.default_rng(0)
    weight, reward = rng.lognormal(0, 0.5, size=400), (rng.random(400) < 0.4).astype(float)
    sequence = np.repeat(np.arange(100), 4)
    lows = [lowest_gain(weight, reward, sequence, reward, each) for each in (1.0, 1.1, 1.5, 2.0, 4.0)]
    assert all(np.diff(lows) < 0)
    assert lows[0] < value(weight, reward) - reward.mean()
    assert lowest_gain(weight, reward, sequence, reward, 1.0, confidence=0.8) > lows[0]
    assert lowest_gain(weight[:4], reward[:4], np.zeros(4), reward[:4], 1.0) == -math.inf


def test_the_strength_is_where_the_lower_end_meets_nothing():
    rng = np.random.default_rng(1)
    item = rng.integers(2, size=4000)
    reward, weight = (rng.random(4000) < np.where(item == 1, 0.6, 0.3)).astype(float), np.where(item == 1, 1.6, 0.4)
    sequence = np.arange(4000)
    found = strength_to_undo(weight, reward, sequence)
    assert found > 1.1
    assert lowest_gain(weight, reward, sequence, reward, found * 1.001) <= 0
    assert lowest_gain(weight, reward, sequence, reward, found * 0.999) > 0
    assert strength_to_undo(weight[::-1], reward, sequence) == 1.0  # no gain to undo
    assert strength_to_undo(weight, reward, sequence, reward - 1) == math.inf  # nothing earns less than this


def test_an_old_policy_is_compared_with_by_its_own_values():
    rng = np.random.default_rng(2)
    reward, weight = rng.random(500), rng.lognormal(0, 0.3, size=500)
    sequence = np.arange(500)
    better = strength_to_undo(weight, reward, sequence, reward - 0.2)
    assert 1 < strength_to_undo(weight, reward, sequence, reward - 0.1) < better


def test_a_seen_factor_by_hand():
    """40 rows: after cause 0 always item 0, after cause 1 always item 1."""
    cause = np.repeat([0, 1], 20)
    share = 21 / 42
    told = (20 + share) / 21 / share  # where the item is the usual one: the belief that fits best is the least, 1
    other = share / 21 / share  # and where it is not
    found = seen_factor(cause, cause, np.zeros(9, int), np.zeros(9, int), n_causes=3, n_items=2)
    assert found == pytest.approx(told)
    found = seen_factor(cause, cause, np.zeros(9, int), np.ones(9, int), n_causes=3, n_items=2)
    assert found == pytest.approx(1 / other)
    unknown = seen_factor(cause, cause, np.full(9, 2), np.zeros(9, int), n_causes=3, n_items=2)
    assert unknown == pytest.approx(1.0)
    assert seen_factor(cause, cause, np.zeros(0, int), np.zeros(0, int), n_causes=3, n_items=2) == 1.0


def log(folder, *, follows: float, hour_matters: bool = False):
    """30 items; the next one is the last one's neighbour with a chance of so much, else any; perhaps by the hour."""
    rng, visits, steps, items = np.random.default_rng(3), 400, 6, 30
    with writing(folder, kind="interactions", events=["context", "click"], optional=("time",)) as store:
        for split in ("train", "validation", "test"):
            hour = rng.integers(24, size=(visits, 1)) + np.zeros((1, steps), int)
            item = rng.integers(items, size=(visits, steps))
            for step in range(1, steps):
                stay = rng.random(visits) < follows
                item[stay, step] = (item[stay, step - 1] + 1) % items
            if hour_matters:
                item = np.where(rng.random(item.shape) < 0.7, hour, item)
            event = np.ones_like(item)
            event[:, 0] = 0
            time = (24 * np.arange(visits)[:, None] + hour) * 3_600_000 + np.arange(steps)
            arrays = {"item": item, "event": event, "reward": event, "time": time}
            store.splits[split].append(np.full(visits, steps), {name: each.ravel() for name, each in arrays.items()})
        store.write_items(np.arange(items), np.ones(items, np.int64))
    return Prepared(folder)


def test_the_yardstick_is_the_strongest_cause_that_the_log_shows(tmp_path):
    weak, strong = (seen_causes(log(tmp_path / str(each), follows=each), "test") for each in (0.0, 0.8))
    assert weak["the last item"] < 1.2 < 5 < strong["the last item"]
    assert weak["the hour"] < 1.2
    data = log(tmp_path / "hours", follows=0.0, hour_matters=True)
    hours = seen_causes(data, "test")
    assert hours["the hour"] > 5
    weight, reward = np.ones(20), np.arange(20.0)
    found = sensitivity(data, "test", weight, reward, np.arange(20))
    assert (found.cause, found.yardstick, found.strength) == ("the hour", hours["the hour"], 1.0)


def test_strengths_are_compared_by_their_logarithms():
    assert Sensitivity(4.0, 2.0, "the hour").ratio == pytest.approx(2.0)
    assert Sensitivity(1.0, 2.0, "the hour").ratio == 0.0
    assert Sensitivity(4.0, None, None).ratio is None and Sensitivity(4.0, 1.0, "the hour").ratio is None
