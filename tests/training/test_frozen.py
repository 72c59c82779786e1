"""A frozen run as μ̂ on data with newer items: what it cannot speak of is counted, and weighs what the record says."""

from __future__ import annotations

import shutil
from math import exp, log

import numpy as np
import pytest
import torch
from broken_runs import train_until
from forms import weighted
from small_logs import write_small

from localpolicy.catalogue.shards import Shard
from localpolicy.errors import ConfigError, RunError
from localpolicy.objectives import OBJECTIVES
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.ranks import Ranks
from localpolicy.training.setup import open_logging_policy, resolve, shard_of
from localpolicy.training.train import train
from localpolicy.training.trainer import Trainer
from localpolicy.types import Readout

NEWER = [104, 105, 100, 101, 102, 103, 106, 200, 107, 108, 109, 110, 111, 201]


def config(name, logging, **changes):
    train = {"epochs": 1, "batch_size": 16, "learning_rate": 0.01, **changes}
    return Config.parse(
        {
            "data": {"length": 8},
            "model": {"width": 8},
            "objective": weighted({"name": name, "logging": str(logging)}),
            "train": train,
        },
    )


@pytest.fixture(scope="module")
def older(small, tmp_path_factory):
    settings = Config.parse(
        {"data": {"length": 8}, "model": {"width": 8}, "objective": {"name": "mle"}, "train": {"epochs": 2}}
    )
    return train(small, out=tmp_path_factory.mktemp("older") / "mle", config=settings)


@pytest.fixture(scope="module")
def newer(tmp_path_factory):
    return write_small(tmp_path_factory.mktemp("newer") / "data", item_id=NEWER, seed=3)


@pytest.mark.parametrize(("name", "weigh"), [("ips", "nothing"), ("ips_pg", "nothing"), ("lpi_rl", "as others"),
                                             ("lpi_cb", "as others")])  # fmt: skip
@pytest.mark.parametrize("catalogue", ["chunked", "dense"])
def test_it_serves_where_it_knows_some_of_the_items(name, weigh, catalogue, older, newer, tmp_path):
    run = train(newer, out=tmp_path / "run", config=config(name, older.folder, catalogue=catalogue))
    taken = np.isin(np.array(NEWER)[newer["train"].arrays["item"]], [200, 201])
    assert run.manifest["logging"] == {
        "run": str(older.folder),
        "policy_sha256": older.manifest["policy_sha256"],
        "unseen_items": 2,
        "unseen_actions": int(taken.sum()),
        "actions": len(taken),
        "unseen_actions_weigh": weigh,
    }
    line = run.metrics()[-1]
    assert np.isfinite([*line["losses"].values(), *line["weights"].values()]).all()
    assert all(torch.isfinite(tensor).all() for tensor in run.policy().network.state_dict().values())


