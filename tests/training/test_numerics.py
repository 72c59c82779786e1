"""Precision and determinism: refused where the device cannot, set back afterwards, and no number moves on a CPU."""

from __future__ import annotations

import pytest
import torch
from forms import weighted

from localpolicy.errors import ConfigError
from localpolicy.runs.config import Config, TrainConfig
from localpolicy.training.numerics import WORKSPACE, check_numerics, deterministic
from localpolicy.training.train import train


def config(**changes):
    train = {"epochs": 1, "batch_size": 16, "device": "cpu", **changes}
    return Config.parse({"model": {"width": 8}, "objective": weighted({"name": "lpi_rl"}), "train": train})


def test_bf16_is_refused_on_a_cpu_before_anything_is_replaced(small, tmp_path):
    run = train(small, out=tmp_path / "run", config=config())
    with pytest.raises(ConfigError, match=r"train.precision: bf16 needs a CUDA device, and this run is on cpu"):
        train(small, out=tmp_path / "run", config=config(precision="bf16"), force=True)
    assert run.finished


def test_bf16_is_refused_on_a_gpu_without_it(monkeypatch):
    settings = TrainConfig(device="cuda", precision="bf16")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "an old one")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **options: False)
    with pytest.raises(ConfigError, match="an old one has no bf16"):
        check_numerics(settings)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **options: True)
    check_numerics(settings)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_bf16_and_a_split_catalogue_do_not_go_together(device):
    with pytest.raises(ConfigError, match="bf16 and shard_catalogue=True do not go together"):
        check_numerics(TrainConfig(device=device, precision="bf16", shard_catalogue=True))


@pytest.mark.parametrize(("value", "fine"), [(None, False), (":0:0", False), (":4096:8", True), (":16:8", True)])
def test_determinism_on_cuda_needs_its_variable(value, fine, monkeypatch):
    monkeypatch.delenv(WORKSPACE, raising=False)
    if value is not None:
        monkeypatch.setenv(WORKSPACE, value)
    settings = TrainConfig(device="cuda:1", deterministic=True)
    if fine:
        check_numerics(settings)
    else:
        with pytest.raises(ConfigError, match=f"needs {WORKSPACE}=:4096:8"):
            check_numerics(settings)
    check_numerics(TrainConfig(device="cpu", deterministic=True))
    check_numerics(TrainConfig(device="cuda", deterministic=False))


@pytest.mark.parametrize("before", [(False, False), (True, True)])
def test_what_was_set_is_set_again(before):
    def state():
        return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    was, benchmark = state(), torch.backends.cudnn.benchmark
    try:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = True
        with pytest.raises(KeyError), deterministic(True):
            assert state() == (True, False)
            assert not torch.backends.cudnn.benchmark
            raise KeyError
        assert state() == before
        assert torch.backends.cudnn.benchmark
        with deterministic(False):
            assert state() == before
    finally:
        torch.use_deterministic_algorithms(was[0], warn_only=was[1])
        torch.backends.cudnn.benchmark = benchmark


def test_on_a_cpu_it_changes_no_number(small, tmp_path, monkeypatch):
    plain = train(small, out=tmp_path / "plain", config=config())
    seen = []
    from localpolicy.training.trainer import Trainer

    step = Trainer.step
    monkeypatch.setattr(
        Trainer, "step", lambda *a, **b: seen.append(torch.are_deterministic_algorithms_enabled()) or step(*a, **b)
    )
    strict = train(small, out=tmp_path / "strict", config=config(deterministic=True))
    assert seen and all(seen)
    for name in ("policy.safetensors", "metrics.jsonl"):
        assert (plain.folder / name).read_bytes() == (strict.folder / name).read_bytes()
    assert not torch.are_deterministic_algorithms_enabled()
