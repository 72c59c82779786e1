"""Estimators against a world whose every number is known: unbiased, with intervals that cover as they claim."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from localpolicy.errors import ConfigError, DataError
from localpolicy.judge.rules import GateRules
from localpolicy.measure.decisions import Decisions, Overlap, OverlapRules, decisions, effective_sample, overlap
from localpolicy.measure.estimators import CHOOSING, ESTIMATORS, JUDGING, by_name, contributions, logged
from localpolicy.measure.estimators.base import never_shown
from localpolicy.measure.estimators.dm import DM
from localpolicy.measure.estimators.ips import ClippedIPS
from localpolicy.measure.estimators.log_smoothing import smoothed_lower_bound
from localpolicy.measure.estimators.snips import SNIPS
from localpolicy.measure.intervals import Bounds, empirical_bernstein, normal, skewed
from localpolicy.measure.value import value_bounds, value_of, value_of_scores
from localpolicy.simulation.bandit import BanditConfig, BanditWorld

importance, self_normalised, direct, doubly_robust, self_normalised_doubly_robust = (
    by_name(name).values for name in ("ips", "snips", "dm", "dr", "sndr")
)
LOGS, SIZE = 400, 500  # logs of decisions each; 400 give a standard error of 1.1 % on a coverage of 95 %


@pytest.fixture(scope="module")
def world() -> BanditWorld:
    return BanditWorld(BanditConfig(contexts=20, items=8), seed=3)


@pytest.fixture(scope="module")
def target(world):
    """A policy some way from μ."""
    return world.tilted(0.3)


def draw(
    world: BanditWorld, policy: np.ndarray, rng: np.random.Generator, *, model: np.ndarray, size=SIZE
) -> Decisions:
    """A log of μ, as an estimator of `policy` reads it; `model` is r̂ [X, V]."""
    context = rng.choice(len(world.contexts), size, p=world.context_probabilities)
    action = (rng.random(size)[:, None] > np.cumsum(world.logging[context], 1)).sum(1).clip(max=world.n_items - 1)
    reward = (rng.random(size) < world.reward[context, action]).astype(float)
    weight = policy[context, action] / world.logging[context, action]
    expected = (policy * model).sum(1)[context]
    return Decisions(weight, reward, np.arange(size), model[context, action], expected)


def holds(interval: Bounds, value: float) -> bool:
    return interval.low <= value <= interval.high


@pytest.fixture(scope="module")
def logs(world, target):
    """Many logs, with an r̂ that is wrong."""
    rng = np.random.default_rng(0)
    model = np.clip(world.reward + 0.3 * rng.standard_normal(world.reward.shape), 0, 1)
    return [draw(world, target, rng, model=model) for _ in range(LOGS)], model


class Own(SNIPS):
    name, title = "own", "OWN"


class Other(DM):
    name, title = "other", "OTHER"


def test_an_estimator_says_itself_what_it_needs_and_gives(logs, monkeypatch):
    """Its leverage and its interval were read off its name."""
    log = logs[0][0]
    for own in (Own(), Other()):
        monkeypatch.setitem(ESTIMATORS, own.name, own)
    assert np.array_equal(contributions(log, "own").leverage, contributions(log, "snips").leverage)
    assert not np.array_equal(contributions(log, "own").leverage, contributions(log, "ips").leverage)
    found = value_of(log).estimates
    assert found["OWN"] == found["SNIPS"] and found["OTHER"].value == found["DM"].value
    assert found["OTHER"].intervals == {} and math.isnan(found["OTHER"].se), "its error is the reward model's"


def test_an_estimator_that_lacks_something_says_what(logs):
    log = logs[0][0]
    lists = Decisions(log.weight, log.reward, log.sequence, log.value_taken, log.value_expected, place=np.zeros(SIZE))
    negative = log._replace(reward=log.reward - 1)
    for name in ESTIMATORS:
        refused = [by_name(name).refusal(each) is not None for each in (log, log._replace(value_expected=None))]
        assert refused == [False, name in ("dm", "dr", "sndr")]
        assert (by_name(name).refusal(lists) is not None) == (name == "dm")
        assert (by_name(name).refusal(negative) is not None) == (name == "log_smoothing")


def test_estimators_are_found_by_the_name_of_settings_and_of_tables():
    for name, each in ESTIMATORS.items():
        assert by_name(name) is by_name(each.name.upper()) is each
        assert by_name(each.title) is each and by_name(each) is each
    assert set(JUDGING) == {"ips", "snips", "dr", "sndr"} and set(CHOOSING) == {*JUDGING, "log_smoothing"}
    for setting in (lambda name: GateRules(estimator=name), lambda name: value_bounds([], name)):
        setting("snips")
        for wrong in ("snip", "dm", "clipped_ips"):
            with pytest.raises(ConfigError, match=wrong):
                setting(wrong)
    assert GateRules(estimator="SNDR").estimator == "sndr"
    with pytest.raises(ConfigError, match="log smoothing has no interval"):
        GateRules(estimator="log_smoothing")


@pytest.mark.parametrize("estimator", [importance, doubly_robust])
def test_the_estimators_are_unbiased_over_many_logs(world, target, logs, estimator):
    means = np.array([estimator(log).mean() for log in logs[0]])
    error = means.mean() - world.value(target)
    # 4 standard errors of the mean over logs: a true estimator fails once in 16,000.
    assert abs(error) < 4 * means.std() / math.sqrt(LOGS)
    assert means.std() / math.sqrt(LOGS) < 0.01 * world.value(target), "the test must be able to see a bias of 4 %"


def test_self_normalised_is_nearly_unbiased_and_less_noisy_than_plain(world, target, logs):
    plain = np.array([importance(log).mean() for log in logs[0]])
    found = np.array([self_normalised(log).mean() for log in logs[0]])
    assert abs(found.mean() - world.value(target)) < 0.01
    assert found.std() < plain.std()
    log = logs[0][0]
    assert self_normalised(log).mean() == pytest.approx(log.weight @ log.reward / log.weight.sum())


def test_direct_is_as_wrong_as_its_model_and_doubly_robust_is_not(world, target, logs):
    value = world.value(target)
    believed = float(world.context_probabilities @ (target * logs[1]).sum(1))
    direct_mean = np.mean([direct(log).mean() for log in logs[0]])
    assert abs(believed - value) > 0.02, "the model must be wrong for this to say anything"
    assert direct_mean == pytest.approx(believed, abs=0.003)
    assert abs(np.mean([doubly_robust(log).mean() for log in logs[0]]) - value) < 0.01


def test_a_right_model_makes_doubly_robust_less_noisy_than_importance(world, target):
    rng = np.random.default_rng(1)
    logs = [draw(world, target, rng, model=world.reward) for _ in range(200)]
    plain, robust = (np.std([one(log).mean() for log in logs]) for one in (importance, doubly_robust))
    assert robust < 0.95 * plain


def test_self_normalised_doubly_robust_is_exact_on_an_enumerated_log():
    """Every context, action and reward as often as it is expected: mean(w) is 1, and the mean is J for any r̂."""
    mu, pi = np.array([[2, 1, 1], [1, 2, 1]]) / 4, np.array([[0.1, 0.7, 0.2], [0.3, 0.3, 0.4]])
    chance = np.array([[1, 2, 3], [3, 0, 2]]) / 4  # of a reward of 1
    rows = [
        (x, a, r) for x, a, r in itertools.product(range(2), range(3), (0, 1))
        for _ in range(round(16 * mu[x, a] * (chance[x, a] if r else 1 - chance[x, a])))
    ]  # fmt: skip
    x, a, r = np.array(rows).T
    model = np.array([[0.9, 0.1, 0.4], [0.0, 0.8, 0.3]])
    log = Decisions(pi[x, a] / mu[x, a], r.astype(float), np.arange(len(r)), model[x, a], (pi * model).sum(1)[x])
    assert log.weight.mean() == pytest.approx(1.0)
    assert self_normalised_doubly_robust(log).mean() == pytest.approx((pi * chance).sum(1).mean())
    # On any part of it: DM plus the self-normalised mean of what r̂ gets wrong, whatever the scale of the weights.
    part = log.at(np.arange(0, len(r), 3))
    wrong = part.weight @ (part.reward - part.value_taken) / part.weight.sum()
    assert self_normalised_doubly_robust(part).mean() == pytest.approx(part.value_expected.mean() + wrong)
    scaled = self_normalised_doubly_robust(part._replace(weight=7 * part.weight))
    np.testing.assert_allclose(scaled, self_normalised_doubly_robust(part))
    silent = part._replace(value_taken=0 * part.reward, value_expected=0 * part.reward)
    np.testing.assert_allclose(self_normalised_doubly_robust(silent), self_normalised(silent))


def test_clipping_only_takes_away(logs):
    for log in logs[0][:20]:
        assert (ClippedIPS(2.0).values(log) <= importance(log)).all()
        np.testing.assert_allclose(ClippedIPS(1e9).values(log), importance(log))


@pytest.mark.parametrize("estimator", [importance, doubly_robust, self_normalised, self_normalised_doubly_robust])
def test_normal_intervals_cover_at_their_nominal_rate(world, target, logs, estimator):
    value = world.value(target)
    covered = np.mean([holds(normal(estimator(log), log.sequence), value) for log in logs[0]])
    # 95 % ± 4 standard errors of 1.1 %, and a little less for a skewed sum of 500.
    assert 0.90 <= covered <= 0.99


@pytest.mark.parametrize("estimator", ["IPS", "SNIPS", "DR", "SNDR"])
def test_the_interval_that_decides_covers_at_least_at_its_nominal_rate(world, target, logs, estimator):
    value = world.value(target)
    found = [skewed(contributions(log, estimator)) for log in logs[0]]
    assert np.mean([holds(interval, value) for interval in found]) >= 0.93
    plain = [normal(contributions(log, estimator).values, log.sequence) for log in logs[0]]
    widths = [np.mean([high - low for low, high in each]) for each in (found, plain)]
    assert widths[0] < 1.2 * widths[1], "it is no wider than it must be where rewards are common"


def test_intervals_of_rare_rewards_cover_the_difference():
    """1.4 % of 1,000 decisions earn 1: mean ± t se covers about 86 % of the true differences, this one 95 %."""
    rng = np.random.default_rng(5)
    missed, plainly, told = 0, 0, 0
    for _ in range(20):
        mu, worth = (np.exp(scale * rng.standard_normal(30)) for scale in (1.0, 0.8))
        mu /= mu.sum()
        rate = 0.014 * worth / (mu @ worth)
        pi = mu * np.exp(rng.standard_normal(30)) * worth**0.3
        pi /= pi.sum()
        for _ in range(40):
            action = rng.choice(30, 1_000, p=mu)
            log = Decisions((pi / mu)[action], (rng.random(1_000) < rate[action]).astype(float), np.arange(1_000))
            if overlap(log).refusal is None:
                gap, truth = contributions(log, "SNIPS") - logged(log), float((pi - mu) @ rate)
                missed += not holds(skewed(gap), truth)
                plainly += not holds(normal(gap.values, gap.clusters), truth)
                told += 1
    assert told > 500 and missed / told <= 0.06 < plainly / told


def test_the_interval_is_halls_where_the_sum_is_skewed():
    """g(T) = T + a T²/3 + a² T³/27 + a/6 is ±z at its ends, for values whose own spread is the largest."""
    values = np.r_[np.zeros(180), np.full(20, 1.0)]
    found = skewed(contributions(Decisions(np.ones(200), values, np.arange(200)), "IPS"))
    mean, spread = values.mean(), values.std()
    tilt = ((values - mean) ** 3).mean() / spread**3 / math.sqrt(200)
    reach = (mean - found.high) / (spread / math.sqrt(199))
    transformed = reach + tilt * reach**2 / 3 + tilt**2 * reach**3 / 27 + tilt / 6
    assert transformed == pytest.approx(-1.97196, abs=1e-4), "t of 199 degrees of freedom, at 97.5 %"
    assert found.low == pytest.approx(normal(values, np.arange(200)).low), "the lower end is the further one"


def test_normal_intervals_count_sequences_not_decisions(world, target):
    """Decisions that come in equal copies: a plain interval would be three times too narrow."""
    rng = np.random.default_rng(2)
    covered = []
    for _ in range(300):
        log = draw(world, target, rng, model=world.reward, size=150)
        copied = Decisions(np.repeat(log.weight, 9), np.repeat(log.reward, 9), np.repeat(log.sequence, 9))
        covered.append(holds(normal(importance(copied), copied.sequence), world.value(target)))
    assert 0.89 <= np.mean(covered) <= 0.99


def test_empirical_bernstein_holds_for_small_samples(world, target):
    """Its promise is 95 % for any size: of 400 logs of 40 decisions at most 5 % may miss (20, sd 4.4)."""
    rng = np.random.default_rng(3)
    cap = float((target / world.logging).max())
    missed = 0
    for _ in range(400):
        log = draw(world, target, rng, model=world.reward, size=40)
        interval = empirical_bernstein(importance(log), log.sequence, bounds=(0.0, cap))
        assert interval.low >= 0.0 and interval.high <= cap
        missed += not holds(interval, world.value(target))
    assert missed <= 20


def test_empirical_bernstein_narrows_with_the_sample(world, target):
    rng = np.random.default_rng(4)
    cap = float((target / world.logging).max())
    widths = []
    for size in (100, 10_000):
        log = draw(world, target, rng, model=world.reward, size=size)
        low, high = empirical_bernstein(importance(log), log.sequence, bounds=(0.0, cap))
        widths.append(high - low)
    assert widths[1] < 0.2 * widths[0]


def test_self_normalised_does_not_know_the_scale_of_the_weights(logs):
    log = logs[0][0]
    np.testing.assert_allclose(self_normalised(log._replace(weight=7 * log.weight)), self_normalised(log))


def test_empirical_bernstein_is_the_theorem(logs):
    log = logs[0][0]
    values, surprise, count, reach = importance(log), math.log(4 / 0.05), SIZE, 50.0
    width = math.sqrt(2 * values.var(ddof=1) * surprise / count) + 7 * reach * surprise / (3 * (count - 1))
    found = empirical_bernstein(values, log.sequence, bounds=(-20.0, 30.0))
    assert found == pytest.approx((values.mean() - width, values.mean() + width))
    # Copies within a sequence say nothing new.
    copied = empirical_bernstein(np.repeat(values, 9), np.repeat(log.sequence, 9), bounds=(-20.0, 30.0))
    assert copied == pytest.approx(found)


def test_the_effective_sample_follows_its_formula():
    assert effective_sample(np.ones(50)) == pytest.approx(50)
    assert effective_sample(np.array([1.0, 0.0, 0.0])) == pytest.approx(1)
    assert effective_sample(np.array([3.0, 1.0])) == pytest.approx(16 / 10)
    assert effective_sample(np.zeros(3)) == 0.0


def covered(weight: np.ndarray, rules: OverlapRules | None = None, rewarded: int = 500) -> Overlap:
    reward = (np.arange(len(weight)) < rewarded).astype(float)
    return overlap(Decisions(weight, reward, np.arange(len(weight))), rules)


def test_refuses_where_too_few_decisions_earned_anything():
    found = covered(np.ones(5000), rewarded=7)
    assert "only 7 of 5,000 decisions earned" in (found.refusal or "") and found.needed == math.ceil(5000 * 10 / 7)
    nothing = covered(np.ones(267), rewarded=0)  # before: an estimate of 0 ± 0, and so "do not deploy"
    assert "none of 267 decisions earned anything; 10 are needed" in (nothing.refusal or "") and nothing.needed is None
    assert covered(np.ones(5000), rewarded=10).refusal is None and covered(np.ones(5000), rewarded=10).rewarded == 10


def test_an_item_that_the_log_never_shows_may_earn_nothing():
    """π gives 5 % to an item that μ never shows and that earns nothing, and tilts the rest: J falls by 1 %.

    Self-normalised weights forget the 5 %: they say +4 %, significantly, log after log.
    """
    rng = np.random.default_rng(2)
    mu, rate = np.r_[rng.dirichlet(np.ones(9)), 0.0], np.r_[rng.uniform(0.1, 0.6, 9), 0.0]
    tilt = next(c for c in np.linspace(0, 2, 2001) if (mu * np.exp(c * rate)) @ rate / (mu @ np.exp(c * rate)) * 0.95
                > 0.99 * mu @ rate)  # fmt: skip
    pi = 0.95 * mu * np.exp(tilt * rate) / (mu @ np.exp(tilt * rate))
    pi[9] = 0.05
    truth = float((pi - mu) @ rate)
    gaps = []
    for _ in range(40):
        action = rng.choice(10, 4_000, p=mu)
        reward = (rng.random(4_000) < rate[action]).astype(float)
        log = Decisions(pi[action] / mu[action], reward, np.arange(4_000))
        gaps.append(contributions(log, "SNIPS") - logged(log))
    assert truth < 0 < np.mean([gap.mean for gap in gaps])
    assert sum(skewed(gap._replace(unknown=0.0)).low > 0 for gap in gaps) >= 38, "as it was"
    assert sum(holds(skewed(gap), truth) for gap in gaps) >= 38 and not any(skewed(gap).low > 0 for gap in gaps)
    assert value_bounds([log], "snips")[0].low < (0.95 * pi[:9] @ rate[:9]) < gaps[-1].mean + mu @ rate


@pytest.mark.parametrize(("share", "said"), [(0.0, (0.04, 0.08)), (0.02, (0.15, 0.4)), (0.1, (0.93, 1.0))])
def test_how_often_something_is_taken_for_never_shown(world, target, share, said):
    """5 % of logs that show all of π, as is asked for; most of those that never show a tenth of it."""
    rng, mu, pi = np.random.default_rng(4), world.logging.copy(), target.copy()
    if share:
        mu[:, -1], pi[:, -1] = 0, 0
        mu, pi = mu / mu.sum(1, keepdims=True), (1 - share) * pi / pi.sum(1, keepdims=True)
        pi[:, -1] = share
    log = SimpleNamespace(**{**vars(world), "logging": mu, "n_items": world.n_items - bool(share)})
    found = sum(never_shown(draw(log, pi, rng, model=world.reward)) > 0 for _ in range(LOGS))
    assert said[0] <= found / LOGS <= said[1]


def test_what_is_missing_by_chance_alone_widens_nothing():
    """By hand: place by place, what is missing times what lies between the mean and the least reward."""
    weight, reward = np.array([0.5, 0.6] * 50 + [0.5, 0.5] * 50), np.tile([1.0, 2.0], 100)
    single = Decisions(weight, reward, np.arange(200))
    value = (weight @ reward) / weight.sum()
    assert never_shown(single) == pytest.approx((1 - weight.mean()) * (value - 1.0))
    lists = Decisions(weight, reward, np.repeat(np.arange(100), 2), place=np.tile([0, 1], 100))
    assert never_shown(lists) == pytest.approx((1 - 0.55) * (2.0 - 1.0)), "the first places earned the least there is"
    by_chance = single._replace(weight=np.where(np.arange(200) < 80, 0.1, 1.5))
    assert 0.9 < by_chance.weight.mean() < 1 and never_shown(by_chance) == 0.0


def test_refuses_where_overlap_is_too_small():
    heavy = np.ones(5000)
    heavy[0] = 20_000.0
    assert "effective sample 1." in (covered(heavy).refusal or "")
    share = np.full(5000, 0.5)
    share[:30] = 0.5 * 5000 / 30
    assert covered(share, OverlapRules(min_effective=1, max_share=0.01)).refusal is not None
    never = np.full(5000, 0.2)  # the policy shows what the log never did: weights of mean 0.2
    assert "never did" in (covered(never).refusal or "")
    assert "too small" in (covered(np.full(5000, 3.0)).refusal or "")
    assert covered(np.ones(5000)).refusal is None


def test_a_refusal_gives_no_estimate():
    log = Decisions(np.array([1000.0] + [0.001] * 999), np.ones(1000), np.arange(1000))
    found = value_of(log)
    assert found.refusal is not None and found.estimates == {}
    assert found.logged.value == 1.0, "what the log itself earned is known all the same"
    assert found.to_dict()["overlap"]["refusal"] == found.refusal


def test_estimates_without_a_reward_model_lack_the_two_that_need_one():
    rng = np.random.default_rng(5)
    log = Decisions(rng.uniform(0.5, 1.5, 2000), rng.integers(0, 2, 2000).astype(float), np.arange(2000))
    found = value_of(log, largest_reward=1.0)
    assert set(found.estimates) == {"IPS", "SNIPS", "clipped IPS"}
    assert "empirical Bernstein" in found.estimates["clipped IPS"].intervals
    assert "empirical Bernstein" not in found.estimates["IPS"].intervals
    clipping = value_of(log._replace(weight=np.r_[50.0, log.weight[1:]]), largest_reward=1.0)
    assert clipping.estimates["clipped IPS"].intervals["empirical Bernstein"].high == math.inf, "a bound from below"


@pytest.mark.parametrize("places", [1, 2])
def test_no_bound_lies_above_what_any_policy_can_earn(places):
    """Before, rewards of 0 and 1 gave an interval up to 1.07: the range of the weights is wider than that of J."""
    rng = np.random.default_rng(5)
    for count, rate in ((400, 0.9), (100_000, 0.1)):
        weight, reward = rng.uniform(0.5, 1.5, count), (rng.random(count) < rate).astype(float)
        place = None if places == 1 else np.tile([0, 1], count // 2)
        found = value_of(Decisions(weight, reward, np.arange(count), place=place), largest_reward=1.0)
        low, high = found.estimates["clipped IPS"].intervals["empirical Bernstein"]
        assert low < found.estimates["clipped IPS"].value < high
        assert (high == places) == (rate == 0.9) and high <= places


def test_the_direct_method_has_no_interval(logs):
    found = value_of(logs[0][0]).estimates["DM"]
    assert found.intervals == {} and math.isnan(found.se), "its error is the model's, of which its spread says nothing"


def test_decisions_come_from_logged_or_estimated_propensities():
    from measured import scores

    made = scores(logp=np.log([0.5, 0.2, 0.1]), reward=[1.0, 0.0, 1.0], propensity=[0.25, np.nan, 0.2])
    log = decisions(made)
    assert log is not None
    np.testing.assert_allclose(log.weight, [2.0, 0.5])
    assert log.sequence.tolist() == [0, 2]
    assert decisions(scores(logp=[0.0])) is None
    made.logp_reference["mle"] = np.log([0.5, 0.4, 0.4])
    estimated = decisions(made, propensities="mle")
    assert estimated is not None
    np.testing.assert_allclose(estimated.weight, [1.0, 0.5, 0.25])
    valued = {name: value_of_scores(made, propensities=name) for name in (None, "mle")}
    assert [found.propensities for found in valued.values() if found is not None] == ["logged", "mle"]
    with pytest.raises(DataError, match="did you mean 'mle'"):
        decisions(made, propensities="mlee")


# ---------------------------------------------------------------------- logarithmic smoothing


def test_the_smoothed_bound_fails_no_more_often_than_it_says():
    """Its theorem, exactly: every sample of three decisions of a small world, with its probability under μ."""
    mu, pi, reward = np.array([0.7, 0.2, 0.1]), np.array([0.1, 0.3, 0.6]), np.array([0.1, 0.4, 1.0])
    value, delta, fails, n = float(pi @ reward), 0.3, 0.0, 3
    for actions in itertools.product(range(3), repeat=n):
        chosen = list(actions)
        log = Decisions((pi / mu)[chosen], reward[chosen], np.arange(n))
        low = smoothed_lower_bound(log, confidence=1 - delta, strengths=(1.0,))
        by_hand = math.exp(np.log1p(log.weight * log.reward).mean() - math.log(1 / delta) / n) - 1
        assert low == pytest.approx(max(0.0, by_hand))
        fails += mu[chosen].prod() * (low > value)
    assert 0 < fails <= delta, "it fails somewhere, or nothing is tested"


def test_the_smoothed_bound_of_the_best_strength_pays_for_the_choice():
    log = Decisions(np.full(40, 1.0), np.full(40, 0.5), np.arange(40))
    one, three = (smoothed_lower_bound(log, strengths=(1.0,) * k) for k in (1, 3))
    assert three < one < 0.5
    assert three == pytest.approx(math.expm1(math.log1p(0.5) - math.log(3 / 0.05) / 40))
    with pytest.raises(DataError, match="rewards >= 0"):
        smoothed_lower_bound(log._replace(reward=-log.reward))
