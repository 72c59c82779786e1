"""Parallel tasks: equal results in one process or several, ended by a signal or a deadline."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import deque

import pytest

from localpolicy.errors import Stopped
from localpolicy.runtime.processes import in_processes


def double(number):
    return 2 * number


def test_work_in_this_process_equals_work_in_others():
    assert dict(in_processes(double, [1, 2, 3], processes=1)) == {1: 2, 2: 4, 3: 6}  # in two: the next test
    assert list(in_processes(double, [], processes=2)) == []
    with pytest.raises(Stopped, match="time limit"):
        list(in_processes(double, [1], processes=1, deadline=time.time() - 1))


@pytest.mark.parametrize("processes", [1, 2])
def test_tasks_that_follow_from_an_outcome_are_done(processes):
    queue, outcomes = deque([1, 2, 3]), {}
    for task, outcome in in_processes(double, queue, processes=processes):
        outcomes[task] = outcome
        if task <= 3:
            queue.append(10 * task)
    assert outcomes == {task: 2 * task for task in (1, 2, 3, 10, 20, 30)}
    assert not queue


def test_a_removed_module_stops_no_other_work(monkeypatch):
    """What a user named once is imported in new processes too; a run that does not need it must not suffer."""
    monkeypatch.setattr("localpolicy.plugins._modules", ["gone_since"])
    assert dict(in_processes(double, [1, 2], processes=2)) == {1: 2, 2: 4}


SLEEPER = """
import sys, time
from localpolicy.runtime.processes import in_processes
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


def test_a_terminated_pool_ends_its_processes_and_says_how_to_resume(tmp_path):
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
from localpolicy.runtime.interrupt import stop_requested
from localpolicy.runtime import processes

def work(seconds):
    with stop_requested():
        print("at work", flush=True)
        time.sleep(seconds)

if __name__ == "__main__":
    processes.LONGEST_END = 1.0
    try:
        list(processes.in_processes(work, [600, 601], processes=2))
    except Stopped:
        sys.exit(130)
"""


def test_a_terminated_pool_waits_for_no_process_that_does_not_end(tmp_path):
    """A process that was busy with something long kept the command waiting; and none may be left."""
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
