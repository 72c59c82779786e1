"""Files of a run: written by `train`, read by everything else.

config.yaml          the whole configuration, resolved
policy.safetensors   the selected weights (best epoch); policy.json and items.parquet describe them
likeliest.safetensors  the weights of the epoch with the best held-out likelihood, if another metric selected
last.safetensors     the weights of the last epoch
metrics.jsonl        one line per validation: at each epoch's end, and between if train.validate_every says so
manifest.json        written last: a run without it is not finished; holds the digests of all files above
checkpoint/          while training; so is .lock, which keeps other processes from training into this folder
"""

from __future__ import annotations

import json
import platform
import resource
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
import torch
import yaml
from pydantic import BaseModel, ValidationError

from localpolicy.errors import DataError, RunError
from localpolicy.model.policy import FORMAT
from localpolicy.runs.config import Config
from localpolicy.runtime.files import (
    read_json,
    read_sealed,
    read_text,
    read_yaml,
    sealed,
    sha256,
    write_json,
    write_text,
)
from localpolicy.runtime.full_disk import raise_on_full_disk
from localpolicy.version import __version__

LIKELIEST = "likeliest.safetensors"
# Before one of these is opened, its digest is compared.
FILES = (
    "config.yaml", "policy.json", "policy.safetensors", LIKELIEST, "last.safetensors", "items.parquet", "metrics.jsonl",
)  # fmt: skip
FOLDERS = ("evaluation", "tensorboard", "checkpoint", "stages")
SAVED = ("manifest.json", "checkpoint/step-*")  # a run, or a stage of one, that is done or can be resumed


class ManifestSchema(BaseModel):
    """Entries that every manifest has."""

    objective: str
    seed: int | None  # a baseline has none
    data: dict[str, Any]
    selected: dict[str, Any]
    policy_sha256: str


class RunFolder:
    """Files of a run: an altered one is never opened, and an incomplete folder is never taken for a run."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    @property
    def finished(self) -> bool:
        """Whether training has ended and the manifest is written."""
        return (self.folder / "manifest.json").exists()

    @property
    def started(self) -> bool:
        """Whether training has begun in this folder."""
        return (self.folder / "config.yaml").exists()

    @property
    def saved(self) -> bool:
        """Whether training can resume here: from a checkpoint, or a finished stage or run."""
        return any(any(self.folder.glob(f"{where}{name}")) for where in ("", "stages/*/") for name in SAVED)

    @property
    def stages(self) -> Path:
        """Folder of the networks of a closed form while they are trained, each as a run."""
        return self.folder / "stages"

    @property
    def manifest(self) -> dict[str, Any]:
        """Content of manifest.json: data digest, versions, seed, timing, selection."""
        if not self.finished:
            what = (
                "has not finished training; continue with --resume"
                if self.started
                else "is not a run; 'lpi train' makes one"
            )
            raise RunError(f"{self.folder} {what}.")
        content = read_sealed(self.folder / "manifest.json")
        if isinstance(content, dict) and content.keys() >= ManifestSchema.model_fields.keys():
            with suppress(ValidationError):
                ManifestSchema.model_validate(content)
                return FORMAT.upgraded({"format": 1, **content}, self.folder)  # the first had no number here
        if isinstance(content, dict) and "counts" in content:
            raise RunError(f"{self.folder} is a prepared data set; expected a run, as 'lpi train' makes one.")
        raise RunError(f"{self.folder / 'manifest.json'} is not a run's: it was altered. Train again.")

    def write_config(self, config: Config) -> None:
        """Write the configuration."""
        write_text(self.folder / "config.yaml", yaml.safe_dump(config.model_dump(), sort_keys=False))

    def metrics(self) -> list[dict[str, Any]]:
        """Entries of metrics.jsonl, one per validation."""
        if self.finished:
            self.refuse_altered("metrics.jsonl")
        try:
            return [json.loads(line) for line in self._metric_lines()]
        except json.JSONDecodeError as error:
            raise RunError(f"{self.folder / 'metrics.jsonl'} was altered: a line is no JSON ({error}).") from None

    def _metric_lines(self) -> list[str]:
        path = self.folder / "metrics.jsonl"
        return read_text(path).splitlines() if path.exists() else []

    def append_metrics(self, line: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        path = self.folder / "metrics.jsonl"
        with raise_on_full_disk(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def keep_metric_lines(self, count: int) -> None:
        """Keep the first `count` lines: later ones will be written again, and the last may be half a line."""
        lines = self._metric_lines()[:count]
        write_text(self.folder / "metrics.jsonl", "".join(f"{line}\n" for line in lines))

    def clear(self) -> None:
        """Remove an earlier run's files: its manifest first, so that the rest is never taken for a whole run."""
        self.refuse_others()
        for name in ("manifest.json", *FILES):
            (self.folder / name).unlink(missing_ok=True)
        for name in FOLDERS:
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def refuse_others(self) -> None:
        """Raise RunError if a file with one of our names belongs to something else: data, an export, a project."""
        for name, read in (("manifest.json", read_json), ("config.yaml", read_yaml)):
            if not (self.folder / name).exists():
                continue
            try:
                content = read(self.folder / name)
            except DataError:
                return  # cut short or altered: what a run may leave, and what else is there says no more
            if not isinstance(content, dict) or "objective" not in content:
                raise RunError(
                    f"{self.folder} is not replaced: its {name} is not a run's, but a data set's or yours. Choose "
                    "another folder."
                )

    def finish(self, content: dict[str, Any]) -> None:
        """Write the manifest, which marks the run as finished."""
        files = {name: sha256(self.folder / name) for name in FILES if (self.folder / name).exists()}
        manifest = {
            "format": FORMAT.current,
            **content,
            "peak_memory_bytes": _peak_memory(),
            "policy_sha256": files["policy.safetensors"],
            "files": files,
            "versions": {
                "localpolicy": __version__,
                "python": platform.python_version(),
                "torch": torch.__version__,
                "numpy": numpy.__version__,
            },
        }
        write_json(self.folder / "manifest.json", sealed(manifest))

    def verify(self) -> list[str]:
        """Read every file that decides a result, compare its digest, and return the files' names."""
        digests = self._digests()
        self.refuse_altered(*digests)
        return list(digests)

    def _digests(self) -> dict[str, str]:
        """Digests of the files when training ended, by name."""
        manifest = self.manifest  # refuses a run that is not finished
        recorded = manifest.get("files", {})
        if not isinstance(recorded, dict):
            raise RunError(f"{self.folder / 'manifest.json'} is not a run's: it was altered. Train again.")
        known = {name: str(recorded[name]) for name in FILES if name in recorded}
        return {**known, "policy.safetensors": str(manifest["policy_sha256"])}

    def refuse_altered(self, *names: str) -> None:
        """Raise RunError if one of these files is missing or altered since training. Called before they are opened."""
        digests = self._digests()
        for name in names:
            path = self.folder / name
            if not path.is_file():
                raise RunError(f"{path} is missing: the run is damaged. Bring it back, or train again.")
            if name in digests and sha256(path) != digests[name]:
                raise RunError(f"{path} was altered (its digest differs). Bring it back, or train again.")


def _peak_memory() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
