"""What `lpi_observed` takes from the log: the smallest reward and the form, and a run that keeps them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from shop_logs import write_shop

from localpolicy.data.batches import Windows
from localpolicy.data.store import CONTEXT, Prepared
from localpolicy.data.store_writer import writing
from localpolicy.errors import ConfigError
from localpolicy.model.weights import load_weights
from localpolicy.objectives import LPIObserved
from localpolicy.serving.export import export
from localpolicy.training import setup
from localpolicy.training.setup import resolved_by, rewards_of
from localpolicy.training.train import train

TINY = {"width": 8, "epochs": 2, "batch_size": 32, "device": "cpu", "min_history": 0}


@pytest.mark.parametrize("block", [1, 3, 1 << 20])
def test_the_smallest_three_rewards_whatever_the_blocks(block, tmp_path, monkeypatch):
    monkeypatch.setattr(setup, "BLOCK", block)
    with writing(tmp_path / "data", kind="interactions", events=["play"]) as store:
        reward = np.array([0.5, 3.0, 0.25, 0.5, 2.0, -1.0, 3.0], np.float32)
        store.splits["train"].append(
            np.array([7]), {"item": np.zeros(7, int), "event": np.zeros(7, int), "reward": reward}
        )
        store.write_items(np.arange(1), np.ones(1, np.int64))
    assert rewards_of(Prepared(tmp_path / "data")) == [-1.0, 0.25, 0.5]


def test_rows_that_nobody_chose_have_no_reward(tmp_path):
    with writing(tmp_path / "data", kind="impressions", events=["click", "purchase", CONTEXT]) as store:
        columns = {
            "item": np.zeros(4, int),
            "event": np.array([2, 0, 1, 0]),
            "reward": np.array([0.0, 0.25, 1.0, 0.25]),
        }
        store.splits["train"].append(np.array([4]), columns)
        store.write_items(np.arange(1), np.ones(1, np.int64))
    data = Prepared(tmp_path / "data")
    assert rewards_of(data) == [0.25, 1.0]
    assert resolved_by(LPIObserved(), data) == LPIObserved(form="exponential", smallest=0.25)


def test_a_run_keeps_what_it_took_and_fine_tunes_with_a_td_loss(tmp_path):
    data = write_shop(tmp_path / "data")
    run = train(data, "lpi_observed", out=tmp_path / "run", **TINY)
    found = run.config.objective
    assert (found.form, found.smallest) == ("exponential", pytest.approx(0.2))
    weights = run.selected_metrics()["weights"]
    assert 0.5 < weights["effective_share"] < 0.99, "purchases weigh e^0.8, clicks 1"
    tuned = LPIObserved(beta=3.0, td_weight=1.0, form="affine")
    again = train(data, tuned, out=tmp_path / "tuned", warm_start=str(run.folder), **TINY)
    assert again.config.objective.td_weight == 1.0 and again.manifest["warm_start"]["heads"] == ["policy"]


# ---------------------------------------------------------------------- the power form


@pytest.fixture(scope="module")
def dial(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dial")
    data = write_shop(folder / "data")
    objective = LPIObserved(form="power", beta=2.0)
    return data, train(data, objective, out=folder / "run", **{**TINY, "learning_rate": 0.01})


def scores(head, hidden):
    return torch.nn.functional.linear(hidden, head.weight, head.bias)


def logits_of(head, hidden):
    return scores(head, hidden).log_softmax(1)


def test_the_power_form_mixes_the_logits_of_two_networks(dial):
    data, run = dial
    batch = next(iter(Windows(data, "test", run.config.data).in_order(8)))
    network = run.policy().network
    hidden = network.hidden_without_dropout(batch)[batch.scored]
    base, end = network.parts()
    width = base.weight.shape[1]
    mu, last = logits_of(base, hidden[:, :width]), logits_of(end, hidden[:, width:])
    assert (mu - last).abs().max() > 0.01, "they differ in weights and seed"
    items = torch.arange(data.n_items)

    def at(beta):
        rows = network.policy(hidden, beta=beta)
        return torch.stack([rows.at(torch.full((len(hidden),), int(item))) for item in items], 1).log_softmax(1)

    for beta in (0.7, 1.0, 2.0, 6.0):
        wanted = ((1 - 1 / beta) * mu + last / beta).log_softmax(1)
        torch.testing.assert_close(at(beta), wanted, atol=1e-5, rtol=0)
        tilted = scores(network.head("logging"), hidden) + scores(network.head("tilt"), hidden) / beta
        told = tilted.log_softmax(1)
        torch.testing.assert_close(told, wanted, atol=1e-5, rtol=0)
    torch.testing.assert_close(at(None), at(2.0))
    torch.testing.assert_close(at(1e9), mu, atol=1e-5, rtol=0)


def test_the_ends_of_the_power_form_are_ordinary_runs(dial, tmp_path):
    """μ̂ is the `mle` run of its seed, and the end the `reward_weighted` run of another."""
    data, run = dial
    about = run.manifest
    assert set(about["stages"]) == {"logging", "end"} and about["improvement"]["beta"] == 2.0
    assert about["improvement"]["chosen_by"] == "given" and "calibration" not in about["improvement"]
    assert run.config.objective.smallest == 0.0, "clicks weigh 0.2, and not nothing"
    settings = {**TINY, "learning_rate": 0.01, "select": run.config.train.select}
    mle = train(data, "mle", out=tmp_path / "mle", **settings)
    end = train(data, "reward_weighted", out=tmp_path / "end", seed=1_000_003, **settings)
    for name, alone in (("logging", mle), ("critics.0", end)):
        mine, theirs = (load_weights(each.folder / "policy.safetensors") for each in (run, alone))
        for key, tensor in theirs.items():
            torch.testing.assert_close(mine[f"{name}.{key}"], tensor)
    assert all("every second" not in what for what in run.selection())


def test_the_power_form_is_shown_exported_and_dialled(dial, tmp_path):
    pytest.importorskip("onnxruntime")
    _, run = dial
    assert "lpi_observed (power form" in repr(run)
    export(run, out=tmp_path / "export")  # refuses a graph that differs from the policy
    assert run.policy(beta=5.0).beta == 5.0


def test_arms_of_the_power_form_share_their_networks():
    two, six = (LPIObserved(form="power", beta=beta) for beta in (2.0, 6.0))
    assert two.undialled() == six.undialled() and LPIObserved(beta=2.0).undialled() is None
    assert LPIObserved(form="power", beta=2.0, td_weight=1.0).undialled() != two.undialled()
    with pytest.raises(ConfigError, match="0 is the end of the affine form"):
        LPIObserved(form="power", beta=0.0)
