"""Several processes give what one gives: the same losses, the same weights within rounding, the same selection."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch
from small_logs import write_small

from localpolicy.objectives import OBJECTIVES
from localpolicy.train.config import Config
from localpolicy.train.loop import train
from localpolicy.train.run import Run
from localpolicy.vocabulary.ranks import ALONE

pytestmark = pytest.mark.cluster
RANKS = 2


def config(name):
    # Dropout differs between ranks on purpose; without it the numbers must agree.
    train = {"epochs": 2, "batch_size": 16, "learning_rate": 0.01, "device": "cpu", "checkpoint_every": 3}
    return Config.parse({"model": {"width": 8, "dropout": 0.0}, "objective": {"name": name}, "train": train})


def train_all(rank, port, data, folder):
    """What each process does: every objective, one after another, in one group."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    import torch.distributed as dist

    dist.init_process_group("gloo")
    try:
        for name in OBJECTIVES:
            train(data, out=f"{folder}/{name}", config=config(name))
    finally:
        dist.destroy_process_group()


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    # 103 training sequences: the last batch has an odd share, and positions differ between ranks.
    data = write_small(folder / "data", sequences=129)
    torch.multiprocessing.spawn(train_all, (free_port(), str(data.path), str(folder / "two")), nprocs=RANKS)
    one = {name: train(data, out=folder / "one" / name, config=config(name)) for name in OBJECTIVES}
    return one, {name: Run(folder / "two" / name) for name in OBJECTIVES}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_two_ranks_equal_one(both, name):
    one, two = (runs[name] for runs in both)
    assert one.manifest["processes"] == 1
    assert two.manifest["processes"] == RANKS
    assert one.manifest["steps"] == two.manifest["steps"]
    for alone, shared in zip(one.metrics(), two.metrics(), strict=True):
        for group in ("losses", "weights", "validation"):
            assert alone[group].keys() == shared[group].keys()
            for key, value in alone[group].items():
                rounded = 0.03 if key.startswith("q") else 2e-3  # quantiles come from bins of 1.2 %
                assert shared[group][key] == pytest.approx(value, rel=rounded, abs=1e-4), (group, key)
    weights = [run.policy(last=True).network.state_dict() for run in (one, two)]
    for key, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][key], tensor, rtol=1e-3, atol=2e-3)


def test_torchrun_and_its_short_form(tmp_path):
    data = write_small(tmp_path / "data")
    words = [
        "train",
        str(data.path),
        "--objective",
        "lpi_rl",
        "--epochs",
        "1",
        "--device",
        "cpu",
        "--set",
        "model.width=8",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    long = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "localpolicy"]
    short = [sys.executable, "-m", "localpolicy"]
    for name, command, extra in (("long", long, []), ("short", short, ["--processes", "2"])):
        done = subprocess.run(
            [*command, *words, *extra, "--out", str(tmp_path / name)],
            capture_output=True, text=True, check=False, env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("selected epoch") == 1, "one rank talks for all"
        assert json.loads((tmp_path / name / "manifest.json").read_text())["processes"] == 2
    assert (tmp_path / "long" / "policy.safetensors").read_bytes() == (
        tmp_path / "short" / "policy.safetensors"
    ).read_bytes()


def test_a_rank_that_dies_ends_the_others_and_the_run_goes_on(tmp_path):
    data = write_small(tmp_path / "data", sequences=400)
    script = tmp_path / "dies.py"
    # Rank 1 dies at step 7, without a word.
    script.write_text(
        "import os, sys\n"
        "from localpolicy.train.loop import Trainer\n"
        "step = Trainer.step\n"
        "def dies(self, batch, number, **options):\n"
        "    if self.ranks.rank == 1 and number == 7: os._exit(9)\n"
        "    return step(self, batch, number, **options)\n"
        "Trainer.step = dies\n"
        "from localpolicy.cli.main import main\n"
        "main()\n"
    )
    words = ["train", str(data.path), "--objective", "mle", "--epochs", "2", "--device", "cpu", "--out",
             str(tmp_path / "run"), "--resume", "--set", "model.width=8", "--set", "train.batch_size=32",
             "--set", "train.checkpoint_every=5"]  # fmt: skip
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    died = subprocess.run(
        [*torchrun, str(script), *words], capture_output=True, text=True, check=False, env=environment, timeout=120
    )
    assert died.returncode != 0
    assert not Run(tmp_path / "run").finished
    assert (tmp_path / "run" / "checkpoint" / "step-5.json").exists()
    subprocess.run([*torchrun, "-m", "localpolicy", *words], capture_output=True, check=True, env=environment)
    assert Run(tmp_path / "run").finished


def test_one_process_agrees_with_itself():
    values = np.arange(6).reshape(3, 2)
    assert ALONE.summed(1, 2.5) == [1, 2.5]
    assert (ALONE.gathered(values) == values).all()
    assert ALONE.leads
