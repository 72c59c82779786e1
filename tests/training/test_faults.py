"""Machines die and disks fill: what was saved stays whole, the message says what to do, and the end is the same."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from broken_runs import train_until
from forms import weighted
from small_logs import write_small

from localpolicy.errors import WriteError
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.training.train import train

KILLS = int(os.environ.get("KILLS", "4"))
SAME = ("policy.safetensors", "last.safetensors", "metrics.jsonl")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def settings(**changes):
    train = {"epochs": 2, "batch_size": 16, "learning_rate": 0.01, "device": "cpu", "checkpoint_every": 1, **changes}
    return {"data": {"length": 6}, "model": {"width": 8}, "objective": weighted({"name": "lpi_rl"}), "train": train}


def killed(data, folder, values, moments):
    """What kills at these moments left behind, the last word being that of the run that was let be."""
    command = [sys.executable, Path(__file__).with_name("killing.py"), data.path, folder, json.dumps(values), *moments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert_same(Run(folder / "broken"), Run(folder / "whole"))
    return json.loads(done.stdout)


def assert_same(one, two):
    for name in SAME:
        assert (one.folder / name).read_bytes() == (two.folder / name).read_bytes(), name
    assert not any(one.folder.rglob("*.partial-*")), "what a kill left was swept away"


def test_killed_at_chosen_moments_it_ends_the_same(small, tmp_path):
    """Between any two files of a checkpoint or an epoch's end, and in the midst of writing one."""
    # config and metrics come first, then two files per checkpoint; validations (steps 4, 6, 8) add the best weights.
    moments = ["replace:1", "replace:3", "replace:4", "half:1", "replace:6", "half:4", "replace:9", "half:3"]
    left = killed(small, tmp_path, settings(validate_every=4), moments)
    assert left == ["partial file"] * len(moments) + ["finished"]


def test_killed_at_random_moments_it_ends_the_same(tmp_path):
    data = write_small(tmp_path / "data", sequences=40 * KILLS)
    values = settings(epochs=16, validate_every=5, patience=None, tensorboard=True)  # 32 steps for each kill
    # Steps and parts of one, so few that all kills strike before the run is done: a part is one of the mean step,
    # validation included, in which several steps may end.
    steps = np.random.default_rng(KILLS).uniform(1, 8, KILLS)
    left = killed(data, tmp_path, values, [f"after:{count:.3f}" for count in steps])
    assert left[-1] == "finished"
    assert not {"failed", "finished"} & set(left[:-1])  # kills in the midst of a file: at the chosen moments above


@pytest.mark.parametrize("limit", [3_000, 12_000], ids=["no room at all", "room for half a checkpoint"])
def test_a_full_disk_is_reported_and_the_run_resumes_later(limit, small, tmp_path):
    values = settings()
    whole = train(small, out=tmp_path / "whole", config=Config.parse(values))
    train_until(4, small, out=tmp_path / "run", config=Config.parse(values))
    before = sorted(path.name for path in (tmp_path / "run" / "checkpoint").iterdir())
    assert (tmp_path / "run" / "checkpoint" / "step-4.safetensors").stat().st_size > limit
    (tmp_path / "config.yaml").write_text(json.dumps(values))
    command = [sys.executable, "-m", "localpolicy", "train", small.path, "--config", tmp_path / "config.yaml",
               "--out", tmp_path / "run", "--resume"]  # fmt: skip
    full = subprocess.run(
        command, capture_output=True, text=True, check=False, env=ENVIRONMENT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert full.returncode == 2, full.stderr
    said = full.stderr.strip().splitlines()[-1]
    assert "step-5.safetensors could not be written" in said
    assert "File too large" in said and "--resume" in said and "Traceback" not in full.stderr
    after = sorted(path.name for path in (tmp_path / "run" / "checkpoint").iterdir())
    assert after == before, "the checkpoint before it is there, and nothing half-written"
    assert_same(train(small, out=tmp_path / "run", config=Config.parse(values), resume=True), whole)


def test_half_a_line_of_metrics_is_dropped(tmp_path):
    run = Run(tmp_path)
    run.append_metrics({"step": 1})
    run.append_metrics({"step": 2})
    whole = (tmp_path / "metrics.jsonl").read_bytes()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "los')
    run.keep_metric_lines(2)
    assert (tmp_path / "metrics.jsonl").read_bytes() == whole


def test_a_full_device_is_reported(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(WriteError, match="metrics.jsonl could not be written: No space left on device"):
        Run(tmp_path).append_metrics({"step": 1})


def test_force_removes_what_belonged_to_the_old_run(small, tmp_path):
    values = Config.parse(settings(tensorboard=True))
    run = train(small, out=tmp_path / "run", config=values)
    (run.folder / "evaluation").mkdir()
    (run.folder / "evaluation" / "evaluation.json").write_text("{}")
    (run.folder / "notes.txt").write_text("mine")
    events = {path.name for path in (run.folder / "tensorboard").iterdir()}
    again = train(small, out=tmp_path / "run", config=values, force=True)
    assert not (again.folder / "evaluation").exists()
    assert len(list((again.folder / "tensorboard").iterdir())) == len(events) == 1
    assert (again.folder / "notes.txt").read_text() == "mine"
