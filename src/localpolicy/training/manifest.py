"""Manifest of a trained run: settings, training, and the selected weights."""

from __future__ import annotations

from typing import Any

from localpolicy.data.store import Prepared
from localpolicy.model.network import Network
from localpolicy.runs.config import Config
from localpolicy.runs.folder import LIKELIEST
from localpolicy.runs.run import Run
from localpolicy.runtime.files import sha256
from localpolicy.training.checkpoint import Progress


def manifest_of(
    run: Run, data: Prepared, config: Config, network: Network, done: Progress, *, processes: int, seconds: float,
    logging: dict[str, Any] | None, captured: bool, not_captured: str | None,
) -> dict[str, Any]:  # fmt: skip
    """Manifest: objective, seed, data, weights by the rule and by likelihood, time and memory."""
    likeliest = run.folder / LIKELIEST
    return {
        "objective": config.objective.name,
        "seed": config.train.seed,
        "data": {**run.data_location(data.path), "digest": data.digest, "kind": data.kind},
        "selected": {
            "by": config.train.select,
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
        "patience": config.train.patience,
        **({"auto": config.auto} if config.auto else {}),
        **({} if done.began is None else {"warm_start": done.began}),
        **({} if logging is None else {"logging": logging}),
        "processes": processes,
        "epochs": done.epoch,
        "steps": done.step,
        "seconds": round(seconds, 3),
        "parameters": network.n_parameters,
        "catalogue": "sharded" if network.shard is not None else config.train.catalogue,
        "steps_captured": captured,
        **({} if not_captured is None else {"steps_not_captured": not_captured}),
    }
