"""One process at a time trains into a folder; the lock ends with its process, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from localpolicy.errors import LocalPolicyError, RunError
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.folders import training_lock
from localpolicy.training.train import train
from localpolicy.training.trainer import Trainer

SETTINGS = {
    "objective": {"name": "mle"},
    "model": {"width": 8},
    "train": {"epochs": 2, "batch_size": 16, "device": "cpu", "checkpoint_every": 1},
}
# Trains, says when it has done four steps, and continues on a signal.
FIRST = """
import json, sys
from localpolicy.runs.config import Config
from localpolicy.training.train import train
from localpolicy.training.trainer import Trainer
step = Trainer.step
def pauses(self, batch, number, **options):
    if number == 4:
        print("four steps done", flush=True)
        sys.stdin.readline()
    return step(self, batch, number, **options)
Trainer.step = pauses
train(sys.argv[1], out=sys.argv[2], config=Config.parse(json.loads(sys.argv[3])), resume=True)
"""


@pytest.fixture
def first(small, tmp_path):
    """A process in the midst of training into `run`."""
    command = [sys.executable, "-c", FIRST, str(small.path), str(tmp_path / "run"), json.dumps(SETTINGS)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout.readline() == "four steps done\n"
        yield process
        process.kill()


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def again(small, folder, **options):
    return train(small, out=folder, config=Config.parse(SETTINGS), **options)


def test_a_second_trainer_is_refused_and_disturbs_nothing(first, small, tmp_path):
    before = contents(tmp_path / "run")
    for options in ({"resume": True}, {"force": True}, {}):
        with pytest.raises(
            RunError, match=r"another process trains into .*run \(process \d+\); wait for it, or choose another folder"
        ):
            again(small, tmp_path / "run", **options)
    assert contents(tmp_path / "run") == before
    first.stdin.write("go on\n")
    first.stdin.flush()
    assert first.wait(timeout=600) == 0
    whole = again(small, tmp_path / "whole")
    for name in ("policy.safetensors", "last.safetensors", "metrics.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (whole.folder / name).read_bytes(), name
    assert not (tmp_path / "run" / ".lock").exists()


def test_the_lock_of_a_killed_trainer_holds_nobody_back(first, small, tmp_path):
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert (tmp_path / "run" / ".lock").exists()
    assert again(small, tmp_path / "run", resume=True).finished
    assert not (tmp_path / "run" / ".lock").exists()


def test_a_lock_that_was_left_makes_no_folder_occupied(small, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").touch()
    assert again(small, tmp_path / "run").finished


def test_a_run_that_another_finished_meanwhile_is_left_alone(small, tmp_path, monkeypatch):
    """Another process finishes the run between the first look at the folder and the lock."""
    starts = []
    start = Trainer.start

    def other_first(folder):
        monkeypatch.setattr("localpolicy.training.train.training_lock", training_lock)
        again(small, folder, resume=True)
        return training_lock(folder)

    monkeypatch.setattr("localpolicy.training.train.training_lock", other_first)
    monkeypatch.setattr(Trainer, "start", lambda *given, **named: starts.append(given) or start(*given, **named))
    assert again(small, tmp_path / "run", resume=True).finished
    assert len(starts) == 1


def test_a_lock_removed_before_locking_is_made_again(tmp_path, monkeypatch):
    """Else two could hold one each: that of a file without a name, and that of a new file."""
    import fcntl

    flock, removed = fcntl.flock, []

    def slow(descriptor, how):
        if not removed:
            removed.append((tmp_path / ".lock").unlink())
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    with training_lock(tmp_path), pytest.raises(RunError, match="another process"), training_lock(tmp_path):
        pass
    assert removed
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_is_no_obstacle(tmp_path, monkeypatch):
    import errno
    import fcntl

    def lacks(descriptor, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", lacks)
    with training_lock(tmp_path / "run"):
        assert not Run(tmp_path / "run").started
    assert list((tmp_path / "run").iterdir()) == []


def test_a_file_in_the_way_is_named(small, tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(LocalPolicyError, match="is a file"):
        again(small, tmp_path / "run")
