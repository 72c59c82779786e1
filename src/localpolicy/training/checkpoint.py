"""Checkpoints: the whole state of a run, so that it resumes as if never stopped; whole or absent, without pickle.

A step's randomness (dropout, coins, negatives) is seeded by (seed, step) alone, and the order of the data by (seed,
epoch); so a checkpoint holds weights, optimiser moments and counters, and no generator state. Each one is a pair
`step-N.safetensors` + `step-N.json`; the JSON is written last and holds the digest of the other's tensors.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from localpolicy.errors import RunError
from localpolicy.model.network import Network
from localpolicy.model.weights import digest, digest_on_disk, fill, load_weights, save_weights, stored, whole_tables
from localpolicy.runs.config import COMPUTED_BY, Config
from localpolicy.runtime.files import read_json, write_json
from localpolicy.runtime.formats import Format
from localpolicy.runtime.ranks import ALONE, Ranks
from localpolicy.training.average import KEY as AVERAGE

FORMAT = Format(1, "start again with --force")
KEEP = 2  # the newest, and one before it should the newest be damaged


HOW = COMPUTED_BY | {"epochs"}  # settings that may differ when a run resumes


def lasting(config: Config) -> dict[str, Any]:
    """Settings that must not change between a checkpoint and the run that resumes from it."""
    return config.model_dump(exclude={"train": HOW, "auto": True})


class Progress(NamedTuple):
    """Progress of a run: steps, epochs, its log, and its best validations so far."""

    step: int = 0  # optimiser steps in all
    epoch: int = 0  # epochs finished
    batch: int = 0  # batches done of the current epoch
    log: dict[str, Any] | None = None  # log of the current epoch
    metric_lines: int = 0  # lines of metrics.jsonl
    best: float | None = None
    best_epoch: int | None = None
    best_step: int | None = None
    likeliest: float | None = None  # the best by held-out likelihood, whatever the rule: see `Run.policy`
    likeliest_epoch: int | None = None
    likeliest_step: int | None = None
    stale: int = 0  # validations since the best one
    began: dict[str, Any] | None = None  # the older run whose weights it started from

    def due(self, every: int | None) -> bool:
        """Whether the step is a multiple of `every`."""
        return every is not None and self.step % every == 0

    def judged(self, value: float, logp: float | None, *, epoch: int) -> Progress:
        """Progress after a validation: the best by the rule (`value`) and by held-out likelihood, first of equals."""
        better = self.best is None or value > self.best
        done = self._replace(metric_lines=self.metric_lines + 1, stale=0 if better else self.stale + 1)
        if better:
            done = done._replace(best=value, best_epoch=epoch, best_step=self.step)
        if logp is not None and (self.likeliest is None or logp > self.likeliest):
            done = done._replace(likeliest=logp, likeliest_epoch=epoch, likeliest_step=self.step)
        return done


class Checkpoints:
    """Checkpoints of one run, in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _names(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        return sorted(self.folder.glob("step-*.json"), key=lambda path: int(path.stem.split("-")[1]))

    def save(
        self,
        network: Network,
        optimiser: torch.optim.Optimizer,
        progress: Progress,
        facts: dict[str, Any],
        *,
        ranks: Ranks = ALONE,
    ) -> None:
        """Write a checkpoint, then remove those that are too old. All ranks call; the leader writes."""
        if not ranks.leads and network.shard is None:
            return
        tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
        names: dict[Tensor, str] = {parameter: name for name, parameter in network.named_parameters()}
        for parameter, state in optimiser.state.items():
            for key, value in state.items():
                tensors[f"optimiser.{key}.{names[parameter]}"] = value
        tensors = whole_tables(tensors, split=_split(network), shard=network.shard)
        if not ranks.leads:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        weights = self.folder / f"step-{progress.step}.safetensors"
        tensors = stored(tensors)
        with ThreadPoolExecutor(1) as beside:  # a digest takes as long as writing: neither waits for the other
            computed = beside.submit(digest, sorted(tensors.items()))
            save_weights(tensors, weights)
        content = {"format": FORMAT.current, "progress": progress._asdict(), "digest": computed.result(), **facts}
        write_json(self.folder / f"step-{progress.step}.json", content)
        for old in self._names()[:-KEEP]:
            old.unlink()
            old.with_suffix(".safetensors").unlink(missing_ok=True)

    def load(
        self,
        network: Network,
        optimiser: torch.optim.Optimizer,
        facts: dict[str, Any],
        *,
        older: bool = False,
    ) -> Progress | None:
        """Load the newest checkpoint into network and optimiser and return its progress; None without a checkpoint.

        `older` takes the one before it, for a damaged newest one. `facts` must equal those it was saved with.
        """
        names = self._names()
        if older:
            names = names[:-1]
        if not names:
            return None
        about = FORMAT.upgraded(read_json(names[-1]), names[-1])
        weights = names[-1].with_suffix(".safetensors")
        if digest_on_disk(weights) != about["digest"]:
            raise RunError(
                f"{weights} is truncated or altered. Continue from the checkpoint before it with --resume-older, "
                "or start again with --force."
            )
        for name, value in facts.items():
            if about.get(name) != value:
                raise RunError(f"{names[-1]} was made with another {name}; it cannot continue with this one.")
        tensors = load_weights(weights, split=_split(network), shard=network.shard)
        prefix = "network."
        state = {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
        fill(network, state, source=weights)
        parameters = dict(network.named_parameters())
        for name, value in tensors.items():
            if name.startswith("optimiser."):
                _, key, parameter = name.split(".", 2)
                own = parameters[parameter]
                optimiser.state[own][key] = value.to(own.device)  # fused Adam wants its step count there too
        return Progress(**about["progress"])

    def clear(self) -> None:
        """Remove all checkpoints of a finished run."""
        for path in self.folder.glob("step-*"):
            path.unlink()
        if self.folder.exists():
            self.folder.rmdir()


def _split(network: Network) -> set[str]:
    """Names of a checkpoint's tensors whose rows are split over ranks."""
    prefixes = ("network", *(f"optimiser.{moment}" for moment in ("exp_avg", "exp_avg_sq", AVERAGE)))
    return {f"{prefix}.{name}" for prefix in prefixes for name in network.split}
