"""Returns by logged propensities: enumerated visits, any model of means, what is refused, and whether it matters."""

from __future__ import annotations

import math
from functools import partial
from itertools import product

import numpy as np
import pytest

from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.measure.decisions import Decisions, OverlapRules, overlap
from localpolicy.measure.position_metrics import Scores
from localpolicy.measure.returns import (
    NO_ITEM,
    Opinion,
    ReturnModel,
    Visits,
    of_deviations,
    of_visits,
    read_visits,
    return_gain,
)

ITEMS, STEPS = 3, 3
PAY = np.array([[0.2, 0.0, 0.5], [0.9, 0.1, 0.3], [0.0, 0.6, 0.4]])  # by the item before, by the item
MU = np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.4, 0.5, 0.1]])
PI = np.array([[0.1, 0.6, 0.3], [0.7, 0.2, 0.1], [0.3, 0.3, 0.4]])
FIRST = 2  # the item before a visit's first decision, unseen by the model


def every_visit():
    """All visits of three decisions, and how likely each is under μ."""
    paths = np.array(list(product(range(ITEMS), repeat=STEPS)))
    before = np.column_stack([np.full(len(paths), FIRST), paths[:, :-1]])
    chance = MU[before, paths].prod(1)
    sequence = np.repeat(np.arange(len(paths)), STEPS)
    visits = Visits.of(sequence, paths.ravel(), PAY[before, paths].ravel())
    return visits, (PI / MU)[before, paths].ravel(), before.ravel(), chance


def earns(policy, gamma, then=None):
    """What a visit earns from each context on, before each step, by dynamic programming; `then` draws later items."""
    values = [np.zeros(ITEMS)]
    for _ in range(STEPS):
        later = values[-1]
        values.append(((policy if then is None else then) * (PAY + gamma * later[None])).sum(1))
    return values[::-1]


@pytest.mark.parametrize("gamma", [1.0, 0.6])
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_a_visits_estimate_is_exact_whatever_the_model_says(gamma, seed):
    """All visits are enumerated, so that the mean is an expectation."""
    visits, weight, before, chance = every_visit()
    said = np.zeros((ITEMS, ITEMS)) if seed is None else np.random.default_rng(seed).standard_normal((ITEMS, ITEMS))
    opinion = Opinion(said[before, visits.item], (PI * said).sum(1)[before])
    found = of_visits(visits, weight, opinion, gamma=gamma)
    assert found.values @ chance == pytest.approx(earns(PI, gamma)[0][FIRST], abs=1e-12)
    own = of_visits(visits, np.ones(len(weight)), Opinion(0 * weight, 0 * weight), gamma=gamma)
    np.testing.assert_allclose(own.values, visits.returns(gamma)[visits.starts])


@pytest.mark.parametrize("gamma", [1.0, 0.6])
@pytest.mark.parametrize("seed", [None, 0])
def test_one_deviation_is_that_of_one_item_with_the_rest_left_to_the_log(gamma, seed):
    visits, weight, before, chance = every_visit()
    said = np.zeros((ITEMS, ITEMS)) if seed is None else np.random.default_rng(seed).standard_normal((ITEMS, ITEMS))
    opinion = Opinion(said[before, visits.item], (PI * said).sum(1)[before])
    found = of_deviations(visits, weight, opinion, gamma=gamma).values.reshape(-1, STEPS)
    later, at = earns(MU, gamma), np.eye(ITEMS)[FIRST]
    for step in range(STEPS):
        deviates = (PI * (PAY + gamma * later[step + 1][None])).sum(1)
        assert found[:, step] @ chance == pytest.approx(at @ deviates, abs=1e-12)
        at = at @ MU


