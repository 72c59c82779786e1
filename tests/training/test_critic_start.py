"""A critic starts as the items' mean returns, is kept there where training harms, and knows no unit of reward."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_logs import REWARDS, write_small

from localpolicy.data.batches import Windows
from localpolicy.measure.estimate import credible_means
from localpolicy.runs.config import Config
from localpolicy.training.critic_quality import read_decisions
from localpolicy.training.train import train

HISTORIES, ANSWERS = [[100, 101, 105], [], [111]], [["click", "none", "purchase"], [], ["none"]]


def trained(data, out, *, name="lpi_rl", rate=0.3, tied=True, beta=0.3, decay=0.0):
    settings = {
        "data": {"length": 6},
        "model": {"width": 8, "tied": tied},
        "objective": {"name": name, "beta": beta, "calibrate_critic": False, "critic_rate": rate},
        "train": {"epochs": 2, "batch_size": 16, "learning_rate": 0.01, "average": 0.0, "weight_decay": decay},
    }
    return train(data, out=out, config=Config.parse(settings))


@pytest.mark.parametrize(("name", "critic", "gamma"), [("lpi_rl", "q", 0.5), ("lpi_cb", "reward", 0.0)])
@pytest.mark.parametrize("tied", [True, False])
def test_where_training_harms_the_items_means_are_kept(name, critic, gamma, tied, small, tmp_path):
    run = trained(small, tmp_path / "run", name=name, rate=100.0, tied=tied)
    assert run.manifest["stages"]["critic-1"]["selected"]["epoch"] == 0
    log = read_decisions(Windows(small, "train", run.config.data), gamma=gamma)
    means = credible_means(log.item, log.returns, n_items=small.n_items)
    assert np.ptp(means) > 0.005, "a log without good items would prove nothing"
    policy = run.policy()
    network = policy.network
    hidden = network.hidden_without_dropout(batch := policy.batch(HISTORIES, ANSWERS))[batch.scored]
    found = network.head(critic).logits(hidden).chunk(0, small.n_items).detach().numpy()
    np.testing.assert_allclose(found, np.tile(means, (3, 1)), atol=1e-5)


def test_training_improves_on_the_start_if_it_helps(small, tmp_path):
    run = trained(small, tmp_path / "run")
    errors = {
        (line["stage"], line["step"]): line["validation"]["return_error"]
        for line in run.metrics()
        if line["stage"] == "critic-1"
    }
    assert len(errors) == 3 and min(errors, key=errors.__getitem__) != min(errors), errors
    q = run.policy().network.towers[1].heads["q"]
    assert torch.count_nonzero(q.projection) > 0


def test_rewards_in_another_unit_give_the_same_critic_in_that_unit(small, tmp_path):
    """β aside, which is in units of reward: the policies are the same."""
    cents = write_small(tmp_path / "cents", rewards={name: 100 * reward for name, reward in REWARDS.items()})
    values, tilts = [], []
    for data, beta in ((small, 0.3), (cents, 30.0)):
        policy = trained(data, tmp_path / f"run-{beta:g}", beta=beta, decay=0.3).policy()
        batch = policy.batch(HISTORIES, ANSWERS)
        hidden = policy.network.hidden_without_dropout(batch)[batch.scored]
        values.append(policy.network.head("q").logits(hidden).chunk(0, small.n_items).detach() / (beta / 0.3))
        tilts.append(policy.log_probabilities(HISTORIES, ANSWERS))
    assert values[0].std(1).min() > 1e-3
    torch.testing.assert_close(values[1], values[0], rtol=0, atol=1e-4)
    torch.testing.assert_close(tilts[1], tilts[0], rtol=0, atol=1e-3)


def test_on_an_interaction_log_a_critic_starts_at_zero(tmp_path):
    data = write_small(tmp_path / "interactions", propensity=False)
    run = trained(data, tmp_path / "run", rate=1e-9)
    assert all(line["epoch"] > 0 for line in run.metrics() if line["stage"] == "critic-1")
    policy = run.policy()
    assert policy.network.head(policy.network.critic).detach().bias.abs().max() < 1e-6