def test_the_same_items_in_another_order_give_the_same_readout(small, older, tmp_path):
    """Item 100 + j of `other` is item 100 + 11 - j: its rows must be found by id."""
    other = write_small(tmp_path / "other", item_id=range(111, 99, -1))
    settings = config("lpi_cb", older.folder)
    for data in (small, other):
        trainer = Trainer.start(data, Run("unused"), resolve(settings, data))
        batch = next(trainer.windows.in_order(64))
        rows = trainer.losses.reader.logging_policy.rows_at(batch, batch.scored)
        formed = torch.log_softmax(rows.chunk(0, 12), 1)
        ids = data.catalogue["item_id"].to_pylist()
        for n, token in enumerate(batch.scored.tolist()[:20]):
            row = [ids[item] for item, same in zip(batch.previous_item, batch.row == batch.row[token], strict=True)
                   if same and item >= 0]  # fmt: skip
            history = row[: int(batch.column[token])]
            codes = batch.previous_event[batch.row == batch.row[token]][1 : int(batch.column[token]) + 1]
            answers = [data.events[code] for code in codes]
            expected = older.policy().log_probabilities([history], [answers])[0]
            torch.testing.assert_close(formed[n], expected[[item - 100 for item in ids]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["ips", "ips_pg"])
def test_an_action_that_frozen_logging_cannot_take_weighs_nothing(name):
    """-min(π/μ̂, 30) r log π, and 0 where μ̂ = 0; one that is merely rare is clipped as ever."""
    logp = torch.tensor([log(0.5), log(0.2), log(0.1)], dtype=torch.float64, requires_grad=True)
    logging = torch.tensor([log(0.25), -torch.inf, log(0.001)], dtype=torch.float64)
    reward = torch.tensor([1.0, 5.0, 2.0], dtype=torch.float64)
    readout = Readout(logp=logp, reward=reward, logp_logging=logging, return_to_go=reward)
    terms = OBJECTIVES[name]().terms(readout)
    assert terms.weight.tolist() == pytest.approx([2 * 1.0, 0.0, 30 * 2.0])
    assert terms.clipped.tolist() == [False, False, True]
    assert list(terms.losses) == ["policy"]
    terms.losses["policy"].sum().backward()
    assert logp.grad.tolist() == pytest.approx([-2.0, 0.0, -60.0])
    assert exp(log(0.5)) / exp(log(0.25)) == pytest.approx(2)


def test_what_it_knows_beyond_the_data_is_refused(older, tmp_path):
    fewer = write_small(tmp_path / "fewer", items=10)
    with pytest.raises(RunError, match="knows 2 of its 12 items that .* lacks"):
        train(fewer, out=tmp_path / "run", config=config("lpi_cb", older.folder))


def test_the_policy_that_served_a_log_is_its_logging_policy(older, small, tmp_path):
    settings = Config.parse({"model": {"width": 8}, "objective": {"name": "reward_weighted"}, "train": {"epochs": 1}})
    served = train(small, out=tmp_path / "round-3", config=settings)
    digest = served.digest
    for number, (policies, fine) in enumerate(
        [(["round-3"], True), ([digest[:12]], True), ([digest[:4]], False), (["round-2"], False),
         (["round-2", "round-3"], False), ([], False)]
    ):  # fmt: skip
        log = write_small(tmp_path / f"log-{number}", policies=policies)
        if fine:
            run = train(log, out=tmp_path / f"run-{number}", config=config("lpi_cb", served.folder))
            assert run.manifest["logging"]["policy_sha256"] == served.manifest["policy_sha256"]
        else:
            with pytest.raises(RunError, match="only runs such as mle and sqn"):
                train(log, out=tmp_path / f"run-{number}", config=config("lpi_cb", served.folder))


def test_a_frozen_run_that_changed_is_refused_on_resume(small, older, tmp_path):
    logging = tmp_path / "mle"
    shutil.copytree(older.folder, logging)
    settings = config("lpi_cb", logging, checkpoint_every=2)
    train_until(3, small, out=tmp_path / "run", config=settings)
    other = older.config.with_changes(["train.seed=7"])
    train(small, out=logging, config=other, force=True)
    with pytest.raises(RunError, match="another logging policy"):
        train(small, out=tmp_path / "run", config=settings, resume=True)
    shutil.rmtree(logging)
    shutil.copytree(older.folder, logging)
    assert train(small, out=tmp_path / "run", config=settings, resume=True).finished


@pytest.mark.parametrize("rank", [0, 1])
def test_a_split_catalogue_needs_a_frozen_run_of_the_same_items(rank, older, newer, small, tmp_path):
    turned = write_small(tmp_path / "turned", item_id=range(111, 99, -1))
    settings = config("ips", older.folder, device="cpu")
    for data in (newer, turned):
        with pytest.raises(RunError, match="knows other items than .* shard_catalogue=True"):
            open_logging_policy(settings, data, shard=Shard(Ranks(rank, 2), data.n_items))
    policy = open_logging_policy(settings, small, shard=Shard(Ranks(rank, 2), small.n_items))
    assert len(policy.network.embedding) == small.n_items // 2


def test_more_processes_than_items_are_refused_where_they_shall_share_them(small):
    settings = config("lpi_cb", "head", shard_catalogue=True)
    assert shard_of(small, settings, Ranks(0, small.n_items)) is not None
    with pytest.raises(ConfigError, match=rf"has {small.n_items} items, fewer than the {small.n_items + 1} processes"):
        shard_of(small, settings, Ranks(0, small.n_items + 1))