@pytest.mark.parametrize("steps", [2, 3])
@pytest.mark.parametrize("after", [True, False])
def test_items_in_a_row_are_drawn_by_the_policy_and_the_rest_left_to_the_log(steps, after):
    """Of visits of three steps: with three in a row its first decision is the whole visit's estimate."""
    visits, weight, before, chance = every_visit()
    gamma, said = 0.6, np.random.default_rng(2).standard_normal((ITEMS, ITEMS))
    opinion = Opinion(said[before, visits.item], (PI * said).sum(1)[before])
    found = of_deviations(visits, weight, opinion, gamma=gamma, steps=steps, after=after).values.reshape(-1, STEPS)
    own, at = [value if after else 0 * value for value in earns(MU, gamma)], np.eye(ITEMS)[FIRST]
    for step in range(STEPS):
        value = own[min(step + steps, STEPS)]
        for _ in range(min(steps, STEPS - step)):
            value = (PI * (PAY + gamma * value[None])).sum(1)
        assert found[:, step] @ chance == pytest.approx(at @ value, abs=1e-12)
        at = at @ MU
    if steps == STEPS:
        whole = of_visits(visits, weight, opinion, gamma=gamma).values
        np.testing.assert_allclose(found[:, 0], whole)


def test_what_one_more_unit_of_a_reward_adds_is_its_leverage():
    visits, weight, *_ = every_visit()
    opinion, n = Opinion(0.1 * np.ones(len(weight)), 0.2 * np.ones(len(weight))), len(weight)
    few = (partial(of_deviations, steps=2), partial(of_deviations, steps=2, after=False))
    for estimate in (of_visits, of_deviations, *few):
        before = estimate(visits, weight, opinion, gamma=0.7)
        for row in (0, 1, 2, 40):
            more = visits._replace(reward=visits.reward + np.eye(n)[row])
            added = estimate(more, weight, opinion, gamma=0.7).values.sum() - before.values.sum()
            assert added == pytest.approx(before.leverage[row])


def test_visits_are_read_step_by_step():
    visits = Visits.of(np.array([4, 4, 4, 7, 9, 9]), np.array([2, 0, 1, 1, 0, 2]), np.array([1, 2, 4, 8, 16, 32]))
    assert visits.step.tolist() == [0, 1, 2, 0, 0, 1]
    assert visits.before.tolist() == [NO_ITEM, 2, 0, NO_ITEM, NO_ITEM, 0]
    assert visits.starts.tolist() == [0, 3, 4]
    assert visits.returns(0.5).tolist() == [1 + 1 + 1, 2 + 2, 4, 8, 16 + 16, 32]
    assert visits.forth(visits.reward, np.full(6, 2.0)).tolist() == [1, 4, 12, 8, 16, 64]


def drawn(policy, count, rng, steps=STEPS):
    """Visits of a policy, with rewards of 0 and 1."""
    at, items, rewards = np.full(count, FIRST), [], []
    for _ in range(steps):
        item = (policy[at].cumsum(1) > rng.random((count, 1))).argmax(1)
        rewards.append((rng.random(count) < PAY[at, item]).astype(float))
        items.append(item)
        at = item
    item, reward = (np.stack(each, 1).ravel() for each in (items, rewards))
    return Visits.of(np.repeat(np.arange(count), steps), item, reward)


def weights(visits):
    before = np.where(visits.before == NO_ITEM, FIRST, visits.before)
    return (PI / MU)[before, visits.item], before


def test_a_model_fitted_on_other_visits_makes_the_interval_narrower():
    rng = np.random.default_rng(0)
    visits = drawn(MU, 4000, rng)
    model = ReturnModel.fit(drawn(MU, 4000, rng), gamma=1.0, n_items=ITEMS)
    weight, before = weights(visits)
    truth = earns(PI, 1.0)[0][FIRST]
    plain = of_visits(visits, weight, Opinion(0 * weight, 0 * weight), gamma=1.0)
    helped = of_visits(visits, weight, Opinion.of(model, visits), gamma=1.0)
    more = of_visits(visits, weight, Opinion.of(model, visits, (PI @ model.of_taken)[before]), gamma=1.0)
    assert max(more.se, helped.se) < 0.95 * plain.se
    for each in (plain, helped, more):
        assert abs(each.mean - truth) < 3 * each.se


