"""RecTools' SASRecModel with full softmax, through its own `fit`: rectools_sasrec.py DATA OUT.json

Run by benchmarks/training.py with the Python of the environment that RecTools is installed in.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from clock import Clock, Settings, accelerator, read, report, two_cores
from pytorch_lightning import Callback, Trainer
from rectools import Columns
from rectools.dataset import Dataset
from rectools.models import SASRecModel


class Timer(Callback):
    """Ticks after each optimiser step. PAD is item 0, and no target."""

    def __init__(self, warm: int) -> None:
        self.clock = Clock(warm)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Watch the scores [batch, length, items + PAD] of the first step."""
        pl_module.torch_model.similarity_module.register_forward_hook(self.clock.look)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """One step more."""
        self.clock.tick(len(batch["y"]), int((batch["y"] != 0).sum()))


def trainer(epochs: int, warm: int, device: str) -> Trainer:
    """The trainer that SASRecModel makes for itself at verbose=0, and the timer."""
    return Trainer(
        max_epochs=epochs,
        min_epochs=epochs,
        deterministic=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        enable_checkpointing=False,
        devices=1,
        accelerator=device,
        callbacks=[Timer(warm)],
    )


def dataset(arrays: dict[str, np.ndarray]) -> Dataset:
    """The sequences as interactions, one second apart."""
    lengths = np.diff(arrays["offsets"])
    place = np.arange(len(arrays["item"])) - np.repeat(arrays["offsets"][:-1], lengths)
    interactions = pd.DataFrame(
        {
            Columns.User: np.repeat(np.arange(len(lengths)), lengths),
            Columns.Item: arrays["item"],
            Columns.Weight: 1.0,
            Columns.Datetime: pd.Timestamp("2025-01-01") + pd.to_timedelta(place, unit="s"),
        }
    )
    return Dataset.construct(interactions)


def model(settings: Settings) -> SASRecModel:
    """SASRecModel at our shape; what is not named is its default."""
    return SASRecModel(
        n_blocks=settings.blocks,
        n_heads=settings.heads,
        n_factors=settings.width,
        dropout_rate=settings.dropout,
        session_max_len=settings.length,
        batch_size=settings.batch,
        lr=settings.rate,
        loss="softmax",
        verbose=0,
        get_trainer_func=trainer,
        get_trainer_func_kwargs={"epochs": settings.epochs, "warm": settings.warm, "device": accelerator(settings)},
    )


def main(folder: Path, out: Path) -> None:
    """Train, and write what was measured."""
    settings, arrays = read(folder)
    if settings.device == "cpu":
        two_cores(settings.threads)
    fitted = model(settings).fit(dataset(arrays))
    [timer] = [one for one in fitted.fit_trainer.callbacks if isinstance(one, Timer)]  # `fit` copies its trainer
    report(
        timer.clock,
        out,
        version=version("rectools"),
        catalogue=timer.clock.scores[-1] - 1,  # PAD has a score too
        loss=fitted.lightning_model.loss_calculator.__name__,
        parameters=sum(parameter.numel() for parameter in fitted.torch_model.parameters()),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
