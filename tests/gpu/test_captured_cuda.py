"""Captured steps on a GPU. Needs a CUDA device: run by hand with `pytest -m gpu`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from broken_runs import train_until
from forms import weighted
from fused_checks import check_adam
from shop_logs import write_shop
from small_logs import write_small

from localpolicy.model.backbones.layout import Layout
from localpolicy.model.backbones.sasrec import SASRec
from localpolicy.objectives import OBJECTIVES
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.processes import in_processes
from localpolicy.training import adam
from localpolicy.training.losses import Losses
from localpolicy.training.setup import resolve
from localpolicy.training.train import train
from localpolicy.training.trainer import Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def config(name="lpi_rl", *, dropout=0.0, **train_settings):
    groups = {"model": {"width": 16, "dropout": dropout}, "objective": weighted({"name": name})}
    return Config.parse({**groups, "train": {"device": "cuda", "epochs": 3, "batch_size": 16, **train_settings}})


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_captured_steps_give_the_weights_of_single_steps(name, precision, tmp_path):
    data = write_small(tmp_path / "data")
    one, two = (
        train(data, out=tmp_path / str(capture), config=config(name, capture=capture, precision=precision))
        for capture in (True, False)
    )
    assert one.manifest["steps_captured"]
    assert not two.manifest["steps_captured"]
    assert one.manifest["catalogue"] == "fused"
    close = 2e-3 if precision == "float32" else 2e-2
    for ours, theirs in zip(one.metrics(), two.metrics(), strict=True):
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=close, abs=close / 10)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", ["lpi_rl", "lpi_cb"])
def test_captured_steps_credit_first_meetings_as_single_steps_do(name, precision, tmp_path):
    data, found = write_shop(tmp_path / "data", items=6), []
    for capture in (True, False):
        settings = {"device": "cuda", "epochs": 3, "batch_size": 16, "capture": capture, "precision": precision}
        parts = {"model": {"width": 16, "dropout": 0.0}, "objective": {"name": name, "critic_dropout": 0.0}}
        found.append(train(data, out=tmp_path / str(capture), config=Config.parse({**parts, "train": settings})))
    assert [run.config.objective.credit for run in found] == ["meetings", "meetings"]
    close = 2e-3 if precision == "float32" else 2e-2
    for ours, theirs in zip(*(run.metrics() for run in found), strict=True):
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=close, abs=close / 10)


@pytest.mark.parametrize("backbone", ["gru", "convolution"])
def test_other_backbones_are_captured_or_say_why_not(backbone, tmp_path):
    data = write_small(tmp_path / "data")
    settings = config("mle").with_changes([f"model.backbone={backbone}"])
    run = train(data, out=tmp_path / "run", config=settings)
    assert run.manifest["steps_captured"] or "capture failed" in run.manifest["steps_not_captured"]


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("length", [20, 80], ids=["short attention", "padded attention"])
def test_a_backbone_gives_on_a_gpu_what_it_gives_on_a_cpu(length, blocks):
    torch.manual_seed(0)
    widths = torch.randint(1, length + 1, (30,))
    row = torch.repeat_interleave(torch.arange(30), widths)
    column = torch.cat([torch.arange(int(width)) for width in widths])
    embedded, upstream = torch.randn(len(row), 24), torch.randn(len(row), 24)
    plain = SASRec(width=24, length=length, blocks=blocks, heads=2, dropout=0.0)
    results = []
    for device in ("cpu", "cuda"):
        backbone = SASRec(width=24, length=length, blocks=blocks, heads=2, dropout=0.0).to(device)
        backbone.load_state_dict(plain.state_dict())
        layout = Layout(row.to(device), column.to(device), 30, length)
        leaf = embedded.to(device).clone().requires_grad_()
        out = backbone(leaf, layout)
        out.backward(upstream.to(device))
        every = {name: parameter.grad for name, parameter in backbone.named_parameters()}
        results.append({"out": out.detach(), "embedded": leaf.grad, **every})
    for name, expected in results[0].items():
        assert expected.abs().max() > 1e-3, name
        torch.testing.assert_close(results[1][name].cpu(), expected, rtol=2e-3, atol=2e-3, msg=name)


def test_dropout_differs_between_replays_and_comes_again_with_its_seed(tmp_path):
    data = write_small(tmp_path / "data")
    settings = config("mle", dropout=0.5, learning_rate=1e-12, batch_size=96)
    trainer = Trainer.start(data, Run(tmp_path / "run"), resolve(settings, data))
    trainer.network.train()
    (batch,) = trainer.captured.planner.epoch(seed=0, epoch=0)

    def loss(number):
        before = float(trainer.captured.log.losses.get("policy", 0.0))
        trainer.step(batch, number)
        return float(trainer.captured.log.losses["policy"]) - before

    single, first, second, again = loss(7), loss(7), loss(8), loss(7)
    assert len(trainer.captured.graphs) == 1
    assert first != second, "the same numbers are dropped in every replay"
    assert first == pytest.approx(again, rel=1e-9)
    assert first == pytest.approx(single, rel=1e-5)


def test_a_capture_that_fails_costs_nothing_but_speed(tmp_path, monkeypatch):
    data = write_small(tmp_path / "data")
    plain = train(data, out=tmp_path / "plain", config=config("mle", dropout=0.1, capture=False))
    forward = Losses.forward

    def asks_the_device(*arguments):
        loss, means, terms = forward(*arguments)
        float(loss.detach())  # not while a graph is captured
        return loss, means, terms

    monkeypatch.setattr(Losses, "forward", asks_the_device)
    broken = train(data, out=tmp_path / "broken", config=config("mle", dropout=0.1))
    assert "capture failed" in broken.manifest["steps_not_captured"]
    for ours, theirs in zip(broken.metrics(), plain.metrics(), strict=True):
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=0.05)


def test_a_run_continues_after_a_later_capture_fails(tmp_path, monkeypatch):
    data = write_small(tmp_path / "data")
    plain = train(data, out=tmp_path / "plain", config=config("mle", dropout=0.1, capture=False))
    forward, captures = Losses.forward, []

    def asks_the_device_in_the_second_capture(*arguments):
        loss, means, terms = forward(*arguments)
        if torch.cuda.is_current_stream_capturing():
            captures.append(len(captures))
            if len(captures) == 2:
                float(loss.detach())
        return loss, means, terms

    monkeypatch.setattr(Losses, "forward", asks_the_device_in_the_second_capture)
    broken = train(data, out=tmp_path / "broken", config=config("mle", dropout=0.1))
    assert len(captures) == 2, "a batch of another size is captured after the first"
    assert "capture failed" in broken.manifest["steps_not_captured"]
    for ours, theirs in zip(broken.metrics(), plain.metrics(), strict=True):
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=0.05)


def test_both_heads_of_a_double_critic_are_fitted(tmp_path):
    data = write_small(tmp_path / "data")
    trainer = Trainer.start(data, Run(tmp_path / "run"), resolve(config(batch_size=96), data))
    (batch,) = trainer.captured.planner.epoch(seed=0, epoch=0)
    for number in range(12):
        trainer.step(batch, number)
    assert {kind.coin for kind in trainer.captured.graphs} == {True, False}
    heads = [next(trainer.network.heads[name].parameters()) for name in ("q_a", "q_b")]
    steps = [int(trainer.optimiser.state[one]["step"]) for one in heads]
    assert sum(steps) == 12
    assert min(steps) > 1


def test_a_broken_loss_ends_the_run(tmp_path):
    from localpolicy.errors import TrainingError

    data = write_small(tmp_path / "data")
    with pytest.raises(TrainingError, match="no longer finite"):
        train(data, out=tmp_path / "run", config=config("mle", learning_rate=1e30, epochs=2))


def test_fused_and_chunked_curves_agree_over_500_steps(tmp_path):
    data = write_small(tmp_path / "data", items=300, sequences=2000)
    one, two = (
        train(data, out=tmp_path / catalogue, config=config(catalogue=catalogue, epochs=5))
        for catalogue in ("fused", "chunked")
    )
    assert one.manifest["steps"] >= 500
    for ours, theirs in zip(one.metrics(), two.metrics(), strict=True):
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=5e-3, abs=1e-3)


SCRIPT = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
import test_captured_cuda
getattr(test_captured_cuda, sys.argv[1])(Path(sys.argv[2]))
"""