def test_a_gain_is_that_of_visits_where_the_log_covers_them_and_else_that_of_one_deviation():
    rng = np.random.default_rng(1)
    visits = drawn(MU, 3000, rng)
    model = ReturnModel.fit(drawn(MU, 3000, rng), gamma=1.0, n_items=ITEMS)
    weight, _ = weights(visits)
    found = return_gain(visits, weight, None, model)
    assert (found.asked, found.unit, found.refusal) == ("visit", "visits", None)
    assert found.gain.n == 3000 and found.old.mean == pytest.approx(visits.returns(1.0)[visits.starts].mean())
    gain = earns(PI, 1.0)[0][FIRST] - earns(MU, 1.0)[0][FIRST]
    assert abs(found.gain.mean - gain) < 3 * found.gain.se
    narrow = return_gain(visits, weight, None, model, rules=OverlapRules(min_effective=1800))
    assert (narrow.asked, narrow.unit, narrow.gain.n, narrow.refusal) == ("deviation", "decisions", 9000, None)
    assert narrow.steps == 2, "the most that the log covers"
    two = of_deviations(visits, weight, Opinion.of(model, visits), gamma=1.0, steps=2).mean - visits.returns(1.0).mean()
    assert narrow.items == pytest.approx((2 + 2 + 1) / 3), "the last decision of three has no second item"
    assert narrow.gain.mean == pytest.approx(two / narrow.items), "deviations overlap: per item, not per deviation"
    assert narrow.gain.leverage.sum() * narrow.items == pytest.approx(
        of_deviations(visits, weight, Opinion.of(model, visits), gamma=1.0, steps=2).leverage.sum()
        - of_deviations(visits, 1 + 0 * weight, Opinion.of(model, visits), gamma=1.0, steps=2).leverage.sum()
    )
    assert return_gain(visits, weight, None, model, rules=OverlapRules(min_effective=5000)).steps == 1
    assert return_gain(visits, weight, None, model, rules=OverlapRules(min_effective=9000)).refusal is not None
    against_itself = return_gain(visits, weight, weight, model)
    assert against_itself.gain.mean == 0 and against_itself.gain.se == 0


def test_visits_of_which_a_propensity_is_missing_are_left_out_whole():
    rng = np.random.default_rng(2)
    visits = drawn(MU, 2000, rng)
    model = ReturnModel.fit(visits, gamma=1.0, n_items=ITEMS)
    weight, _ = weights(visits)
    holes = weight.copy()
    holes[[0, 4]] = math.nan  # of the first two visits
    found = return_gain(visits, holes, None, model)
    rest = visits.sequence > 1
    alone = return_gain(visits.at(rest), weight[rest], None, model)
    assert found.gain.n == 1998 and found.gain.mean == pytest.approx(alone.gain.mean)


def test_the_sign_of_a_return_may_be_another_than_that_of_the_next_reward():
    """Item 1 pays least at once and leads to where item 0 pays .9: a policy that takes it earns more by visits."""
    rng = np.random.default_rng(3)
    visits = drawn(MU, 20000, rng)
    before = np.where(visits.before == NO_ITEM, FIRST, visits.before)
    patient = np.tile([0.3, 0.6, 0.1], (ITEMS, 1))
    patient[1] = [0.9, 0.05, 0.05]
    patient[FIRST] = MU[FIRST]  # of which the first step alone says nothing
    patient[0] = [0.1, 0.8, 0.1]
    pay = np.array([[0.3, 0.0, 0.2], [0.9, 0.1, 0.3], [0.3, 0.0, 0.4]])
    reward = (rng.random(len(visits.item)) < pay[before, visits.item]).astype(float)
    visits = visits._replace(reward=reward)
    weight = (patient / MU)[before, visits.item]
    model = ReturnModel.fit(visits, gamma=1.0, n_items=ITEMS)
    rows = before == 0
    now = (weight[rows] - 1) @ reward[rows] / rows.sum()
    assert now < -0.05
    gain = return_gain(visits, weight, None, model).gain
    assert gain.mean > 5 * gain.se


