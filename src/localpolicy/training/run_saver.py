"""Checkpoints and selected weights of a run while it trains.

Selected weights go to disk with the next checkpoint, so that the two always agree. On a GPU, where an epoch may take
less time than saving it, neither is written after every epoch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from localpolicy.catalogue import backend, sharded
from localpolicy.data.batches import Windows
from localpolicy.data.store import Prepared
from localpolicy.model.network import Network
from localpolicy.model.weights import save_weights, unique, whole_tables
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.ranks import Ranks
from localpolicy.training.checkpoint import Checkpoints, Progress, lasting
from localpolicy.training.cold_start import fit_rise
from localpolicy.training.temperature import scales, sharpened, sharpness
from localpolicy.training.validation import batch_size

SAVE_EVERY = 30.0  # seconds between checkpoints at epoch ends, on a GPU


@dataclass
class RunSaver:
    """Checkpoints and selected weights of one run."""

    data: Prepared
    run: Run
    config: Config
    ranks: Ranks
    network: Network
    optimiser: torch.optim.Optimizer
    held_out: Windows
    logging: str | None  # digest of the frozen μ̂, if there is one
    chosen: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # weights that are not on disk yet
    saved: float = field(default_factory=time.monotonic)  # when the last checkpoint was made

    @property
    def checkpoints(self) -> Checkpoints:
        """Checkpoints in the run's `checkpoint` folder."""
        return Checkpoints(self.run.folder / "checkpoint")

    @property
    def _facts(self) -> dict[str, Any]:
        """Facts that must not change between a checkpoint and the run that resumes from it."""
        return {"data": self.data.digest, "config": lasting(self.config), "logging policy": self.logging}

    def load(self, *, older: bool) -> Progress | None:
        """Resume from the newest checkpoint, or with `older` from the second newest; None without a checkpoint."""
        return self.checkpoints.load(self.network, self.optimiser, self._facts, older=older)

    def save(self, done: Progress) -> None:
        """Save a checkpoint, and the weights selected by then."""
        self._write()
        self.saved = time.monotonic()
        self.checkpoints.save(self.network, self.optimiser, done, self._facts, ranks=self.ranks)
        self.ranks.wait()

    @property
    def due(self) -> bool:
        """Whether to save at this epoch's end."""
        return time.monotonic() - self.saved >= self._save_every

    @property
    def _save_every(self) -> float:
        """Least seconds between checkpoints at epoch ends; 0 with several ranks, whose clocks differ."""
        train = self.config.train
        if train.checkpoint_seconds is not None:
            return train.checkpoint_seconds if self.ranks.alone else 0.0
        return SAVE_EVERY if train.device.startswith("cuda") and self.ranks.alone else 0.0

    @contextmanager
    def calibrated(self) -> Iterator[dict[str, float]]:
        """Context manager: set the temperature of the best held-out likelihood, if `train.calibrate` is on.

        The judged weights are those that are kept: without the temperature a network looks worse from the epoch on in
        which it becomes overconfident, long before it ranks best.
        """
        config, network = self.config, self.network
        if not (config.train.calibrate and config.objective.calibrated and scales(network)):
            yield {}
            return
        with network.evaluation_embeddings():
            self.fit_rise()
            size = batch_size(config)
            s = sharpness(network, self.held_out, self.data, self._catalogue, batch_size=size, ranks=self.ranks)
        with sharpened(network, s):
            yield {"temperature": 1 / s}

    @property
    def _catalogue(self) -> ModuleType:
        return backend(self.config.train.catalogue) if self.network.shard is None else sharded

    def fit_rise(self) -> None:
        """Fit the log-weight of items without events to the held-out sequences."""
        fit_rise(self.network, self.held_out, self._catalogue, batch_size=batch_size(self.config), ranks=self.ranks)

    def choose(self, name: str) -> None:
        """Select the present weights under this name."""
        if self._save_every:
            self.chosen[name] = {key: tensor.clone() for key, tensor in unique(self.network.plain_state()).items()}
        else:
            self._save_weights(name)

    def _write(self) -> None:
        for name, state in self.chosen.items():
            save_weights(state, self.run.folder / name)
        self.chosen.clear()

    def _save_weights(self, name: str) -> None:
        """Write selected weights. All ranks call; the leader writes."""
        state = whole_tables(self.network.plain_state(), split=self.network.split, shard=self.network.shard)
        if self.ranks.leads:
            save_weights(state, self.run.folder / name)

    def finish(self) -> None:
        """Write the selected weights, and those of the last epoch."""
        self._write()
        self._save_weights("last.safetensors")
