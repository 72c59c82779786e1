"""Every threshold of a check, from both sides: a constant that changes, or a comparison that turns, fails a test."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from gate_examples import made
from measured import scores

from localpolicy.errors import ConfigError
from localpolicy.judge.checks import order
from localpolicy.judge.checks.answers import answers_checks, hidden_cause_check
from localpolicy.judge.checks.distance import divergence_checks, reference_fit_check
from localpolicy.judge.checks.gains import gain_check, gain_claim, would_tell
from localpolicy.judge.checks.losses import coverage_check, no_loss, segment_check
from localpolicy.judge.checks.propensities import propensity_check
from localpolicy.judge.checks.returns import APART, by_return
from localpolicy.judge.checks.value import value_check
from localpolicy.judge.claims import check
from localpolicy.judge.rules import GateRules
from localpolicy.measure.answers import NO_ESTIMATE, TOO_POOR, Answers, Choices, answers
from localpolicy.measure.decisions import OverlapRules, decisions
from localpolicy.measure.divergence import Divergence, Reference, Spread
from localpolicy.measure.estimate import Estimate, more_needed, t_quantile
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.sensitivity import STRONGEST, Sensitivity
from localpolicy.measure.significance import Paired
from localpolicy.measure.value import value_of

RULES = GateRules()


def test_the_built_in_rules_are_those_of_the_documentation():
    assert (RULES.min_gain, RULES.smallest_gain, RULES.confidence, RULES.min_sequences) == (0.0, 0.01, 0.95, 32)
    assert (RULES.max_event_loss, RULES.max_segment_loss, RULES.min_segment) == (0.0, 0.0, 100)
    assert (RULES.min_coverage_ratio, RULES.value_margin) == (0.5, 0.05)
    assert RULES.max_js is RULES.max_floor_ratio is RULES.metric is RULES.min_effective_share is None
    assert RULES.baselines and RULES.reference_fit
    assert GateRules(min_effective_share=0.0).refusals.min_effective_share == 0.0, "0 is a setting, not none"


@pytest.mark.parametrize(("low", "high", "outcome"), [
    (0.001, 0.03, "yes"), (0.0, 0.03, "cannot tell"),  # above min_gain, not at it
    (0.001, 0.0189, "cannot tell"),  # a gain of 0.00995 is below a hundredth of 1
    (0.001, 0.0191, "yes"),
    (-0.02, 0.0099, "no"), (-0.02, 0.0101, "cannot tell"),  # all of the interval is below a hundredth, or not
    (-0.02, -0.0001, "no"), (-0.02, 0.0, "no"),
])  # fmt: skip
def test_a_gain_must_be_significant_and_worth_having(low, high, outcome):
    words = {"yes": "higher", "no": "no higher", "lower": "lower", "cannot tell": "unsure"}
    test = Paired((low + high) / 2, (high - low) / 4, low, high, 0.5, 0.5, 400, 0.5)
    claim = gain_claim("gain", test, 1.0, "", words, RULES)
    assert claim.outcome == outcome and (claim.least is None) == (outcome != "no")
    assert (claim.plain == "lower") == (outcome == "no" and high < 0)


def test_accepted_losses_accept_any_gain_above_them():
    """`min_gain` = -0.05 of a figure of 1."""
    words = dict.fromkeys(("yes", "no", "lower", "cannot tell"), "")
    rules = GateRules(min_gain=-0.05)
    for low, outcome in ((-0.049, "yes"), (-0.051, "cannot tell")):
        test = Paired(0.0, 0.02, low, 0.02, 0.5, 0.5, 400, 0.5)
        assert gain_claim("gain", test, 1.0, "", words, rules).outcome == outcome
    at = Paired(0.005, 0.001, 0.003, 0.007, 0.5, 0.5, 400, 0.5)
    assert gain_claim("gain", at, 1.0, "", words, rules).outcome == "yes", "however small"
    assert gain_claim("gain", at, 1.0, "", words, GateRules()).outcome == "no", "0.007 is below a hundredth"


def test_a_sample_size_is_named_only_if_it_is_larger_than_the_one_there():
    test = Paired(0.1, 0.06, -0.02, 0.22, 0.1, 0.1, 400, 0.1)
    for gain in (0.05, 0.1, 0.2):
        asked = more_needed(test, gain, confidence=0.95)
        needed, text = would_tell(test, gain, RULES)
        assert asked is not None and needed == (asked if asked > 400 else None) and bool(text) == (asked > 400)
    few = next(gain for gain in np.linspace(0.1, 0.3, 2001) if more_needed(test, gain, confidence=0.95) <= 400)
    assert would_tell(test, few, RULES) == (None, "") and would_tell(test, few - 2e-3, RULES)[0] is not None


def test_fewer_sequences_than_asked_for_give_no_verdict():
    ranks = np.where(np.arange(40) % 2, 1.0, 2.0)
    for count, outcome in ((31, "cannot tell"), (32, "yes")):
        new, old = made("new", ranks[:count]), made("old", ranks[:count] + 5)
        assert gain_check(new, old, "all.nDCG@20", RULES).outcome == outcome


def test_the_reason_of_a_gain_ends_with_the_note_on_its_pair():
    ranks = np.where(np.arange(40) % 2, 1.0, 2.0)
    new, old = made("new", ranks), made("old", ranks + 5)
    plain = gain_check(new, old, "all.nDCG@20", RULES).because
    noted = gain_check(new, old, "all.nDCG@20", RULES, note="other epochs").because
    assert noted == plain.replace("must be above 0.", "must be above 0. Note: other epochs.") != plain


@pytest.mark.parametrize(("allowed", "outcome"), [(0.02, "yes"), (0.0, "no")])
def test_a_loss_counts_from_what_is_allowed(allowed, outcome):
    """0.01 is lost everywhere, significantly."""
    old = 0.5 + 0.1 * np.cos(np.arange(200))
    new = old - 0.01 + 1e-4 * np.sin(np.arange(200))
    claim = no_loss("segments", {"all": (new, old, np.arange(200))}, allowed, RULES, nothing="")
    assert claim.outcome == outcome and claim.value == pytest.approx(-0.01, abs=1e-4)
    assert claim.low < claim.value < claim.high < 0, "of the loss, not of what is above the allowed"


def test_a_segment_is_judged_from_100_positions_on():
    for count, outcome in ((99, "not asked"), (100, "no")):
        new, old = (
            made(name, np.full(count, rank) + np.arange(count) % 3) for name, rank in (("new", 9.0), ("old", 1.0))
        )
        assert segment_check(new, old, "all.nDCG@20", RULES).outcome == outcome


@pytest.mark.parametrize(("mine", "old", "outcome"), [
    (0.25, 0.5, "yes"), (0.2499, 0.5, "no"), (0.0, 0.0, "yes"), (0.5, 0.5, "yes"),
])  # fmt: skip
def test_lists_reach_at_least_half_of_what_the_deployed_ones_reach(mine, old, outcome):
    new, deployed = (
        replace(made(name, np.ones(2)), figures={"coverage@20": reached})
        for name, reached in (("new", mine), ("old", old))
    )
    assert coverage_check(new, deployed, RULES).outcome == outcome


def moved(js: float, floor: float | None = 0.01) -> Divergence:
    """A divergence of this JS ± 0.01 from one reference."""
    spread = Spread(Estimate(js, 0.01, 400, 0.01), {}, {})
    noise = None if floor is None else Spread(Estimate(floor, 0.0, 400, 0.0), {}, {})
    return Divergence([Reference("mle", "mle")], spread, spread, noise, None)


def test_the_budget_of_divergence_is_kept_by_the_whole_interval():
    reach = 1.96 * 0.01
    for js, outcome in ((0.1 - reach - 1e-4, "yes"), (0.1 - reach + 1e-4, "cannot tell"),
                        (0.1 + reach - 1e-4, "cannot tell"), (0.1 + reach + 1e-4, "no")):  # fmt: skip
        (claim,) = divergence_checks(moved(js), GateRules(max_js=0.1))
        assert claim.outcome == outcome, js
    assert divergence_checks(moved(0.3), RULES)[0].outcome == "not asked"
    for budget, refused in ((0.0099, True), (0.01, False)):
        if refused:
            with pytest.raises(ConfigError, match="below the noise floor"):
                divergence_checks(moved(0.3), GateRules(max_js=budget))
        else:
            assert divergence_checks(moved(0.3), GateRules(max_js=budget))[0].outcome == "no"


def test_the_multiple_of_the_noise_floor_is_kept_and_needs_a_floor():
    for js, outcome in ((0.0299, "yes"), (0.0301, "no")):
        assert divergence_checks(moved(js), GateRules(max_floor_ratio=3))[1].outcome == outcome
    (first, second) = divergence_checks(moved(0.03, None), GateRules(max_floor_ratio=3))
    assert (first.outcome, second.outcome) == ("not asked", "cannot tell")
    for rules, outcome in ((RULES, "not asked"), (GateRules(max_js=1), "cannot tell")):
        (unknown,) = divergence_checks(None, rules)
        assert unknown.outcome == outcome


@pytest.mark.parametrize("policies", [1, 3])
def test_propensities_are_refuted_at_one_percent_shared_by_all_policies(policies):
    """A mean of 1 + t · se, with t on both sides of Student's quantile at 1 - 0.01 / K."""
    count, spread = 400, 0.5
    wave = spread * np.where(np.arange(count) % 2, 1.0, -1.0)
    se, least = spread / math.sqrt(count - 1), t_quantile(1 - 0.01 / policies, count - 1)
    assert least * se > 0.01
    for times, outcome in ((0.99, "yes"), (1.01, "cannot tell")):
        weights = {"new": 1 + times * least * se + wave} | {str(n): np.ones(count) for n in range(policies - 1)}
        assert propensity_check(weights, np.arange(count)).outcome == outcome
    assert propensity_check({"new": np.full(2, 9.0)}, np.zeros(2)).outcome == "yes", "one person says nothing"