def scored(**columns):
    """Two persons: one with lists of two places, then one; the other with a list of two."""
    n = 5
    none = np.zeros(n)
    made = {name: none for name in ("rank", "tied", "logp", "top", "entropy", "event")}
    made |= {"sequence": np.array([0, 0, 0, 1, 1]), "history": np.array([1, 2, 3, 1, 2]), "item": np.arange(n),
             "reward": np.array([1.0, 2, 4, 8, 16]), "repeat": none.astype(bool)}  # fmt: skip
    return Scores(events=["shown"], settings={}, shown=np.zeros(1), **(made | columns))


def test_a_list_is_one_decision_of_its_visit():
    propensity, logp = np.array([0.5, 0.5, 0.2, 0.5, 0.25]), np.log([0.5, 0.25, 0.4, 0.1, 0.5])
    assert read_visits(scored()) is None
    visits, weight = read_visits(scored(propensity=propensity, logp=logp))
    np.testing.assert_allclose(weight, [1, 0.5, 2, 0.2, 2])
    assert visits.step.tolist() == [0, 1, 2, 0, 1]
    lists = {"propensity": propensity, "logp_open": logp, "above": np.array([0, 1, 0, 0, 1])}
    visits, weight = read_visits(scored(**lists))
    np.testing.assert_allclose(weight, [0.5, 2, 0.4])
    assert (visits.reward.tolist(), visits.step.tolist()) == ([3, 4, 24], [0, 1, 0])
    assert (visits.item.tolist(), visits.before.tolist()) == ([0, 2, 3], [NO_ITEM, 0, NO_ITEM])
    _, weight = read_visits(scored(**lists, place=np.array([0, 1, 0, 0, 2])))  # a row of the last list is missing
    np.testing.assert_array_equal(weight, [0.5, 2, np.nan])


def test_a_split_is_read_without_context_and_list_by_list(tmp_path):
    with writing(tmp_path / "data", kind="impressions", events=["context", "shown"], optional=("above",)) as store:
        arrays = {"item": [0, 1, 2, 0, 2, 1], "event": [0, 1, 1, 1, 0, 1], "reward": [9, 1, 2, 4, 9, 8],
                  "above": [0, 0, 1, 0, 0, 0]}  # fmt: skip
        for split in ("train", "validation", "test"):
            store.splits[split].append(np.array([4, 2]), {name: np.array(each) for name, each in arrays.items()})
        store.write_items(np.arange(3), np.ones(3, np.int64))
    visits = Visits.of_split(Prepared(tmp_path / "data"), "train")
    assert (visits.sequence.tolist(), visits.item.tolist(), visits.reward.tolist()) == ([0, 0, 1], [1, 0, 1], [3, 4, 8])


def test_products_of_ratios_are_covered_by_their_number_and_single_ratios_by_their_share():
    """Before: of two items in a row a tenth was asked, so that policies at a quarter of the decisions had one."""
    single = np.tile([3.6, 0.2, 0.1, 0.1], 750)
    product = np.roll(single, 1) * single + np.tile([0.0] * 14 + [12.0], 200)
    product /= product.mean()
    visits = Decisions(product, np.tile([0.0, 1.0], 1500), np.arange(3000))
    rules = OverlapRules(min_effective=50, min_effective_share=0.2, max_share=0.5)
    assert "20% are needed" in str(overlap(visits, rules).refusal)
    found = overlap(visits, rules, single=single)
    assert found.refusal is None and found.near == pytest.approx(1000**2 * 9 / (single**2).sum() / 3000)
