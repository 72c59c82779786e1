"""Checks that keep a gain from being believed: hidden causes, wrong propensities, and figures that disagree."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from measured import scores

from localpolicy.judge.checks.answers import FALLS, direction_check, hidden_cause_check
from localpolicy.judge.checks.propensities import LEAST_EXCESS, WRONG, propensity_check, weights_of
from localpolicy.judge.claims import check
from localpolicy.judge.kinds import KINDS
from localpolicy.judge.rules import GateRules
from localpolicy.judge.verdict import Gate, next_step
from localpolicy.measure.answers import Answers, Choices
from localpolicy.measure.sensitivity import Sensitivity

RULES = GateRules()


@pytest.mark.parametrize(("power", "wrong"), [(1.0, False), (0.7, True), (1.3, True)])
def test_propensities_of_another_temperature_are_found(power, wrong):
    """Before: the candidate's mean weight alone was asked to be within a tenth of 1; 64 of 240 such logs passed."""
    found = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        mu = np.exp(rng.standard_normal((20, 30)))
        mu /= mu.sum(1, keepdims=True)
        logged = mu**power / (mu**power).sum(1, keepdims=True)
        context = rng.integers(20, size=1500)
        item = (mu[context].cumsum(1) > rng.random((1500, 1))).argmax(1)
        near = mu * np.exp(0.3 * rng.standard_normal(mu.shape))
        near /= near.sum(1, keepdims=True)
        weights = {name: (law / logged)[context, item] for name, law in (("new", near), ("mle", mu))}
        found += propensity_check(weights, np.arange(1500)).outcome == "cannot tell"
    assert found >= 9 if wrong else found <= 1


def test_a_mean_weight_is_wrong_if_it_is_significantly_above_one_and_by_enough():
    steady = np.full(400, 1 + LEAST_EXCESS * 1.01) + 1e-6 * np.cos(np.arange(400))
    assert propensity_check({"mle": steady}, np.arange(400)).plain == WRONG
    assert propensity_check({"mle": steady - 0.02 * LEAST_EXCESS}, np.arange(400)).outcome == "yes"
    assert propensity_check({"mle": 2 - steady}, np.arange(400)).outcome == "yes", "below 1 there is another cause"
    noisy = 1.1 + np.where(np.arange(400) % 2, 2.0, -2.0)
    assert propensity_check({"mle": noisy}, np.arange(400)).outcome == "yes", "1.1 ± 0.1"


def test_weights_are_those_among_the_open_items_where_the_log_has_lists():
    columns = {"rank": np.ones(2), "logp": np.log([0.2, 0.1]), "propensity": np.array([0.4, 0.1])}
    plain = replace(scores(**columns), logp_reference={"mle": np.log([0.4, 0.2])})
    found = weights_of("new", plain)
    np.testing.assert_allclose([found["new"], found["mle"]], [[0.5, 1], [1, 2]])
    lists = replace(plain, logp_open=np.log([0.8, 0.1]), logp_open_reference={"mle": np.log([0.2, 0.1])})
    found = weights_of("new", lists)
    np.testing.assert_allclose([found["new"], found["mle"]], [[2, 1], [0.5, 1]])


def answers(values, refusal=""):
    """Answers whose mean is the reward per answer."""
    values = np.asarray(values, float)
    zero = np.zeros(len(values))
    return Answers(Choices("x", zero, {}, zero, zero, np.arange(len(values)), False), values, refusal)


def test_no_figure_recommends_a_policy_whose_answers_would_earn_less():
    old = np.linspace(1, 2, 50)
    lower = direction_check(answers(old - 0.1 + 0.01 * np.cos(np.arange(50))), answers(old), RULES)
    assert lower.outcome == "cannot tell" and lower.plain == FALLS and lower.high < 0
    assert direction_check(answers(old + np.cos(np.arange(50))), answers(old), RULES).outcome == "yes"
    refused = direction_check(answers(old, "too little"), answers(old), RULES)
    assert refused.outcome == "not judged" and "too little" in refused.because
    for kind in ("liking", "metric"):
        gate = Gate([check("gain", "yes", ""), lower], SimpleNamespace(name="new"), None, RULES, kind=kind)
        assert gate.answer == "cannot tell" and gate.deciding.figure == "direction"


@pytest.mark.parametrize("strength", [1.0, 1.31, math.inf])
def test_how_strong_a_hidden_cause_must_be_decides_nothing(strength):
    claim = hidden_cause_check(Sensitivity(strength, 2.1, "the last item"), 300)
    assert claim.outcome == "not asked" and claim.value == strength and "2.10" in claim.because
    gate = Gate(
        [check("gain", "yes", "", plain="better"), claim], SimpleNamespace(name="new"), None, RULES, kind="rewards"
    )
    assert gate.answer == KINDS["rewards"].strongest == "test online"
    assert (claim.plain in gate.ground_text) == (strength > 1) or not claim.plain
    assert ("1.31" in gate.ground_text) == (strength == 1.31)


def test_a_simple_baseline_is_served_only_if_the_log_was_randomised():
    lost = check("baselines", "no", "", instead="popularity", plain="popularity does better")
    for kind in KINDS:
        gate = Gate([check("gain", "yes", ""), lost], SimpleNamespace(name="new"), None, RULES, kind=kind)
        if gate.answer == "do not deploy":
            assert next_step(gate).startswith("Serve" if KINDS[kind].ground == "randomised" else "Test online")
