"""Views and purchases without propensities: two figures must agree, or the gate cannot tell."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from localpolicy.judge.gate_answers import answers, answers_check, baselines_by_answers
from localpolicy.judge.gate_checks import Check
from localpolicy.judge.gate_rules import GateRules

RULES = GateRules()
RISES, FALLS = (Check("gain", "yes", "up", 0.1, 0.05, 0.15), Check("gain", "no", "down", -0.1, -0.15, -0.05))


def policy(name: str, logp: np.ndarray, reward: np.ndarray, ndcg: float = 0.5):
    """Each position is a sequence of its own."""
    sequence = np.arange(len(reward))
    scores = SimpleNamespace(logp=logp, reward=reward, sequence=sequence)
    return SimpleNamespace(name=name, scores=scores, values=lambda metric: (np.full(len(reward), ndcg), sequence))


def log(n: int = 400):
    """Every fourth answer is a purchase; one policy gives purchases twice their share, one half of it."""
    reward = np.where(np.arange(n) % 4 == 0, 1.0, 0.2)
    mu = np.full(n, np.log(0.1))
    dear = reward == 1
    return reward, mu, mu + np.log(np.where(dear, 2, 2 / 3)), mu + np.log(np.where(dear, 1 / 2, 7 / 6))


def test_the_reward_per_answer_by_hand():
    reward, mu, dearer, _ = log()
    values = answers(policy("π", dearer, reward), mu, RULES).values
    np.testing.assert_allclose(values.mean(), (2 * 1 * 1.0 + 2 / 3 * 3 * 0.2) / (2 * 1 + 2 / 3 * 3))
    sharper = answers(policy("π", mu + np.log(1.5), reward), mu, RULES)
    assert "the mean of π/μ̂ is 1.50" in sharper.refusal, "a better imitation is no better policy"
    np.testing.assert_allclose(answers(policy("μ̂", mu, reward), mu, RULES).values, reward)
    far = np.where(np.arange(400) == 0, 0.0, -20.0)
    assert "effective sample" in answers(policy("far", far, reward), mu, RULES).refusal


def test_both_figures_must_not_contradict_each_other():
    reward, mu, dearer, cheaper = log()
    old, new, worse = (policy(name, logp, reward) for name, logp in (("old", mu), ("new", dearer), ("worse", cheaper)))
    assert answers_check(new, old, mu, RISES, RULES).outcome == "yes"
    assert answers_check(worse, old, mu, FALLS, RULES).outcome == "no"
    for one, gain in ((new, FALLS), (worse, RISES)):
        torn = answers_check(one, old, mu, gain, RULES)
        assert torn.outcome == "cannot tell" and "does not say what was shown" in torn.reason
    assert answers_check(old, old, mu, RISES, RULES).outcome != "yes", "higher ranks alone are no verdict"
    assert answers_check(new, old, None, RISES, RULES).outcome == "cannot tell"
    few, mu_few, dearer_few, _ = log(20)
    short = answers_check(policy("new", dearer_few, few), policy("old", mu_few, few), mu_few, RISES, RULES)
    assert short.outcome == "cannot tell" and "too few" in short.reason


def test_a_baseline_blocks_by_both_figures_alone():
    reward, mu, dearer, _ = log()
    old, new = policy("old", mu, reward), policy("new", mu, reward)
    better, torn = policy("better", dearer, reward, 0.6), policy("torn", dearer, reward, 0.1)
    found = baselines_by_answers(new, old, [better], mu, "reward-weighted.nDCG@20", RULES)
    assert found.outcome == "no" and found.instead == "better"
    assert baselines_by_answers(new, old, [torn], mu, "reward-weighted.nDCG@20", RULES).outcome == "yes"
    far = policy("far", np.where(np.arange(400) == 0, 0.0, -20.0), reward, 0.9)
    alone = baselines_by_answers(new, old, [far], mu, "reward-weighted.nDCG@20", RULES)
    assert alone.outcome == "not asked" and "far" in alone.reason
