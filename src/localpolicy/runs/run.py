"""A run folder: what `train` writes and everything else reads.

config.yaml          the whole configuration, resolved
policy.safetensors   the selected weights (best epoch); policy.json and items.parquet say what they are
last.safetensors     the weights of the last epoch
metrics.jsonl        one line per validation: at each epoch's end, and between where train.validate_every says so
manifest.json        written last: a run without it is not finished
checkpoint/          while training, and .lock, which keeps others from training into the same folder
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy
import torch
import yaml
from torch import nn

from localpolicy import __version__
from localpolicy.catalogue.shards import Shard
from localpolicy.errors import RunError
from localpolicy.model.policy import Policy
from localpolicy.runs.config import Config
from localpolicy.runtime.files import read_json, sha256, told_when_full, whole_file, write_json

RECORDED = {"objective", "seed", "data", "selected", "policy_sha256"}  # what every manifest holds


class Run:
    """A run on disk, finished or not."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    @property
    def finished(self) -> bool:
        """Whether training came to its end."""
        return (self.folder / "manifest.json").exists()

    @property
    def started(self) -> bool:
        """Whether there is anything of a run here."""
        return (self.folder / "config.yaml").exists()

    @property
    def manifest(self) -> dict[str, Any]:
        """Data digest, versions, seed, timing, selection."""
        if not self.finished:
            what = (
                "has not finished training; go on with --resume"
                if self.started
                else "is not a run; 'lpi train' makes one"
            )
            raise RunError(f"{self.folder} {what}.")
        found = read_json(self.folder / "manifest.json")
        if isinstance(found, dict) and found.keys() >= RECORDED:
            return found
        if isinstance(found, dict) and "counts" in found:
            raise RunError(f"{self.folder} is a prepared data set; expected a run, as 'lpi train' makes one.")
        raise RunError(f"{self.folder / 'manifest.json'} is not a run's: it was altered. Train again.")

    @property
    def version(self) -> str:
        """What an impression log calls the policy that served it: the beginning of its weights' digest."""
        return str(self.manifest["policy_sha256"])[:16]

    def where(self, data: Path) -> dict[str, str]:
        """Where the data lie: as given, and as seen from here, which stays true where both move together."""
        return {"path": str(data), "from_run": os.path.relpath(data.resolve(), self.folder.resolve())}

    @property
    def data_places(self) -> list[Path]:
        """Where the data may lie now: where they were, and where they lie if they moved together with the run."""
        about = self.manifest["data"]
        moved = [(self.folder / about["from_run"]).resolve()] if "from_run" in about else []  # older runs lack it
        return [Path(about["path"]), *moved]

    @property
    def config(self) -> Config:
        """The resolved configuration."""
        if not self.started:
            raise RunError(f"{self.folder} is not a run (no config.yaml); 'lpi train' makes one.")
        try:
            return Config.parse(yaml.safe_load((self.folder / "config.yaml").read_text()), context={"recorded": True})
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise RunError(f"{self.folder / 'config.yaml'} cannot be read ({error}): it was altered.") from None

    def policy(
        self,
        *,
        beta: float | None = None,
        last: bool = False,
        backbone: nn.Module | None = None,
        shard: Shard | None = None,
    ) -> Policy:
        """The selected policy, or that of the last epoch; with `beta`, the dial; with `shard`, this rank's rows."""
        digest = self.manifest["policy_sha256"]  # refuses a run that is not finished
        weights = "last.safetensors" if last else "policy.safetensors"
        if not last and sha256(self.folder / weights) != digest:
            raise RunError(f"{self.folder / weights} was altered (its digest differs). Train again.")
        return Policy.load(self.folder, beta=beta, weights=weights, backbone=backbone, shard=shard)

    def metrics(self) -> list[dict[str, Any]]:
        """One entry per validation."""
        try:
            return [json.loads(line) for line in self._metric_lines()]
        except json.JSONDecodeError as error:
            raise RunError(f"{self.folder / 'metrics.jsonl'} was altered: a line is no JSON ({error}).") from None

    def _metric_lines(self) -> list[str]:
        path = self.folder / "metrics.jsonl"
        return path.read_text().splitlines() if path.exists() else []

    def selected_metrics(self) -> dict[str, Any]:
        """The entry of the weights that were kept."""
        step = self.manifest["selected"]["step"]
        return next(line for line in self.metrics() if line["step"] == step)

    def write_config(self, config: Config) -> None:
        """Record what this run is."""
        with whole_file(self.folder / "config.yaml") as partial:
            partial.write_text(yaml.safe_dump(config.model_dump(), sort_keys=False))

    def append_metrics(self, line: dict[str, Any]) -> None:
        """One more line."""
        path = self.folder / "metrics.jsonl"
        with told_when_full(path), path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def keep_metric_lines(self, count: int) -> None:
        """Forget the lines written after the checkpoint one goes on from; the last may be half a line."""
        lines = self._metric_lines()[:count]
        with whole_file(self.folder / "metrics.jsonl") as partial:
            partial.write_text("".join(f"{line}\n" for line in lines))

    def clear(self) -> None:
        """Remove what an earlier run left: its manifest first, so that what remains is never taken for whole."""
        for name in ("manifest.json", "config.yaml", "policy.json", "policy.safetensors", "last.safetensors",
                     "items.parquet", "metrics.jsonl"):  # fmt: skip
            (self.folder / name).unlink(missing_ok=True)
        for name in ("evaluation", "tensorboard", "checkpoint"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def finish(self, content: dict[str, Any]) -> None:
        """Write the manifest: from now on the run is whole."""
        write_json(
            self.folder / "manifest.json",
            {
                **content,
                "peak_memory_bytes": _peak_memory(),
                "policy_sha256": sha256(self.folder / "policy.safetensors"),
                "versions": {
                    "localpolicy": __version__,
                    "python": platform.python_version(),
                    "torch": torch.__version__,
                    "numpy": numpy.__version__,
                },
            },
        )


def _peak_memory() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
