"""Several runs in one process, each in a lane of its own: one step of each in turn.

A training step of a small model leaves most of a GPU idle. Each lane has a CUDA stream, so the device works on the
steps of all lanes at once; the host only has to ask for them in turn. Each lane also has random numbers of its own on
the device: a captured step reads its seed when it runs, long after the host has gone on to seed another lane's.
So a run in a lane gives the numbers of a run alone.
"""

from __future__ import annotations

import gc
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TypeVar

import torch

from localpolicy.errors import Stopped
from localpolicy.runtime.progress import no_bars

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")
# Work that pauses now and then. It may give a function that says whether there is any use in going on with it yet.
Steps = Generator[Callable[[], bool] | None, None, Outcome]
MOST = 32  # streams that torch tells apart


def to_end(steps: Steps[Outcome]) -> Outcome:
    """Do it without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def caught_up(device: torch.device | str) -> Steps[None]:
    """Pause until the device has done what it was asked to: whoever reads its numbers next does not hold up others."""
    if torch.device(device).type == "cuda":
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        yield event.query


def give_back_memory(device: torch.device | str) -> None:
    """Hand what the allocator keeps back to the device.

    Its cache is kept per stream, and a captured run has a pool of its own: what one run leaves there serves no other,
    and other processes on the device cannot have it.
    """
    if torch.device(device).type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


class Lane:
    """A stream and a state of the random numbers, both of one device."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.random = torch.Generator(device) if device.type == "cuda" else None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Within the block work goes to this lane."""
        if self.stream is None or self.random is None:
            yield
            return
        generator = torch.cuda.default_generators[self.stream.device_index]
        before = generator.graphsafe_get_state()
        generator.graphsafe_set_state(self.random)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            self.random = generator.graphsafe_get_state()  # a capture that failed leaves a new one
            generator.graphsafe_set_state(before)


def in_turn(
    work: Callable[[Task], Steps[Outcome]], tasks: Sequence[Task], *, lanes: int, device: str
) -> Iterator[tuple[Task, Outcome]]:
    """Each task and what came of it, as they end, `lanes` of them at a time.

    Tasks in a deque are taken from it, and it may grow meanwhile. An error ends the others where they are. A wish to
    stop reaches all of them: each ends as it does alone.
    """
    if lanes > 1:
        # Read when CUDA starts; else streams share eight queues, and fewer under MPS. No more than are used: there all
        # processes take them from one pool, and one that finds it empty cannot start.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", str(min(32, max(8, 2 * lanes))))
    waiting = tasks if isinstance(tasks, deque) else deque(tasks)
    every = [Lane(_whole(device)) for _ in range(min(lanes, len(waiting), MOST))]
    at_work: dict[Lane, tuple[Task, Steps[Outcome]]] = {}
    ready: dict[Lane, Callable[[], bool]] = {}
    stopped: Stopped | None = None
    with no_bars() if len(every) > 1 else nullcontext():
        try:
            while waiting or at_work:
                for lane in every:
                    if lane not in at_work:
                        if not waiting or stopped is not None:
                            continue
                        task = waiting.popleft()
                        at_work[lane] = task, work(task)
                    task, steps = at_work[lane]
                    if lane in ready and not ready[lane]():
                        continue
                    ready.pop(lane, None)
                    try:
                        with lane.entered():
                            until = next(steps)
                    except StopIteration as end:
                        del at_work[lane], steps
                        give_back_memory(device)
                        yield task, end.value
                    except Stopped as stop:
                        del at_work[lane]
                        stopped = stop
                    else:
                        if until is not None:
                            ready[lane] = until
                if stopped is not None and not at_work:
                    raise stopped
        finally:
            for _, steps in at_work.values():
                steps.close()


def _whole(device: str) -> torch.device:
    """With its number, where it is a GPU."""
    named = torch.device(device)
    return torch.device("cuda", torch.cuda.current_device()) if named.type == "cuda" and named.index is None else named
