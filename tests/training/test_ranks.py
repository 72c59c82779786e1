"""Several processes give what one gives: the same losses, the same weights within rounding, the same selection."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from forms import weighted
from several_processes import in_processes
from small_logs import small_item_table, write_small

from localpolicy.errors import TrainingError
from localpolicy.model.weights import load_weights
from localpolicy.objectives import OBJECTIVES
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.ranks import ALONE
from localpolicy.training.train import train
from localpolicy.training.trainer import Trainer

pytestmark = pytest.mark.cluster


WAYS = {"copies on 2": (2, False), "shards on 2": (2, True), "shards on 3": (3, True)}
ON_THREE = ("mle", "lpi_rl", "value", "features")  # three processes on two cores take their time


def config(name, *, shard=False, **changes):
    # Dropout differs between ranks on purpose; without it the numbers must agree.
    train = {"epochs": 2, "batch_size": 32, "learning_rate": 0.01, "device": "cpu", "checkpoint_every": 3}
    settings = {
        "model": {"width": 8, "dropout": 0.0, "features": []},
        "objective": weighted({"name": name}),
        "train": train,
    }
    for group, values in changes.items():
        settings[group] |= values
    settings["train"]["shard_catalogue"] = shard
    return Config.parse(settings)


# Every objective, and what else touches the tables: tied heads, a value head, clipping, a frozen μ̂, a warm start.
CASES = {
    **{name: (name, {}) for name in OBJECTIVES},
    "tied": ("lpi_rl", {"model": {"tied": True}}),
    "value": ("lpi_rl", {"objective": {"baseline": "value"}}),
    "expected target, policy baseline": ("lpi_rl", {"objective": {"target": "expected", "baseline": "policy"}}),
    "clipped": ("sqn", {"train": {"gradient_clip": 0.01}}),
    "frozen": ("ips", {"objective": {"logging": "MLE"}}),
    "warm": ("lpi_rl", {"train": {"warm_start": "MLE"}}),
    "features": ("lpi_rl", {"model": {"features": ["brand", "tags", "text"], "id_dropout": 0.0}}),
}


def of_case(case, folder, **options):
    name, changes = CASES[case]
    changes = {group: dict(values) for group, values in changes.items()}
    for group in changes.values():
        group |= {key: f"{folder}/mle" for key, value in group.items() if value == "MLE"}
    return config(name, **options, **changes)


def cases(way):
    return [case for case in CASES if WAYS[way][0] < 3 or case in ON_THREE]


def train_cases(ranks, data, folder):
    """Train every case in every way, one after another, in one group of processes."""
    torch.set_default_dtype(torch.float64)
    for way, (total, shard) in WAYS.items():
        for case in cases(way) if total == ranks.total else ():
            train(data, out=f"{folder}/{way}/{case}", config=of_case(case, f"{folder}/{way}", shard=shard))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    # 69 training sequences: the last batch has an odd share, and positions differ between ranks.
    table = small_item_table(np.arange(100, 113))
    data = write_small(folder / "data", sequences=87, items=13, item_table=table)
    assert data.n_items % 2, data.n_items
    assert data.n_items % 3, data.n_items
    for total in {total for total, _ in WAYS.values()}:
        in_processes(total, train_cases, str(data.path), str(folder))
    several = {way: {case: Run(folder / way / case) for case in cases(way)} for way in WAYS}
    one = folder / "one"
    # In double precision nothing hides behind rounding, which Adam's first steps blow up where a gradient is nearly 0.
    torch.set_default_dtype(torch.float64)
    try:
        return {case: train(data, out=one / case, config=of_case(case, one)) for case in CASES}, several
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(("way", "case"), [(way, case) for way in WAYS for case in cases(way)])
def test_several_ranks_equal_one(runs, way, case):
    one, several = runs[0][case], runs[1][way][case]
    assert one.manifest["processes"] == 1
    assert several.manifest["processes"] == WAYS[way][0]
    assert one.manifest["steps"] == several.manifest["steps"]
    assert one.manifest["parameters"] == several.manifest["parameters"]
    for alone, shared in zip(one.metrics(), several.metrics(), strict=True):
        for group in ("losses", "weights", "validation"):
            assert alone[group].keys() == shared[group].keys()
            for key, value in alone[group].items():
                assert shared[group][key] == pytest.approx(value, rel=1e-5, abs=1e-6), (group, key)
    for name in ("policy.safetensors", "last.safetensors"):
        expected, found = (load_weights(run.folder / name) for run in (one, several))
        assert expected.keys() == found.keys()
        for key, tensor in expected.items():
            torch.testing.assert_close(found[key], tensor, rtol=1e-6, atol=1e-7)


def test_torchrun_equals_its_short_form(tmp_path):
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
        assert done.stdout.count("the policy made of them") == 1, "one rank talks for all"
        assert json.loads((tmp_path / name / "manifest.json").read_text())["processes"] == 2
    assert (tmp_path / "long" / "policy.safetensors").read_bytes() == (
        tmp_path / "short" / "policy.safetensors"
    ).read_bytes()


def one_epoch(ranks, data, out, shard):
    """Train an epoch, and end as a kill after its checkpoint would."""
    torch.set_default_dtype(torch.float64)
    Trainer._finish = lambda self, done, seconds: self.run
    train(data, out=out, config=config("lpi_rl", shard=shard, train={"epochs": 1}), resume=True)


def test_a_run_may_resume_with_other_processes(tmp_path):
    """Checkpoints hold whole tables: shards on two ranks, then one process, are one process from start to end."""
    data = write_small(tmp_path / "data", sequences=60, items=13)
    in_processes(2, one_epoch, str(data.path), str(tmp_path / "moved"), True)
    assert not Run(tmp_path / "moved").finished
    torch.set_default_dtype(torch.float64)
    try:
        settings = config("lpi_rl")
        whole, moved = (train(data, out=tmp_path / name, config=settings, resume=True) for name in ("whole", "moved"))
    finally:
        torch.set_default_dtype(torch.float32)
    assert len(moved.metrics()) == 2
    expected, found = (load_weights(run.folder / "last.safetensors") for run in (whole, moved))
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, rtol=1e-6, atol=1e-7)


def goes_on(ranks, data, out):
    torch.set_default_dtype(torch.float64)
    train(data, out=out, config=config("lpi_rl", shard=True), resume=True)


def test_shards_may_resume_from_a_whole_checkpoint(tmp_path, monkeypatch):
    """The other way round: each rank takes its own rows of weights and moments."""
    data = write_small(tmp_path / "data", sequences=60, items=13)
    torch.set_default_dtype(torch.float64)
    try:
        train(data, out=tmp_path / "whole", config=config("lpi_rl"))
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "_finish", lambda self, done, seconds: self.run)
            train(data, out=tmp_path / "moved", config=config("lpi_rl", train={"epochs": 1}))
    finally:
        torch.set_default_dtype(torch.float32)
    in_processes(2, goes_on, str(data.path), str(tmp_path / "moved"))
    assert len(Run(tmp_path / "moved").metrics()) == 2
    expected, found = (load_weights(tmp_path / name / "last.safetensors") for name in ("whole", "moved"))
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, rtol=1e-6, atol=1e-7)


def breaks(ranks, data, out):
    """The last step breaks a row that the other rank holds: both must end, and neither wait for the other."""
    step = Trainer.step

    def breaking(self, batch, number, **options):
        terms = step(self, batch, number, **options)
        if ranks.rank == 1:
            self.network.heads["q_a"].bias.data[0] = float("nan")
        return terms

    Trainer.step = breaking
    with pytest.raises(TrainingError, match="step 1: the weights are no longer finite"):
        train(data, out=out, config=config("lpi_rl", shard=True, train={"epochs": 1, "batch_size": 4096}))
    ranks.wait()
    assert not (Run(out).folder / "policy.safetensors").exists()


def test_weights_that_broke_on_one_rank_end_the_run_on_all(tmp_path):
    data = write_small(tmp_path / "data", items=13)
    in_processes(2, breaks, str(data.path), str(tmp_path / "run"))


def test_a_dead_rank_ends_the_others_and_the_run_resumes(tmp_path):
    data = write_small(tmp_path / "data", sequences=400)
    script = tmp_path / "dies.py"
    # Rank 1 dies at step 7, without a word.
    script.write_text(
        "import os, sys\n"
        "from localpolicy.training.trainer import Trainer\n"
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
        [*torchrun, str(script), *words], capture_output=True, text=True, check=False, env=environment, timeout=600
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
