"""Our own training, step by step: as a candidate, at a million items, and taken apart."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import torch
from peers.clock import Clock, Settings, memory, read, report, two_cores
from torch import Tensor

from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.objectives.critic import Critic
from localpolicy.runs.config import configure
from localpolicy.runs.run import Run
from localpolicy.training.epoch_log import EpochLog
from localpolicy.training.setup import resolve
from localpolicy.training.train import train
from localpolicy.training.trainer import Trainer
from localpolicy.version import __version__

REWARDS = {"click": 0.2, "purchase": 1.0}


def prepared(folder: Path, arrays: dict[str, np.ndarray], items: int) -> Prepared:
    """The sequences as our data set."""
    lengths = np.diff(arrays["offsets"])
    flat = {name: arrays[name] for name in ("item", "event")}
    flat["reward"] = np.array(list(REWARDS.values()), np.float32)[flat["event"]]
    with writing(folder, kind="interactions", events=list(REWARDS), rewards=REWARDS) as store:
        store.splits["train"].append(lengths, flat)
        # Training asks for a validation split; no step reads it.
        store.splits["validation"].append(lengths[:1], {name: array[: lengths[0]] for name, array in flat.items()})
        store.write_items(np.arange(items), np.bincount(flat["item"], minlength=items))
    return Prepared(folder)


@contextmanager
def started(objective: str, settings: Settings, arrays: dict[str, np.ndarray]) -> Iterator[Trainer]:
    """A trainer of the preset `rl`, as `lpi train --preset rl` makes it; `critic` is the default's second stage."""
    changes = {
        "objective.name": "mle" if objective == "critic" else objective,
        "data.length": settings.length,
        "model.width": settings.width,
        "model.blocks": settings.blocks,
        "model.heads": settings.heads,
        "model.dropout": settings.dropout,
        "model.tied": True,
        "train.batch_size": settings.batch,
        "train.learning_rate": settings.rate,
        "train.seed": settings.seed,
        "train.device": "cpu",
    }
    with TemporaryDirectory() as scratch:
        data = prepared(Path(scratch) / "data", arrays, settings.items)
        config = resolve(configure(preset="rl", short=changes), data)
        if objective == "critic":
            logging = Path(scratch) / "logging"
            train(data, out=logging, config=configure(preset="rl", short={**changes, "train.epochs": 1}))
            config = config.model_copy(update={"objective": Critic(logging=str(logging))})
        trainer = Trainer.start(data, Run(Path(scratch) / "run"), config)
        trainer.network.train()
        yield trainer


def contend(objective: str, folder: Path, out: Path) -> None:
    """The loop of `Trainer` without what it does at an epoch's end: cut, step, log."""
    settings, arrays = read(folder)
    two_cores(settings.threads)
    clock = Clock(settings.warm)
    with started(objective, settings, arrays) as trainer:
        for epoch in range(settings.our_epochs):
            log = EpochLog("cpu")
            for batch in trainer.windows.shuffled(settings.batch, seed=settings.seed, epoch=epoch):
                trainer.step(batch, clock.steps, log=log)
                clock.tick(len(batch.sequences), len(batch.scored))
    parameters = sum(parameter.numel() for parameter in trainer.network.parameters())
    report(clock, out, version=__version__, loss=objective, catalogue=trainer.network.n_items, parameters=parameters)


def million(items: int) -> dict[str, Any]:
    """Peak memory of a `lpi_rl` step beyond what any step must hold."""
    settings = replace(Settings(), items=items, batch=64)
    random = np.random.default_rng(settings.seed)
    events = 4 * settings.batch * 8  # 64 sequences of 4 events: N = 256 positions in each of 8 steps
    arrays: dict[str, np.ndarray] = {
        "offsets": np.arange(0, events + 1, 4),
        "item": random.integers(items, size=events).astype(np.int32),
        "event": (random.random(events) < 0.2).astype(np.uint8),
    }
    two_cores(settings.threads)
    imports = memory("VmRSS")
    seconds = []
    with started("lpi_rl_weighted", settings, arrays) as trainer:
        for number, batch in enumerate(trainer.windows.shuffled(settings.batch, seed=settings.seed, epoch=0)):
            assert len(batch.scored) == 256, len(batch.scored)
            began = time.perf_counter()
            trainer.step(batch, number)
            seconds.append(time.perf_counter() - began)
    parameters, state = list(trainer.network.parameters()), trainer.optimiser.state
    # A coin picks which Q head has a gradient: both must have had a turn for the state to be whole. What a head adds to
    # all items equally has none where a softmax follows.
    untrained = sum(parameter.numel() for parameter in parameters if parameter not in state)
    assert untrained < items, "a table was never trained: take more steps"
    held = {
        "imports": imports,
        "parameters": sum(parameter.nbytes for parameter in parameters),
        "gradients": sum(parameter.grad.nbytes for parameter in parameters if parameter.grad is not None),
        "optimiser": sum(value.nbytes for one in state.values() for value in one.values() if torch.is_tensor(value)),
    }
    return {
        "items": items,
        "positions": 256,
        "width": settings.width,
        "held_bytes": held,
        "peak_bytes": memory("VmHWM"),
        "beyond_bytes": memory("VmHWM") - sum(held.values()),
        "seconds_per_step": median(seconds),
    }


