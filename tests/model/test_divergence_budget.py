"""The budget: the β found by bisection meets it, and no smaller β does."""

from __future__ import annotations

import pytest
from small_logs import write_small

from localpolicy.data.batches import Windows
from localpolicy.errors import ConfigError
from localpolicy.model.divergence_budget import beta_within
from localpolicy.runs.config import Config
from localpolicy.training.train import train


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("budget")
    data = write_small(folder / "data", sequences=300)
    settings = {"model": {"width": 8}, "train": {"epochs": 6, "batch_size": 16, "learning_rate": 0.01}}
    runs = {
        name: train(data, out=folder / name, config=Config.parse({**settings, "objective": objective}))
        for name, objective in {
            "sqn": {"name": "sqn"},
            "lpi_cb": {"name": "lpi_cb", "calibrate_critic": False, "beta": 0.05},  # given: the policy leaves μ̂
            "reward_weighted": {"name": "reward_weighted"},
        }.items()
    }
    return {name: run.policy() for name, run in runs.items()}, Windows(data, "validation", runs["sqn"].config.data)


@pytest.mark.parametrize("name", ["sqn", "lpi_cb"])
@pytest.mark.parametrize("budget", [0.003, 0.05, 0.4])
def test_the_budget_is_met_and_used_up(trained, name, budget):
    policies, windows = trained
    kl = beta_within(policies[name], windows, max_kl=budget)
    assert kl.kl <= budget
    assert kl.kl == pytest.approx(budget, rel=1e-3)
    js = beta_within(policies[name], windows, max_js=budget / 4)
    assert js.js == pytest.approx(budget / 4, rel=1e-3)


def test_a_larger_budget_allows_a_smaller_beta(trained):
    policies, windows = trained
    betas = [beta_within(policies["sqn"], windows, max_kl=budget).beta for budget in (0.001, 0.01, 0.1, 1.0)]
    assert betas == sorted(betas, reverse=True)
    assert betas[0] > 2 * betas[-1]


def test_a_budget_that_nothing_exceeds_gives_the_smallest_beta(trained):
    policies, windows = trained
    assert beta_within(policies["sqn"], windows, max_js=0.7).beta == pytest.approx(1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one"),
        ({"max_kl": 1.0, "max_js": 0.1}, "exactly one"),
        ({"max_kl": 0.0}, "must be > 0"),
        ({"max_js": 0.01, "floor": 0.05}, "below the noise floor.*0.05"),
    ],
)
def test_meaningless_budgets_are_refused(trained, options, message):
    policies, windows = trained
    with pytest.raises(ConfigError, match=message):
        beta_within(policies["sqn"], windows, **options)


def test_a_policy_without_a_critic_has_no_dial(trained):
    policies, windows = trained
    with pytest.raises(ConfigError, match="has no critic"):
        beta_within(policies["reward_weighted"], windows, max_kl=1.0)
