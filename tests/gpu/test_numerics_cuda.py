"""bf16 and determinism on a GPU. Needs a CUDA device: run by hand with `pytest -m gpu`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from small_logs import write_small

from localpolicy.catalogue import chunked
from localpolicy.logits import Head, LinearLogits
from localpolicy.objectives import OBJECTIVES
from localpolicy.runs.config import Config
from localpolicy.training.train import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("backbone", ["sasrec", "gru", "convolution"])
def test_bf16_trains_to_what_float32_trains_to(name, backbone, tmp_path):
    data = write_small(tmp_path / "data")
    groups = {"model": {"width": 16, "dropout": 0.0, "backbone": backbone}, "objective": {"name": name}}
    runs = [
        train(
            data,
            out=tmp_path / precision,
            config=Config.parse({**groups, "train": {"precision": precision, "device": "cuda", "epochs": 3}}),
        )
        for precision in ("float32", "bf16")
    ]
    one, two = (run.metrics()[-1]["losses"] for run in runs)
    for term in one:
        assert two[term] == pytest.approx(one[term], rel=0.02, abs=0.01)
    assert all(tensor.dtype == torch.float32 for tensor in runs[1].policy().network.state_dict().values())


def test_bf16_trains_with_a_frozen_logging_policy(tmp_path):
    data = write_small(tmp_path / "data")
    newer = write_small(tmp_path / "newer", items=15, seed=2)
    small = {"model": {"width": 16}, "train": {"device": "cuda", "epochs": 1}}
    older = train(data, out=tmp_path / "mle", config=Config.parse({**small, "objective": {"name": "mle"}}))
    small["train"]["precision"] = "bf16"
    for number, log in enumerate((data, newer)):
        settings = {**small, "objective": {"name": "lpi_rl_weighted", "logging": str(older.folder)}}
        assert train(log, out=tmp_path / str(number), config=Config.parse(settings)).finished


def test_a_popular_item_gets_its_whole_gradient_in_bf16():
    """4,096 positions take one item: a bf16 sum would stop growing at 256 times its step."""
    torch.manual_seed(0)
    weight = (torch.randn(1000, 64, device="cuda") / 8).requires_grad_()
    hidden = torch.randn(1, 64, device="cuda").expand(4096, 64)
    items = torch.zeros(4096, dtype=torch.long, device="cuda")
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        rows = LinearLogits(hidden.to(dtype), Head(weight.to(dtype), None))
        (gradient,) = torch.autograd.grad(chunked.log_prob(rows, items).sum(), weight)
        found.append(gradient[0])
    torch.testing.assert_close(found[1], found[0], rtol=0.02, atol=1.0)


def test_deterministic_runs_are_equal(tmp_path):
    data = write_small(tmp_path / "data", items=300, sequences=600)
    command = [sys.executable, "-m", "localpolicy", "train", data.path, "--objective", "lpi_rl", "--device", "cuda",
               "--epochs", "2", "--set", "train.deterministic=true"]  # fmt: skip
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    for name in ("one", "two"):
        subprocess.run([*command, "--out", tmp_path / name], check=True, env=environment)
    one, two = ((tmp_path / name / "policy.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two
