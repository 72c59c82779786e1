"""Many runs: what is done stays done, one that fails costs the others nothing, a time limit loses nothing."""

from __future__ import annotations

import signal
import time

import pytest

from localpolicy.errors import RunError, Stopped, TrainingError
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.processes import in_processes
from localpolicy.training.jobs import Job, train_all, train_job
from localpolicy.training.trainer import Trainer


def config(objective="mle", **train):
    settings = {"epochs": 1, "batch_size": 32, "device": "cpu", **train}
    return Config.parse({"model": {"width": 4}, "objective": {"name": objective}, "train": settings})


def jobs(small, folder, **kinds):
    return [Job(name, small.path, folder / name, each) for name, each in kinds.items()]


def test_a_diverged_run_does_not_lose_the_others(small, tmp_path):
    three = jobs(
        small, tmp_path, first=config(), wild=config("reward_weighted", learning_rate=1e36), last=config(seed=1)
    )
    with pytest.raises(TrainingError, match=r"(?s)1 of 3.*wild.*learning_rate"):
        train_all(three, processes=1)
    assert [Run(job.out).finished for job in three] == [True, False, True]


def test_a_finished_run_of_other_settings_is_refused(small, tmp_path, messages):
    train_all(jobs(small, tmp_path, one=config()), processes=1)
    train_all(jobs(small, tmp_path, one=config()), processes=1, label="again: ")
    assert messages("localpolicy.training.jobs")[-1] == "again: one: done before"
    with pytest.raises(RunError, match=r"another \w+\.\w+ \("):
        train_all(jobs(small, tmp_path, one=config(seed=4)), processes=1)


def test_what_a_kill_after_the_end_left_is_removed_from_a_run_that_is_done(small, tmp_path):
    (job,) = jobs(small, tmp_path, one=config())
    train_all([job])
    (job.out / "checkpoint").mkdir()
    (job.out / "checkpoint" / "step-58.safetensors").write_bytes(b"x")
    (job.out / ".lock").touch()
    train_all([job])
    assert not (job.out / "checkpoint").exists() and not (job.out / ".lock").exists()


def test_the_time_limit_stops_training_with_a_checkpoint(small, tmp_path, monkeypatch):
    long = jobs(small, tmp_path, long=config(epochs=100_000))
    step = Trainer.step

    def time_is_up(self, batch, number, **options):
        if number == 3:
            left, _ = signal.getitimer(signal.ITIMER_REAL)
            assert 0 < left <= 36_000, "the clock is set"
            signal.raise_signal(signal.SIGALRM)  # what the clock does in the end, whenever that is
        return step(self, batch, number, **options)

    monkeypatch.setattr(Trainer, "step", time_is_up)
    with pytest.raises(Stopped):
        list(in_processes(train_job, long, processes=1, deadline=time.time() + 36_000))
    assert list((tmp_path / "long" / "checkpoint").glob("step-*.json"))


def test_a_stopped_training_says_how_to_resume_all_runs(small, tmp_path, monkeypatch):
    def stopped(*given, **options):
        raise Stopped("stopped after step 4, as asked. Continue with --resume: somewhere")

    monkeypatch.setattr("localpolicy.training.jobs.training", stopped)
    with pytest.raises(Stopped, match=r"^stopped, as asked\. What was done is saved: the same command continues"):
        train_all(jobs(small, tmp_path, one=config()), processes=1)
