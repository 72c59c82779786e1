"""Lists: three estimands, verified on a world of lists small enough to enumerate."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from measured import scores

from localpolicy.judge.checks.value import value_check
from localpolicy.judge.rules import GateRules
from localpolicy.measure.decisions import Decisions, decisions, whole_lists
from localpolicy.measure.estimators import by_name
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.value import value_bounds, value_of_scores

importance, self_normalised, doubly_robust, self_normalised_doubly_robust = (
    by_name(name).values for name in ("ips", "snips", "dr", "sndr")
)
V, K = 12, 4
REWARD = np.array([0.9] + [0.4] * 4 + [0.02] * 7)
MU = np.array([0.15] + [0.19] * 4 + [0.09 / 7] * 7)
MU /= MU.sum()
PI = np.array([0.90] + [0.10 / 11] * 11)
LISTS = np.array(list(itertools.permutations(range(V), K)))  # every list there is


def law(policy: np.ndarray, lists: np.ndarray = LISTS) -> np.ndarray:
    """π(a|open) of each place of each list."""
    chosen = policy[lists]
    return chosen / (1 - np.cumsum(chosen, 1) + chosen)


def of_lists(lists: np.ndarray, reward: np.ndarray, policy: np.ndarray, model: np.ndarray | None = None) -> dict:
    """Columns of scores of a policy on lists that μ drew."""
    count = len(lists)
    columns = {
        "sequence": np.repeat(np.arange(count), K), "history": np.tile(np.arange(1, K + 1), count),
        "above": np.tile(np.arange(K), count), "item": lists.ravel(), "reward": reward.ravel(),
        "propensity": law(MU, lists).ravel(), "logp_open": np.log(law(policy, lists)).ravel(),
        "logp": np.log(policy[lists]).ravel(),
    }  # fmt: skip
    if model is not None:
        gone = np.cumsum(policy[lists], 1) - policy[lists]
        lost = np.cumsum((policy * model)[lists], 1) - (policy * model)[lists]
        columns |= {
            "value_taken": model[lists].ravel(),
            "value_expected": ((policy @ model - lost) / (1 - gone)).ravel(),
        }
    return columns


def drawn(count: int, seed: int, *, policy: np.ndarray = MU) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    lists = np.argsort(-(np.log(policy) + rng.gumbel(size=(count, V))), axis=1)[:, :K]
    return lists, (rng.random(lists.shape) < REWARD[lists]).astype(float)


def expectation(log: Decisions, contributions: np.ndarray) -> float:
    """E_μ of a contribution per list, over every list there is."""
    assert len(contributions) == len(LISTS)
    return float(law(MU).prod(1) @ contributions)


def enumerated(policy: np.ndarray, **more: object) -> Decisions:
    log = decisions(scores(**of_lists(LISTS, REWARD[LISTS], policy, **more)), estimand="whole list")
    assert log is not None
    return log


def true_value(policy: np.ndarray) -> float:
    return float(law(policy).prod(1) @ REWARD[LISTS].sum(1))


def test_products_of_ratios_are_a_lists_value_and_single_ratios_are_not():
    log = enumerated(PI)
    assert true_value(MU) == pytest.approx(1.722, abs=5e-4) and true_value(PI) == pytest.approx(1.375, abs=5e-4)
    assert expectation(log, importance(log)) == pytest.approx(true_value(PI))
    per_place = law(MU).prod(1) @ (law(PI) / law(MU) * REWARD[LISTS]).sum(1)
    assert per_place == pytest.approx(2.680, abs=5e-4), "a good item is earned at every place above which μ had others"
    assert expectation(log, log.whole_weight) == pytest.approx(1.0)
    np.testing.assert_allclose(log.whole_weight, (law(PI) / law(MU)).prod(1))
    np.testing.assert_allclose(log.one_place, (law(PI) / law(MU)).ravel())


def test_a_lists_own_reward_is_weighted_by_all_places():
    """One reward per list, which may depend on any place, stands on the last row."""
    whole = REWARD[LISTS].sum(1) ** 2
    reward = np.zeros(LISTS.shape)
    reward[:, -1] = whole
    log = decisions(scores(**of_lists(LISTS, reward, PI)))
    assert log is not None and expectation(log, importance(log)) == pytest.approx(law(PI).prod(1) @ whole)


def test_doubly_robust_is_unbiased_for_lists_whatever_the_model():
    model = np.random.default_rng(0).uniform(0, 1, V)
    log = enumerated(PI, model=model)
    assert expectation(log, doubly_robust(log)) == pytest.approx(true_value(PI))
    assert np.std(importance(log)) > 0


def test_the_first_place_is_exact():
    first = decisions(scores(**of_lists(LISTS, REWARD[LISTS], PI)), estimand="first place")
    assert first is not None and not first.lists and len(first.weight) == len(LISTS)
    assert law(MU).prod(1) @ importance(first) == pytest.approx(PI @ REWARD)


def test_self_normalised_lists_are_ratios_place_by_place():
    lists, reward = drawn(500, 1)
    log = decisions(scores(**of_lists(lists, reward, 0.5 * MU + 0.5 / V)))
    assert log is not None
    weight, earned = log.weight.reshape(-1, K), reward
    by_place = (weight * earned).sum(0) / weight.sum(0)
    assert self_normalised(log).mean() == pytest.approx(by_place.sum())
    assert len(self_normalised(log)) == len(log.clusters) == 500
    same = decisions(scores(**of_lists(lists, reward, MU)))
    assert same is not None and self_normalised(same).mean() == pytest.approx(reward.sum(1).mean())


def test_self_normalised_doubly_robust_lists_are_ratios_place_by_place():
    lists, reward = drawn(500, 1)
    columns = of_lists(lists, reward, 0.5 * MU + 0.5 / V, np.linspace(0, 1, V))
    log = decisions(scores(**columns))
    assert log is not None
    weight, before, expected, taken = (
        each.reshape(-1, K) for each in (log.weight, log.before, log.value_expected, log.value_taken)
    )
    by_place = (before * expected).sum(0) / before.sum(0) + (weight * (reward - taken)).sum(0) / weight.sum(0)
    assert self_normalised_doubly_robust(log).mean() == pytest.approx(by_place.sum())


def test_lists_of_which_a_place_is_missing_are_left_out():
    weight, reward = np.array([2.0, 3.0, 5.0, 7.0, np.nan, 1.0, 2.0]), np.ones(7)
    above, number = np.array([0, 1, 0, 1, 2, 1, 2]), np.array([0, 0, 1, 1, 1, 2, 2])
    log = whole_lists(Decisions(weight, reward, number), above, number)
    assert log.weight.tolist() == [2.0, 6.0] and log.before.tolist() == [1.0, 2.0]
    assert log.clusters.tolist() == [0] and log.whole_weight.tolist() == [6.0] and log.earned.tolist() == [2.0]


@pytest.mark.parametrize("stated", [[0, 1, 0, 2], [0, 1, 1, 2], [0, 1, 0, 0]], ids=["missing", "first", "twice"])
def test_lists_that_the_log_does_not_hold_whole_are_left_out(stated):
    """A row that a filter dropped, or that was logged twice: the product over the rest is of another list."""
    weight, number = np.array([2.0, 3.0, 5.0, 7.0]), np.array([0, 0, 1, 1])
    log = whole_lists(Decisions(weight, np.ones(4), number), np.array([0, 1, 0, 1]), number, place=np.array(stated))
    assert log.weight.tolist() == [2.0, 6.0]
    whole = whole_lists(Decisions(weight, np.ones(4), number), np.array([0, 1, 0, 1]), number)
    assert whole.weight.tolist() == [2.0, 6.0, 5.0, 35.0]


def judged(name: str, lists: np.ndarray, reward: np.ndarray, policy: np.ndarray) -> Evaluation:
    found = scores(**of_lists(lists, reward, policy, model=np.zeros(V)))
    return Evaluation(
        name=name, figures={}, divergence=None, scores=found, counts=np.ones(V),
        settings={"lists": 20}, off_policy=value_of_scores(found, largest_reward=1.0),
    )  # fmt: skip


def test_a_policy_whose_lists_earn_less_is_not_deployed():
    """Where single places promise +56 % and lists earn 20 % less: never deploy, on ten logs of 3,000 lists."""
    answers = []
    for seed in range(10):
        log = drawn(3_000, seed)
        check = value_check(judged("new", *log, PI), None, GateRules())
        answers.append(check.outcome)
        assert check.unit == "lists" and "Its first place alone: +" in check.because
    assert "yes" not in answers


def test_a_gain_of_the_first_place_is_no_gain_where_the_list_has_no_value():
    check = value_check(judged("new", *drawn(900, 0), PI), None, GateRules())
    assert check.outcome == "cannot tell" and "no estimate of new" in check.because and check.needed > 900
    low = float(check.because.rpartition("first place alone: ")[2].partition("(")[2].partition(" to ")[0])
    assert low > 0, "the first place gains significantly, and says so"


def test_lists_that_earn_more_are_found():
    """A policy that puts the best items first, near enough to μ: true gain of more than 8 %."""
    better = MU * np.exp(REWARD)
    better /= better.sum()
    assert true_value(better) > 1.08 * true_value(MU)
    check = value_check(judged("new", *drawn(6_000, 3), better), None, GateRules())
    assert check.outcome == "yes" and check.low < true_value(better) - true_value(MU) < check.high
    assumed = check.because.partition("which this log does not refute: ")[2]
    low, high = (float(end) for end in assumed.partition("(")[2].partition(")")[0].split(" to "))
    assert check.low < low < high < check.high, "narrower, if rewards do not depend on the items below"
    assert check.because.endswith("), which decides nothing")


def test_the_three_estimands_have_their_own_sample():
    found = judged("new", *drawn(3_000, 0), PI).off_policy
    assert found is not None and found.estimand == "whole list" and found.overlap.n == 3_000
    assert set(found.beside) == {"whole list under a cascade", "first place", "one place changed"}
    assert found.beside["first place"].overlap.n == 3_000
    assert found.beside["one place changed"].overlap.n == 3_000 * K
    assert found.overlap.effective < found.beside["first place"].overlap.effective
    assert "DM" not in found.estimates and found.beside["first place"].estimates["DM"].intervals == {}


def test_what_chooses_knows_lists():
    lists, reward = drawn(3_000, 4)
    logs = [decisions(scores(**of_lists(lists, reward, policy))) for policy in (MU, 0.7 * MU + 0.3 * PI)]
    bounds = value_bounds([log for log in logs if log is not None], "snips")
    assert bounds[0].value == pytest.approx(reward.sum(1).mean()) and bounds[0].low < bounds[0].value
    assert bounds[0].effective == pytest.approx(1.0)
