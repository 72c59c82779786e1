"""Many runs: what is done stays done, one that fails costs the others nothing, a time limit loses nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import deque

import pytest

from localpolicy.errors import RunError, Stopped, TrainingError
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.study.jobs import Job, in_processes, train_all, train_job
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
    assert messages("localpolicy.study.jobs")[-1] == "again: one: done before"
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


def double(number):
    return 2 * number


def test_work_is_done_here_or_in_processes_alike():
    assert dict(in_processes(double, [1, 2, 3], processes=1)) == {1: 2, 2: 4, 3: 6}  # in two: the next test
    assert list(in_processes(double, [], processes=2)) == []
    with pytest.raises(Stopped, match="time limit"):
        list(in_processes(double, [1], processes=1, deadline=time.time() - 1))


@pytest.mark.parametrize("processes", [1, 2])
def test_what_follows_from_an_outcome_is_done_too(processes):
    queue, outcomes = deque([1, 2, 3]), {}
    for task, outcome in in_processes(double, queue, processes=processes):
        outcomes[task] = outcome
        if task <= 3:
            queue.append(10 * task)
    assert outcomes == {task: 2 * task for task in (1, 2, 3, 10, 20, 30)}
    assert not queue


def test_a_module_that_is_gone_stops_no_other_work(monkeypatch):
    """What a user named once is imported in new processes too; a run that does not need it must not suffer."""
    monkeypatch.setattr("localpolicy.plugins._modules", ["gone_since"])
    assert dict(in_processes(double, [1, 2], processes=2)) == {1: 2, 2: 4}


SLEEPER = """
import sys, time
from localpolicy.study.jobs import in_processes
from localpolicy.errors import Stopped

def work(seconds):
    print("at work", flush=True)
    time.sleep(seconds)

if __name__ == "__main__":
    try:
        list(in_processes(work, [600, 601], processes=2))
    except Stopped as stop:
        sys.exit(f"Stopped: {stop}")
"""


def test_terminated_it_ends_its_processes_and_says_how_to_go_on(tmp_path):
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    with subprocess.Popen(
        [sys.executable, tmp_path / "sleeper.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        for _ in range(2):
            assert program.stdout.readline() == "at work\n"
        program.terminate()
        _, told = program.communicate(timeout=600)
    assert "Stopped: stopped, as asked. What was done is saved" in told
    assert program.returncode == 1


STUBBORN = """
import sys, time
from localpolicy.errors import Stopped
from localpolicy.runtime.interrupt import stop_asked_for
from localpolicy.study import jobs

def work(seconds):
    with stop_asked_for():
        print("at work", flush=True)
        time.sleep(seconds)

if __name__ == "__main__":
    jobs.LONGEST_END = 1.0
    try:
        list(jobs.in_processes(work, [600, 601], processes=2))
    except Stopped:
        sys.exit(130)
"""


def test_terminated_it_waits_for_no_process_that_does_not_end(tmp_path):
    """One that hears the wish in the midst of something long kept the command waiting; and none may be left."""
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    with subprocess.Popen([sys.executable, tmp_path / "stubborn.py"], stdout=subprocess.PIPE, text=True) as program:
        for _ in range(2):
            assert program.stdout.readline() == "at work\n"
        program.terminate()
        try:
            program.communicate(timeout=120)  # the pipe closes when the last process has ended
        except subprocess.TimeoutExpired:
            program.kill()
            raise
    assert program.returncode == 130


def test_a_stopped_training_says_how_to_go_on_with_all(small, tmp_path, monkeypatch):
    def stopped(*given, **options):
        raise Stopped("stopped after step 4, as asked. Go on with --resume: somewhere")

    monkeypatch.setattr("localpolicy.study.jobs.training", stopped)
    with pytest.raises(Stopped, match=r"^stopped, as asked\. What was done is saved: the same command goes on"):
        train_all(jobs(small, tmp_path, one=config()), processes=1)
