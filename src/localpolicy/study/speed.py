"""How long a training step and a validation take on this machine: measured once for each shape of work, and kept.

So a plan follows from counts, and the same log has the same plan whatever else the machine does. What is measured is
one thread's time on the clock or on the processor, whichever is less: on a busy machine a process waits, and that is
not its work, and each training has one thread. Numbers lie in `speed.json` under the user's cache folder
($XDG_CACHE_HOME/localpolicy, or ~/.cache), and may be deleted.
"""

from __future__ import annotations

import math
import os
import platform
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from localpolicy.data.store import Prepared
from localpolicy.errors import LocalPolicyError
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.files import read_json, write_json
from localpolicy.training.trainer import Trainer
from localpolicy.training.validation import validate

PROBE, WARM = 8, 2  # steps that are made, and those of them that are not timed
PROBED, FEWEST_PROBED = 64, 8  # sequences of the validation that is timed
MOST_SCORES = 100_000_000  # positions times items of that validation, beyond which fewer sequences are enough
MOST_KEPT = 500  # shapes of work


class Speed(NamedTuple):
    """Measured speed of this machine: seconds per training step and per scored sequence."""

    step: float
    sequence: float  # of one that is scored


def speed_of(data: Prepared, config: Config) -> Speed:
    """Stored speed for work of this shape, or a new measurement."""
    place, key = _folder() / "speed.json", shape_of(data, config)
    kept = _kept(place)
    if key not in kept:
        kept[key] = list(_measured(data, config))
        with suppress(LocalPolicyError, OSError):  # a home that cannot be written costs a measurement each time
            write_json(place, dict(list(kept.items())[-MOST_KEPT:]))
    return Speed(*kept[key])


def shape_of(data: Prepared, config: Config) -> str:
    """Settings that the time of a step depends on: counts to two digits, the network, the machine."""
    device = config.train.device
    where = torch.cuda.get_device_name() if device.startswith("cuda") else f"{platform.machine()}, {os.cpu_count()}"
    train = data["train"]
    counts = (data.n_items, train.events / max(len(train), 1), config.data.length, config.train.batch_size)
    shape = [where, torch.__version__, *(f"{float(each):.2g}" for each in counts)]
    return " | ".join(map(str, [*shape, config.model.model_dump_json(), config.train.catalogue, config.train.sampled]))


def probe_seconds(data: Prepared, config: Config, step: float, sequence: float) -> float:
    """Seconds that measuring this speed takes, of a plan that must not depend on whether it was kept."""
    return PROBE * step + 2 * probed(data, config) * sequence


def probed(data: Prepared, config: Config) -> int:
    """Number of validation sequences that are scored to measure the speed."""
    validation = data["validation"]
    positions = min(validation.events / max(len(validation), 1), float(config.data.length))
    fitting = int(MOST_SCORES / max(positions * data.n_items, 1.0))
    return min(len(validation), PROBED, max(FEWEST_PROBED, fitting))


def _folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "localpolicy"


def _kept(place: Path) -> dict[str, Any]:
    """Stored speeds by shape of work; empty if the file cannot be read."""
    try:
        content = read_json(place)
    except (LocalPolicyError, OSError):
        return {}
    if not isinstance(content, dict):
        return {}
    return {key: value for key, value in content.items() if _is_speed(value)}


def _is_speed(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(v, float) and 0 < v < math.inf for v in value)


class _Watch:
    """Stopwatch of wall-clock and processor seconds since it was made."""

    def __init__(self, *, on_device: bool) -> None:
        self.on_device, self.clock, self.processor = on_device, time.perf_counter(), time.process_time()

    @property
    def seconds(self) -> float:
        passed = time.perf_counter() - self.clock
        return max(passed if self.on_device else min(passed, time.process_time() - self.processor), 1e-6)


def _measured(data: Prepared, config: Config) -> Speed:
    """Measure the speed by a few training steps and a part of a validation, on one thread as in training."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _of_one_thread(data, config)
    finally:
        torch.set_num_threads(threads)


def _of_one_thread(data: Prepared, config: Config) -> Speed:
    on_device = config.train.device != "cpu"
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer.start(data, Run(folder), config)
        batches = trainer.windows.shuffled(config.train.batch_size, seed=0, epoch=0)
        trainer.network.train()
        watch, steps = _Watch(on_device=on_device), 0
        for number, batch in zip(range(PROBE), batches, strict=False):
            if number == WARM:
                watch, steps = _Watch(on_device=on_device), 0
            if len(batch.scored):
                trainer.step(batch, number)
            steps += 1
        step, scoring = watch.seconds / max(steps, 1), math.inf
        part = trainer.held_out.only(spread(len(trainer.held_out), probed(data, config)))
        for _ in range(2):  # the first also pays for imports
            watch = _Watch(on_device=on_device)
            validate(trainer.policy(), part, config, data=data, step=0, ranks=trainer.ranks)
            scoring = min(scoring, watch.seconds)
    return Speed(step, scoring / max(len(part), 1))


def spread(every: int, few: int) -> np.ndarray:
    """Indices of `few` of `every` elements, evenly spaced."""
    return np.unique(np.linspace(0, max(every - 1, 0), min(every, few)).astype(np.int64))