class Stopwatch:
    """Seconds by name."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, its time added to `name`."""

        def call(*positional: Any, **named: Any) -> Any:
            began = self.clock()
            result = function(*positional, **named)
            self.seconds[name] += self.clock() - began
            return result

        return call


def clock_of(threads: int) -> Callable[[], float]:
    """Of one thread its CPU time, which other work on the machine disturbs less."""
    return time.process_time if threads == 1 else time.perf_counter


CHUNK = 1024  # items of a product, whose result then lies in the cache


def allowed(settings: Settings, positions: float, followed: float) -> dict[str, float]:
    """Milliseconds that the machine needs for the products and exponentials of a step, and for nothing else.

    `mle`: scores, both gradients, one exponential per score. `critic`: scores of μ̂ and of Q where another action
    follows, and one exponential.
    """
    two_cores(settings.threads)
    clock = clock_of(settings.threads)

    def spent(rows: int) -> tuple[float, float, float, float]:
        hidden, weight = torch.randn(rows, settings.width), torch.randn(settings.items, settings.width)
        scores = torch.empty(rows, min(CHUNK, settings.items))
        pieces = [piece for piece in weight.split(CHUNK) if len(piece) == scores.shape[1]]
        share = settings.items / (len(pieces) * scores.shape[1])  # the last piece may be shorter
        works: list[Callable[[Tensor], Tensor]] = [
            lambda piece: torch.mm(hidden, piece.T, out=scores), lambda piece: torch.mm(scores, piece),
            lambda piece: torch.mm(scores.T, hidden), lambda piece: scores.fill_(-1.0).exp2_(),
        ]  # fmt: skip
        found = []
        for work in works:
            seconds = []
            for _ in range(7):
                began = clock()
                for piece in pieces:
                    work(piece)
                seconds.append(clock() - began)
            found.append(1000 * share * min(seconds))
        return found[0], found[1], found[2], found[3]

    whole, later = spent(round(positions)), spent(round(followed))
    return {"mle": sum(whole), "critic": 2 * later[0] + later[3]}


def overhead(objective: str, settings: Settings, arrays: dict[str, np.ndarray]) -> dict[str, float]:
    """Milliseconds per step of each piece of the loop; `rest` is what `Trainer.step` does beyond its named pieces."""
    two_cores(settings.threads)
    watch, steps = Stopwatch(clock_of(settings.threads)), 0
    with started(objective, settings, arrays) as trainer:
        trainer.losses.forward = watch.timed("forward", trainer.losses.forward)
        for name in ("step", "zero_grad"):
            setattr(trainer.optimiser, name, watch.timed("optimiser", getattr(trainer.optimiser, name)))
        step = watch.timed("rest", trainer.step)
        with mock.patch.object(torch.Tensor, "backward", watch.timed("backward", torch.Tensor.backward)):
            for epoch in range(settings.our_epochs):
                log = EpochLog("cpu")
                log.add = watch.timed("logging", log.add)  # type: ignore[method-assign]
                batches = trainer.windows.shuffled(settings.batch, seed=settings.seed, epoch=epoch)
                cut = watch.timed("cutting", lambda batches=batches: next(batches, None))
                while (batch := cut()) is not None:
                    step(batch, steps, log=log)
                    steps += 1
                    if steps == settings.warm:
                        watch.seconds.clear()
    inside = sum(watch.seconds[name] for name in ("forward", "backward", "optimiser", "logging"))
    watch.seconds["rest"] -= inside
    return {name: 1000 * seconds / (steps - settings.warm) for name, seconds in watch.seconds.items()}