def test_times_order_a_log_unless_most_of_its_steps_are_ties(monkeypatch):
    monkeypatch.setattr(order, "sorted_by", lambda data: None)
    for kind, tied, doubted in (("rewards", 0.5, False), ("rewards", 0.501, True), ("value", 0.9, False)):
        monkeypatch.setattr(order, "tied_share", lambda data, tied=tied: tied)
        monkeypatch.setattr(order, "question_of", lambda data, kind=kind: SimpleNamespace(kind=kind))
        assert (order.order_check(None) is not None) == doubted


def test_a_reference_may_be_a_twentieth_of_a_nat_below_popularity_or_the_propensities():
    rng = np.random.default_rng(0)
    popular = np.log(rng.uniform(0.1, 0.2, 500))
    for mean, outcome in ((0.0499, "yes"), (0.0501, "cannot tell")):
        below = mean + 1e-6 * np.cos(np.arange(500))
        new = made("new", np.ones(500))
        named = replace(new, scores=replace(new.scores, logp_reference={"mle": popular - below}))
        assert reference_fit_check(named, popular, 20, RULES).outcome == outcome
        true = np.full(500, 0.05)
        reached = replace(new.scores, logp_reference={"mle": np.log(true) - below}, propensity=true)
        found = reference_fit_check(replace(new, scores=reached), popular, 20, RULES)
        assert found.outcome == outcome, "it is below popularity, and as good as the propensities, or not"


