"""Parallel tasks: one process per core, one thread each. Signals and a deadline end all of them.

On a GPU several processes share the device; under MPS their steps run side by side.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import active_children, get_context, parent_process
from types import FrameType
from typing import TypeVar

import torch

from localpolicy import plugins
from localpolicy.errors import ConfigError, RunError, Stopped
from localpolicy.runtime.devices import give_back_memory
from localpolicy.runtime.interrupt import stop_signals

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")
MOST = 8  # processes that are started unasked
LOOK_EVERY = 0.5  # seconds between looks at whether a signal came
LONGEST_END = 30.0  # seconds that a process has for its last step and for saving
GO_ON = "What was done is saved: the same command continues."


def cores() -> int:
    """Number of cores that this process may use, within reason."""
    free = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(free, MOST))


def in_processes(
    work: Callable[[Task], Outcome],
    tasks: Sequence[Task],
    *,
    processes: int | None = None,
    deadline: float | None = None,
) -> Iterator[tuple[Task, Outcome]]:
    """Run `work` on each task and yield the task with its outcome, as they end.

    An error stops the rest; so does the deadline, with `Stopped`. Tasks in a deque may grow meanwhile: a caller that
    gets an outcome may add tasks that follow from it. `processes` are by default one per core. A single one is this
    process, since another would gain nothing.
    """
    waiting = tasks if isinstance(tasks, deque) else deque(tasks)
    count = min(processes or cores(), len(waiting))
    if count <= 1 and threading.current_thread() is threading.main_thread():  # signals reach no other
        yield from _here(work, waiting, deadline)
        return
    pool = ProcessPoolExecutor(
        count, mp_context=get_context("spawn"), initializer=_begin, initargs=(plugins.named_modules(),)
    )
    with pool, _terminated_as_interrupted() as terminated:
        at_work: dict[Future[Outcome], Task] = {}
        try:
            while waiting or at_work:
                while waiting and len(at_work) < count:
                    task = waiting.popleft()
                    at_work[pool.submit(_done, work, task, deadline)] = task
                ended = wait(at_work, timeout=LOOK_EVERY, return_when=FIRST_COMPLETED).done
                if terminated():
                    raise KeyboardInterrupt
                for future in ended:
                    yield at_work.pop(future), future.result()
        except BaseException as error:
            if terminated():
                _end_all(pool)
            pool.shutdown(wait=True, cancel_futures=True)
            if isinstance(error, KeyboardInterrupt):
                raise _asked() from None
            if isinstance(error, BrokenProcessPool):
                lack = (
                    "a process was killed, perhaps because memory ran out: use fewer processes. (A script of your own "
                    "must start its work under `if __name__ == '__main__':`.)"
                )
                raise RunError(f"{lack} {GO_ON}") from None
            raise


def _here(
    work: Callable[[Task], Outcome], tasks: deque[Task], deadline: float | None
) -> Iterator[tuple[Task, Outcome]]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a process of its own, so that the bytes are the same
    try:
        while tasks:
            task = tasks.popleft()
            yield task, _done(work, task, deadline)
    except KeyboardInterrupt:
        raise _asked() from None
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _terminated_as_interrupted() -> Iterator[Callable[[], bool]]:
    """Context manager: SIGTERM and SIGHUP end the work as Ctrl-C does; yield whether a SIGTERM came.

    Signals from a terminal reach the children without help. The handler raises nothing: an exception inside the pool,
    while it starts a process, would leave one that nobody ends.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if number != signal.SIGTERM or len(came) > 1:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, note) for number in stop_signals() if number != signal.SIGINT}
    try:
        yield lambda: signal.SIGTERM in came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_all(pool: ProcessPoolExecutor) -> None:
    """Ask every process to end, and do not wait for one that does not: its saved work is on the disk.

    A training gets the signal, finishes its step and saves; it may then wait for work that the pool no longer gives.
    """
    pool.shutdown(wait=False, cancel_futures=True)
    children = active_children()
    for child in children:
        child.terminate()
    until = time.monotonic() + LONGEST_END
    for child in children:
        child.join(max(until - time.monotonic(), 0.0))
        if child.is_alive():
            child.kill()


def _begin(modules: Sequence[str]) -> None:
    """Set up a new process: one thread, an exit with its parent, and the modules that the user named there."""
    for module in modules:
        with suppress(ConfigError):  # a module that was removed since: a run that needs it says so
            plugins.load(module)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _done(work: Callable[[Task], Outcome], task: Task, deadline: float | None) -> Outcome:
    """Run a task and return its outcome; raise `Stopped` if the deadline or a request to stop comes first."""
    try:
        with _alarm(deadline):
            return work(task)
    except Stopped:  # a training says how to resume it alone
        raise (_out_of_time() if deadline is not None and time.time() >= deadline else _asked()) from None
    finally:
        give_back_memory()


@contextmanager
def _alarm(deadline: float | None) -> Iterator[None]:
    """Context manager: request the block to stop at the deadline; raise `Stopped` if it has passed already."""
    if deadline is None:
        yield
        return
    if time.time() >= deadline:
        raise _out_of_time()
    signal.signal(signal.SIGALRM, _ask_to_stop)
    signal.setitimer(signal.ITIMER_REAL, max(deadline - time.time(), 1e-3))  # 0 would mean never
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _ask_to_stop(number: int, frame: FrameType | None) -> None:
    """Signal handler for the deadline: training finishes its step and saves; anything else just stops."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or handler is signal.default_int_handler:
        raise _out_of_time()
    handler(signal.SIGINT, frame)


def _asked() -> Stopped:
    return Stopped(f"stopped, as asked. {GO_ON}")


def _out_of_time() -> Stopped:
    return Stopped(f"time limit reached. {GO_ON}")


def _end_with_parent() -> None:
    """Exit when the parent process ends, so that no orphan writes into its folders."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
