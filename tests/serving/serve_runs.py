"""Small runs to be served."""

from __future__ import annotations

from pathlib import Path

from localpolicy.data.store import Prepared
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.training.train import train


def small_run(
    data: Prepared, out: Path, *, objective: str = "mle", backbone: str = "sasrec", epochs: int = 1, seed: int = 0
) -> Run:
    """A network of width 8 over histories of at most 6."""
    settings = {
        "model": {"width": 8, "backbone": backbone, "blocks": 2, "event_embeddings": True},
        "objective": {"name": objective},
        "data": {"length": 6},
        "train": {"epochs": epochs, "seed": seed, "device": "cpu"},
    }
    return train(data, out=out, config=Config.parse(settings))
