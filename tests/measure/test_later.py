"""The test of whether an item changes what its visit earns later: its power, and persons that differ."""

from __future__ import annotations

import numpy as np
import pytest

from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.measure.later import FEWEST_VISITS, Later, later_effect, later_in
from localpolicy.measure.returns import Visits

ITEMS, STEPS = 4, 3
GREEDY, LAZY = np.array([0.7, 0.1, 0.1, 0.1]), np.array([0.1, 0.1, 0.1, 0.7])


def personal(rng, visits=300, *, leads=0.0, kept=True):
    """People who buy much are shown item 0, the others item 3; after item 1 every reward is likelier by `leads`."""
    buys = np.repeat(rng.random(visits) < 0.5, STEPS)
    law = np.where(buys[:, None], GREEDY, LAZY)
    item = (law.cumsum(1) > rng.random((len(law), 1))).argmax(1)
    after = np.zeros(len(item))
    for step in range(1, STEPS):
        after[step::STEPS] = np.maximum(after[step - 1 :: STEPS], item[step - 1 :: STEPS] == 1)
    reward = rng.random(len(item)) < np.where(buys, 0.5, 0.1) + leads * after
    propensity = law[np.arange(len(item)), item] if kept else np.full(len(item), 1 / ITEMS)
    return Visits.of(np.repeat(np.arange(visits), STEPS), item, reward.astype(float)), propensity


@pytest.mark.parametrize("seed", range(3))
def test_an_item_that_leads_to_rewards_is_found(seed):
    found = later_effect(*personal(np.random.default_rng(seed), 3000, leads=0.3), n_items=ITEMS)
    assert found.matters and found.t > 4 and found.n == 3000 * STEPS


def test_persons_that_differ_and_are_shown_other_items_are_no_later_effect():
    """5 % of 200 logs may alarm; without their propensities, as if all were shown at random, nearly all do."""
    rng = np.random.default_rng(5)
    alarms, guessed = (
        sum(later_effect(*personal(rng, kept=kept), n_items=ITEMS).matters for _ in range(200))
        for kept in (True, False)
    )
    assert alarms <= 20  # P(more | 5 %) = .1 %
    assert guessed > 190


def test_there_is_no_answer_for_few_visits_single_decisions_or_unknown_propensities():
    visits, propensity = personal(np.random.default_rng(0), 3000, leads=0.3)
    few = visits.sequence < FEWEST_VISITS - 1
    assert later_effect(visits.at(few), propensity[few], n_items=ITEMS) == Later(0.0, np.inf, int(few.sum()))
    single = visits.step == 0
    assert not later_effect(visits.at(single), propensity[single], n_items=ITEMS).matters
    holes = np.where(visits.sequence % 2 == 0, propensity, np.nan)
    half = visits.sequence % 2 == 0
    assert later_effect(visits, holes, n_items=ITEMS) == later_effect(visits.at(half), propensity[half], n_items=ITEMS)


def test_the_log_of_a_data_set_is_read_without_its_test_split(tmp_path):
    rng, kept = np.random.default_rng(1), []
    options = {"kind": "impressions", "events": ["none", "click"], "optional": ("propensity",)}
    with writing(tmp_path / "data", **options) as store:
        for split in ("train", "validation", "test"):
            visits, propensity = personal(rng, 900, leads=0.3)
            columns = {"item": visits.item, "event": visits.reward.astype(int), "reward": visits.reward}
            store.splits[split].append(np.full(900, STEPS), {**columns, "propensity": propensity})
            kept.append((visits, propensity.astype(np.float32).astype(np.float64)))
        store.write_items(np.arange(ITEMS), np.ones(ITEMS, np.int64))

    found = later_in(Prepared(tmp_path / "data"))
    both = [np.concatenate([kept[0][0][at], kept[1][0][at] + (at == 0) * 900]) for at in range(3)]
    together = later_effect(Visits.of(*both), np.concatenate([kept[0][1], kept[1][1]]), n_items=ITEMS)
    assert found.n == 2 * 900 * STEPS and found.t == pytest.approx(together.t)