def check_resumed(folder):
    """Check that a stopped and resumed run has the weights of an uninterrupted one, to the bit."""
    data = write_small(folder / "data")
    settings = config(dropout=0.1, deterministic=True, checkpoint_every=2)
    whole = train(data, out=folder / "whole", config=settings)
    train_until(11, data, out=folder / "broken", config=settings)
    resumed = train(data, out=folder / "broken", config=settings, resume=True)
    assert resumed.manifest["steps_captured"]
    assert whole.manifest["policy_sha256"] == resumed.manifest["policy_sha256"]


def check_equal_runs(folder):
    """Check that equal runs have equal weights, to the bit."""
    data = write_small(folder / "data", items=300, sequences=800)
    for name, precision in (("lpi_rl", "bf16"), ("mle", "float32"), ("sac", "float32")):
        settings = config(name, dropout=0.1, deterministic=True, precision=precision)
        once, again = (train(data, out=folder / name / when, config=settings) for when in ("once", "again"))
        assert once.manifest["steps_captured"]
        assert once.manifest["policy_sha256"] == again.manifest["policy_sha256"], name


@pytest.mark.parametrize("check", ["check_resumed", "check_equal_runs"])
def test_deterministic_runs_are_equal_to_the_bit(check, tmp_path):
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    here = Path(__file__).parent
    command = [sys.executable, "-c", SCRIPT, check, str(tmp_path), str(here), str(here.parent)]
    subprocess.run(command, env=environment, check=True)


def test_a_task_that_ended_keeps_no_memory_from_other_processes():
    def work(task):
        torch.zeros(1 << 28, dtype=torch.uint8, device="cuda")

    before = torch.cuda.memory_reserved()
    assert [task for task, _ in in_processes(work, ["one", "two"], processes=1)] == ["one", "two"]
    assert torch.cuda.memory_reserved() < before + (1 << 27)


@pytest.mark.parametrize("large", [4000, 1 << 30], ids=["our kernel", "torch's"])
def test_parameters_move_as_adamw_moves_them(large, monkeypatch):
    monkeypatch.setattr(adam, "LARGE", large)
    check_adam("cuda")
