"""Distilling: one network that gives what towers give, at one β, as an ordinary run."""

from __future__ import annotations

import pytest
import torch
from measured import evaluate_policy
from small_logs import write_small
from typer.testing import CliRunner

from localpolicy.catalogue import backend
from localpolicy.catalogue.shards import Shard
from localpolicy.cli.main import app
from localpolicy.data.batches import Windows
from localpolicy.errors import ConfigError, RunError
from localpolicy.model.network import Network
from localpolicy.model.policy import Policy
from localpolicy.objectives.distill import Distill
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.ranks import ALONE
from localpolicy.training.distill import distill
from localpolicy.training.setup import open_logging_policy
from localpolicy.training.train import train


@pytest.fixture(scope="module")
def teacher(small, tmp_path_factory):
    settings = {
        "data": {"length": 6},
        "model": {"width": 8},
        "objective": {"name": "lpi_rl", "beta": 0.05, "calibrate_critic": False},
        "train": {"epochs": 3, "batch_size": 16, "learning_rate": 0.01},
    }
    return train(small, out=tmp_path_factory.mktemp("distill") / "teacher", config=Config.parse(settings))


def js(one: Policy, other: Policy, small) -> float:
    windows = Windows(small, "test", CONFIG.data)
    found = [backend().divergence(one.logits(batch), other.logits(batch))[0] for batch in windows.in_order(16)]
    return float(torch.cat(found).mean())


CONFIG = Config.parse({"data": {"length": 6}})


def test_the_student_gives_what_the_teacher_gives_at_that_beta(teacher, small, tmp_path):
    beta = 0.1
    run = distill(teacher, out=tmp_path / "student", beta=beta, epochs=20, learning_rate=0.02, patience=None)
    student, aim = run.policy(), teacher.policy(beta=beta)
    assert isinstance(student.network, Network) and student.critic is None
    moved = js(aim, teacher.policy().logging(), small)
    assert js(student, aim, small) < 0.35 * moved, "most of the way from μ̂ to the teacher"
    assert js(student, aim, small) < js(student, teacher.policy(), small), "at that β, not at its own"
    assert run.manifest["selected"]["by"] == "-1*teacher_js"
    assert run.manifest["logging"]["policy_sha256"] == teacher.manifest["policy_sha256"]
    assert evaluate_policy(student, small, name="student", window=run.config.data).metrics
    with pytest.raises(ConfigError, match="nothing to dial"):
        run.policy(beta=0.1)


@pytest.mark.parametrize("beta", [0, -1, float("nan"), float("inf")])
def test_a_beta_that_is_none_is_refused(teacher, beta, tmp_path):
    with pytest.raises(ConfigError, match=r"objective\.beta: expected a (finite number|number greater than 0)"):
        distill(teacher, out=tmp_path / "student", beta=beta)


def test_items_that_the_teacher_never_saw_are_refused(teacher, tmp_path):
    """It gives them probability 0: nothing can be learnt there, and its distance would not be a number."""
    other = write_small(tmp_path / "other", items=13, sequences=40)
    with pytest.raises(RunError, match=r"knows other items than .*other, and can teach nothing"):
        distill(teacher, out=tmp_path / "student", data=other, epochs=1)


def test_a_split_catalogue_is_refused_before_the_first_step(teacher, small):
    """Distilling reads whole rows; a rank of a split catalogue has some items of each."""
    config = Config.parse({"objective": Distill(teacher=str(teacher.folder)), "train": {"shard_catalogue": True}})
    with pytest.raises(
        ConfigError, match="shard_catalogue=True: distilling reads whole rows; leave the catalogue whole"
    ):
        open_logging_policy(config, small, shard=Shard(ALONE, small.n_items))


def test_the_command_line_distills_a_run(teacher, tmp_path):
    out = tmp_path / "student"
    made = CliRunner().invoke(
        app, ["distill", str(teacher.folder), "--beta", "0.1", "--epochs", "1", "--out", str(out)]
    )
    assert made.exit_code == 0, made.output
    assert Run(out).finished and Run(out).config.objective.beta == 0.1
