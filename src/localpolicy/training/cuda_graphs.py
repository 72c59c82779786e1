"""Training steps as captured CUDA graphs: the device repeats a whole step by itself, and the host only says "again".

A graph holds one step for one bucket of sizes and one face of the coin: cutting the batch, both passes, backward, clip,
optimiser and the epoch's log. The first step of each kind runs one by one (and is a step like any other), the next is
captured, all later ones are replayed. Random numbers are not baked in: a graph reads the seed of the device's generator
when it is replayed, and each step seeds it by (seed, step).

Nothing in a step waits for the host, so a loss that is not finite is found later, in the log's sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from localpolicy.data.batches import Windows
from localpolicy.data.buckets import BatchShape, Planned, Planner
from localpolicy.model.catalogue_mapping import RemappedLoggingPolicy
from localpolicy.model.readout import NetworkReader
from localpolicy.runs.config import Config
from localpolicy.runtime.deferred_gradients import deferred_gradients
from localpolicy.runtime.ranks import Ranks
from localpolicy.training.epoch_log import EpochLog
from localpolicy.training.numerics import tf32_products
from localpolicy.training.step import Step

MOST = 64  # graphs kept; a size that comes after them runs one by one


def refusal(config: Config, reader: NetworkReader, windows: Windows, ranks: Ranks) -> str | None:
    """Reason why the steps of this run cannot be captured, or None if they can."""
    if not config.train.device.startswith("cuda"):
        return "graphs are captured on CUDA devices alone"
    if not config.train.capture:
        return "train.capture is false"
    if not ranks.alone:
        return "several processes share a step"
    if reader.network.own_backbone:
        return "a backbone of your own may do other things in each step"
    if "above" in windows.arrays or "filter" in windows.arrays:
        return "the places of a list share a context and a filter, and both differ in length"
    if isinstance(reader.logging_policy, RemappedLoggingPolicy):
        return "the frozen logging policy knows another catalogue, and its histories differ in length"
    if reader.reads.teacher:
        return "a step of distilling reads whole rows of another policy"
    if not config.objective.capturable:
        return "the objective may do other things in each step: it does not say that it is capturable"
    return None


class Kind(NamedTuple):
    """Key of a graph: properties that must be equal for it to be replayed."""

    bucket: BatchShape
    coin: bool
    phase: int  # phase of the objective


class CapturedSteps:
    """Runner of steps that captures repeated ones. After a failed capture all steps run one by one."""

    def __init__(self, one_step: Step, windows: Windows, config: Config) -> None:
        self.one_step, self.config = one_step, config
        self.planner = Planner(windows, config.train.batch_size)
        self.log = EpochLog(windows.device)
        self.sequences = torch.zeros(config.train.batch_size, dtype=torch.long, device=windows.device)
        # Single steps run where steps are captured: autograd remembers the stream on which it first saw a parameter.
        self.stream = torch.cuda.Stream(windows.device) if self.sequences.is_cuda else None
        self.seen: set[Kind] = set()
        self.graphs: dict[Kind, torch.cuda.CUDAGraph] = {}
        self.refused: str | None = None  # reason why nothing more is captured

    def step(self, batch: Planned, number: int, coin: bool) -> None:
        """Run one optimiser step and enter it into the log; the generator must be seeded before."""
        kind = Kind(batch.bucket, coin, self.config.objective.phase(number))
        self.sequences.copy_(batch.sequences)
        if kind in self.seen and kind not in self.graphs and self.refused is None and len(self.graphs) < MOST:
            self._capture(kind, number)
        if kind in self.graphs:
            self.graphs[kind].replay()
        else:
            self._run_once(kind, number)
            self.seen.add(kind)

    def _capture(self, kind: Kind, number: int) -> None:
        graph = torch.cuda.CUDAGraph()
        first = next(iter(self.graphs.values()), None)
        try:
            # One pool for all: only one graph runs at a time, and nothing it leaves there is read later.
            with _streams_may_differ(), _captured_into(graph, self.stream, None if first is None else first.pool()):
                self._run(kind, number)
        except RuntimeError as error:
            self.refused = f"capture failed: {str(error).splitlines()[0]}"
            self.one_step.optimiser.zero_grad(set_to_none=True)
            # Older graphs read the generator's state, which a failed capture leaves broken: a replay would raise, or
            # drop the same units in every step.
            self.graphs.clear()
            _restart_generator(self.sequences.device)
        else:
            self.graphs[kind] = graph

    def _run_once(self, kind: Kind, number: int) -> None:
        if self.stream is None:
            self._run(kind, number)
            return
        here = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            self._run(kind, number)
        here.wait_stream(self.stream)

    def _run(self, kind: Kind, number: int) -> None:
        """Run the step on a batch that is filled up to its bucket: only the device knows how much of it counts."""
        with tf32_products():
            batch = self.planner.cut(self.sequences, kind.bucket)
            assert batch.counted is not None
            count = batch.counted.sum()
            self.one_step(batch, number, kind.coin, count=count, log=self.log, tables=deferred_gradients())


@contextmanager
def _captured_into(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream | None, pool: Any) -> Iterator[None]:
    """Context manager: capture the block's work into the graph, without waiting for the device as torch does.

    The scratch memory of matrix products belongs to this graph alone: that of the stream is forgotten before and after,
    since another run that is captured on this stream may be replayed at the same time.
    """
    assert stream is not None
    here = torch.cuda.current_stream(stream.device)
    stream.wait_stream(here)  # a capture writes the seed where replays that still wait will read theirs
    torch._C._cuda_clearCublasWorkspaces()
    with torch.cuda.stream(stream):
        graph.capture_begin(*(() if pool is None else (pool,)))
        try:
            yield
        finally:
            try:
                graph.capture_end()
            finally:
                torch._C._cuda_clearCublasWorkspaces()
    here.wait_stream(stream)


@contextmanager
def _streams_may_differ() -> Iterator[None]:
    """Context manager: no warning from torch about gradients that arrive from a branch of the graph."""
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    try:
        yield
    finally:
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(True)


def _restart_generator(device: torch.device) -> None:
    """Give the device's generator a new state with its seed, since a failed capture never ends in the old one."""
    index = torch.cuda.current_device() if device.index is None else device.index
    generator = torch.cuda.default_generators[index]
    seed = generator.initial_seed()
    generator.graphsafe_set_state(torch.Generator(device).graphsafe_get_state())
    generator.manual_seed(seed)
