"""What the manifest of a trained run says: how it was trained, and which weights were selected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from localpolicy.runs.folder import LIKELIEST
from localpolicy.runtime.files import sha256
from localpolicy.training.checkpoint import Progress

if TYPE_CHECKING:
    from localpolicy.training.trainer import Trainer


def manifest_of(trainer: Trainer, done: Progress, seconds: float) -> dict[str, Any]:
    """Objective, seed, data, the selected and the likeliest weights, and what training took."""
    likeliest = trainer.run.folder / LIKELIEST
    return {
        "objective": trainer.config.objective.name,
        "seed": trainer.config.train.seed,
        "data": {
            **trainer.run.data_location(trainer.data.path),
            "digest": trainer.data.digest,
            "kind": trainer.data.kind,
        },
        "selected": {
            "by": trainer.config.train.select,
            "value": done.best,
            "epoch": done.best_epoch,
            "step": done.best_step,
        },
        "likeliest": {
            "value": done.likeliest,
            "epoch": done.likeliest_epoch,
            "step": done.likeliest_step,
            **({"sha256": sha256(likeliest)} if likeliest.exists() else {}),
        },
        "patience": trainer.config.train.patience,
        **({"auto": trainer.config.auto} if trainer.config.auto else {}),
        **({} if done.began is None else {"warm_start": done.began}),
        **({} if trainer.logging is None else {"logging": trainer.logging}),
        "processes": trainer.ranks.total,
        "epochs": done.epoch,
        "steps": done.step,
        "seconds": round(seconds, 3),
        "parameters": trainer.network.n_parameters,
        "catalogue": "sharded" if trainer.network.shard is not None else trainer.config.train.catalogue,
        "steps_captured": trainer.captured is not None and trainer.captured.refused is None,
        **({} if trainer.not_captured_because is None else {"steps_not_captured": trainer.not_captured_because}),
    }