def choices(weight: np.ndarray, reward: np.ndarray, ranks: np.ndarray | float = 0.5) -> Choices:
    """Answers of persons of their own; μ̂ gives each 0.1."""
    ranks = np.broadcast_to(ranks, len(weight)).astype(float)
    return Choices("π", np.log(weight * 0.1), {}, reward, ranks, np.arange(len(weight)), False)


def refusal(weight: np.ndarray, **rules: float) -> str:
    reward = np.tile([0.0, 1.0], len(weight) // 2)
    return answers(choices(weight, reward), np.full(len(weight), math.log(0.1)), OverlapRules(**rules)).refusal


def test_a_reward_per_answer_needs_a_tenth_of_the_sample_and_weights_of_mean_one():
    for share, refused in ((99, True), (100, False)):
        weight = np.where(np.arange(1000) < share, 9.0, 1e-9)
        assert ("effective sample" in refusal(weight, max_bias=99)) == refused
    for mean, refused in ((0.899, True), (0.901, False), (1.099, False), (1.101, True)):
        assert refusal(np.full(400, mean)).startswith(TOO_POOR) == refused
    for errors, refused in ((3.9, False), (4.1, True)):
        wave = 0.3 / errors * math.sqrt(99) * np.where(np.arange(100) % 2, 1.0, -1.0)
        assert refusal(1.3 + wave, min_effective_share=0).startswith(TOO_POOR) == refused
    assert answers(choices(np.ones(4), np.arange(4.0)), None, OverlapRules()).refusal == NO_ESTIMATE
    capped = answers(choices(np.array([30.0, 31.0] * 50), np.tile([0.0, 1.0], 50)), np.full(100, math.log(0.1)),
                     OverlapRules(max_bias=99))  # fmt: skip
    assert capped.weight == pytest.approx(30.0) and capped.weight.max() <= 30


def judged(values: np.ndarray, ranks: np.ndarray) -> Answers:
    zero = np.zeros(len(values))
    return Answers(Choices("π", zero, {}, values, ranks, np.arange(len(values)), False), values)


@pytest.mark.parametrize(("more", "ranked", "outcomes"), [
    (0.1, 0.05, ["yes", "yes"]),  # + 10 % and + 10 %
    (0.1, -0.049, ["yes", "cannot tell"]), (0.1, -0.045, ["yes", "yes"]),  # + 10 % - 9.8 %, + 10 % - 9 %
    (0.1, -0.06, ["yes", "cannot tell"]), (-0.1, -0.05, ["no", "no"]),
    (-0.1, 0.049, ["cannot tell", "cannot tell"]), (-0.1, 0.06, ["cannot tell", "yes"]),  # - 0.2 %, + 2 %
])  # fmt: skip
def test_reward_and_number_of_answers_are_judged_together(more, ranked, outcomes):
    """Old: a reward per answer of 1, ranks of 0.5; both sums are known to ± 0.3 %, so that ± 0.2 % says nothing."""
    noise = 0.03 * np.sin(np.arange(400))
    old = judged(np.ones(400) + 0.3 * np.cos(np.arange(400)), np.full(400, 0.5))
    old = judged(old.values / old.mean, old.choices.ranks)
    new = judged(old.values + more + noise - noise.mean(), old.choices.ranks + ranked)
    found = answers_checks(new, old, check("gain", "yes", ""), RULES)
    assert [each.outcome for each in found] == outcomes


def test_a_value_may_be_a_twentieth_lower_where_it_does_not_decide():
    """Old: 1 per decision; new: 1 - loss, known to ± 0.0001."""
    for loss, outcome in ((0.0495, "yes"), (0.0505, "no"), (0.05, "cannot tell")):
        kept = 0.001 * np.where(np.arange(400) % 2, 1.0, -1.0)
        given = {"rank": np.ones(400), "propensity": np.ones(400), "reward": np.ones(400)}
        model = {"value_taken": np.ones(400), "value_expected": 1 - loss + kept}
        columns = scores(**given, **model)
        log = decisions(columns)
        easy = OverlapRules(min_rewarded=0)
        new = Evaluation("new", {}, None, columns, np.ones(3), {}, off_policy=value_of(log, rules=easy))
        rules = GateRules(estimator="dr", overlap=easy)
        assert value_check(new, None, rules, decides=False).outcome == outcome


def test_a_hidden_cause_is_named_from_a_gain_on():
    for strength, named in ((1.0, ""), (1.001, "factor of 1.00"), (math.inf, f"factor below {STRONGEST:g}")):
        claim = hidden_cause_check(Sensitivity(strength, None, None), 300)
        assert claim.outcome == "not asked" and named in claim.plain and bool(claim.plain) == bool(named)


@pytest.mark.parametrize(
    ("within", "outcome"), [(0.001, "yes"), (0.0, "cannot tell"), (-0.1, "cannot tell"), (None, "cannot tell")]
)
def test_a_deviation_counts_only_if_its_own_items_earn_more(within, outcome):
    gap = SimpleNamespace(mean=0.5, n=400, unknown=0.0)
    gain = SimpleNamespace(gain=gap, unit="visits", steps=3, asked="deviation", refusal=None, n=400, within=within,
                           overlap=SimpleNamespace(effective=300.0))  # fmt: skip
    found = SimpleNamespace(gain=gain, later=SimpleNamespace(t=5.0), own=1.0, base=1.0, decides=True)
    value = check("value", "yes", "", 0.1)
    with pytest.MonkeyPatch.context() as patch:
        sure = Paired(0.5, 0.01, 0.48, 0.52, math.nan, math.nan, 400, math.nan)
        patch.setattr("localpolicy.judge.checks.returns.value_tests", lambda gaps, confidence: {"": sure})
        decides, information = by_return(value, found, RULES)
    assert decides.outcome == outcome and (decides.plain == APART) == (outcome != "yes")
    assert information.outcome == "not asked"
    found.decides = False
    assert by_return(value, None, RULES) == by_return(value, found, RULES) == [value]
