"""A run folder: what `train` writes and everything else reads.

config.yaml          the whole configuration, resolved
policy.safetensors   the selected weights (best epoch); policy.json and items.parquet say what they are
likeliest.safetensors  the weights of the epoch with the best held-out likelihood, where another figure selected
last.safetensors     the weights of the last epoch
metrics.jsonl        one line per validation: at each epoch's end, and between where train.validate_every says so
manifest.json        written last: a run without it is not finished; holds the digests of all files above
checkpoint/          while training; so is .lock, which keeps other processes from training into this folder
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import resource
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from pydantic import BaseModel, ValidationError
from torch import nn

from localpolicy import __version__
from localpolicy.catalogue.shards import Shard
from localpolicy.errors import ConfigError, DataError, RunError
from localpolicy.model.lists import Lists
from localpolicy.model.policy import Policy
from localpolicy.results import Result
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
from localpolicy.runtime.full_disk import told_when_full

# The figure that every run is also kept by, so that two runs always have one in common; on a sparse log it has ranking
# beside it (see `training.selection.imitation`).
LIKELIHOOD = "logp"
PLAIN = "plain_logp"  # where the likelihood is that of a mixture with popularity, that of the policy alone
IMITATION = f"{LIKELIHOOD} + 3*all.nDCG@20"
BY_LIKELIHOOD = (LIKELIHOOD, IMITATION)
LIKELIEST = "likeliest.safetensors"
# Before one of these is opened, its digest is compared.
FILES = (
    "config.yaml", "policy.json", "policy.safetensors", LIKELIEST, "last.safetensors", "items.parquet", "metrics.jsonl",
)  # fmt: skip
FOLDERS = ("evaluation", "tensorboard", "checkpoint", "stages")
SAVED = ("manifest.json", "checkpoint/step-*")  # a run, or a stage of one, that is done or can go on


class Recorded(BaseModel):
    """What every manifest holds."""

    objective: str
    seed: int | None  # a baseline has none
    data: dict[str, Any]
    selected: dict[str, Any]
    policy_sha256: str


class Run(Result):
    """A run on disk, finished or not."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def summary(self) -> str:
        """What was trained, and how well it did on validation."""
        if not self.finished:
            return f"{self.folder}, not finished"
        manifest, selected = self.manifest, self.manifest["selected"]
        kept = f"{selected['by']} {selected['value']:.4f}"
        if "stages" not in manifest:
            kept = f"epoch {selected['epoch']} of {manifest['epochs']} by {kept}"
        return f"{manifest['objective']}, seed {manifest['seed']}, {kept}, in {self.folder}"

    def selection(self) -> dict[str, str]:
        """What was kept, in words: of each network its epoch, by what, and on which validation sequences.

        A closed form is put together from networks that were each kept at an epoch of their own, on every second
        sequence (the others choose β): it has no epoch itself, and its figure is of all sequences.
        """
        manifest, kept = self.manifest, self.selected_metrics()
        selected, figures = manifest["selected"], kept["validation"]
        value = f"{selected['value']:.5f}"
        if stages := manifest.get("stages"):
            by = _rule(selected["by"], figures, half=False)
            rows = {}
            for name, stage in stages.items():
                network = "logging policy μ̂" if name == "logging" else name.replace("-", " ")
                what = f"{network}: selected epoch, by {_rule(stage['selected']['by'], figures, half=True)}"
                epoch = stage["selected"]["epoch"]
                rows[what] = f"{epoch} of {stage['epochs']}{'' if epoch else ' (its start)'}"
            return {**rows, f"the policy made of them: {by}": value}
        within = f" (step {kept['step']})" if "epoch_share" in kept else ""  # of a validation within an epoch
        by = _rule(selected["by"], figures, half=self.config.train.choose_on == "half")
        return {"selected epoch": f"{selected['epoch']} of {manifest['epochs']}{within}", f"selected by {by}": value}

    def to_dict(self) -> dict[str, Any]:
        """The manifest, and one entry per validation."""
        return {**self.manifest, "metrics": self.metrics()}

    def to_arrow(self) -> pa.Table:
        """One row per validation: epoch, step, and every figure as a column (`validation.AR@1`)."""
        return pa.Table.from_pylist([dict(_flat(line)) for line in self.metrics()])

    @property
    def finished(self) -> bool:
        """Whether training came to its end."""
        return (self.folder / "manifest.json").exists()

    @property
    def started(self) -> bool:
        """Whether training has begun in this folder."""
        return (self.folder / "config.yaml").exists()

    @property
    def saved(self) -> bool:
        """Whether there is anything to go on from: a checkpoint, or a stage or run that is done."""
        return any(any(self.folder.glob(f"{where}{name}")) for where in ("", "stages/*/") for name in SAVED)

    @property
    def stages(self) -> Path:
        """Where the towers of a closed form are trained, each a run of its own, until it is finished."""
        return self.folder / "stages"

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
        content = read_sealed(self.folder / "manifest.json")
        if isinstance(content, dict) and content.keys() >= Recorded.model_fields.keys():
            with suppress(ValidationError):
                Recorded.model_validate(content)
                return content
        if isinstance(content, dict) and "counts" in content:
            raise RunError(f"{self.folder} is a prepared data set; expected a run, as 'lpi train' makes one.")
        raise RunError(f"{self.folder / 'manifest.json'} is not a run's: it was altered. Train again.")

    @property
    def kept_by(self) -> str:
        """The figure that selected its weights. Of several towers, that of μ̂."""
        manifest = self.manifest
        if "stages" not in manifest:
            return str(manifest["selected"]["by"])
        return str(manifest["stages"].get("logging", {}).get("selected", {}).get("by", LIKELIHOOD))

    @property
    def out_of_time(self) -> bool:
        """Whether its minutes ended training, before its epochs did."""
        config, manifest = self.config.train, self.manifest
        ended = config.minutes is not None and manifest["seconds"] >= 60 * config.minutes
        return ended and manifest["epochs"] < config.epochs

    @property
    def trained_sha256(self) -> str:
        """Of the weights as they were trained: an extended run (`lpi extend`) has those of the run it comes from."""
        manifest = self.manifest
        return str(manifest.get("extended", {}).get("trained", manifest["policy_sha256"]))

    @property
    def digest(self) -> str:
        """Of everything that changes an answer: weights, network (a closed form's β is there), events, items.

        Equal digests mean equal policies; who trained it, and by which objective, is no part of it.
        """
        about, items = read_json(self.folder / "policy.json"), pq.read_table(self.folder / "items.parquet")["item_id"]
        content = {
            **about, "origin": about["origin"]["events"], "weights": self.manifest["policy_sha256"],
            "items": items.to_pylist(),
        }  # fmt: skip
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def version(self) -> str:
        """What an impression log calls the policy that served it: the beginning of its digest."""
        return self.digest[:16]

    def data_location(self, data: Path) -> dict[str, str]:
        """The path of the data as given, and relative to the run: that one holds where both move together."""
        return {"path": str(data), "from_run": os.path.relpath(data.resolve(), self.folder.resolve())}

    @property
    def data_folders(self) -> list[Path]:
        """Where the data may be: the original folder, and the one relative to the run, if both were moved."""
        recorded = self.manifest["data"]
        moved = [(self.folder / recorded["from_run"]).resolve()] if "from_run" in recorded else []  # older runs lack it
        return [Path(recorded["path"]), *moved]

    @property
    def config(self) -> Config:
        """The resolved configuration."""
        if not self.started:
            raise RunError(f"{self.folder} is not a run (no config.yaml); 'lpi train' makes one.")
        if self.finished:
            self.refuse_altered("config.yaml")
        path = self.folder / "config.yaml"
        content = read_yaml(path)
        if not isinstance(content, dict):
            raise RunError(f"{path} holds no settings: it was altered. Train again.")
        try:
            return Config.parse(content, context={"recorded": True})
        except ConfigError as error:
            raise RunError(f"{path} does not fit this version: {error}") from None

    def policy(
        self,
        *,
        beta: float | None = None,
        last: bool = False,
        likeliest: bool = False,
        backbone: nn.Module | None = None,
        shard: Shard | None = None,
    ) -> Policy:
        """The selected policy, that of the last epoch, or the `likeliest`: of the best held-out likelihood.

        With `beta`, the dial; with `shard`, this rank's rows.
        """
        manifest = self.manifest  # refuses a run that is not finished
        weights = "last.safetensors" if last else "policy.safetensors"
        if likeliest and self.kept_by not in BY_LIKELIHOOD:
            if "sha256" not in manifest.get("likeliest", {}):
                raise RunError(
                    f"{self.folder} kept no weights by likelihood (an older version trained it). Train again."
                )
            weights = LIKELIEST
        self.refuse_altered(weights, "policy.json", "items.parquet")
        return Policy.load(self.folder, beta=beta, weights=weights, backbone=backbone, shard=shard)

    def recommend(self, histories: Any, k: int = 10, **options: Any) -> Lists:
        """The k best items for each history: lists of item ids, or a frame with a row per event.

        See `Policy.recommend` for the options.
        """
        return self.policy(beta=options.pop("beta", None)).recommend(histories, k, **options)

    def embeddings(self, out: Path | str | None = None) -> Any:
        """The items' rows as a frame: item_id, name where there is one, embedding; with `out` as a Parquet file too."""
        from localpolicy.runs.similar import embeddings

        return embeddings(self, out)

    def verify(self) -> list[str]:
        """Read every file that decides a result and compare its digest; gives their names."""
        digests = self._digests()
        self.refuse_altered(*digests)
        return list(digests)

    def _digests(self) -> dict[str, str]:
        """By name, as they were when training ended. A run of an earlier version knows that of its weights alone."""
        manifest = self.manifest  # refuses a run that is not finished
        recorded = manifest.get("files", {})
        if not isinstance(recorded, dict):
            raise RunError(f"{self.folder / 'manifest.json'} is not a run's: it was altered. Train again.")
        known = {name: str(recorded[name]) for name in FILES if name in recorded}
        return {**known, "policy.safetensors": str(manifest["policy_sha256"])}

    def refuse_altered(self, *names: str) -> None:
        """Raise where one of its files is missing, or other than training left it. Before any of them is opened."""
        digests = self._digests()
        for name in names:
            path = self.folder / name
            if not path.is_file():
                raise RunError(f"{path} is missing: the run is damaged. Bring it back, or train again.")
            if name in digests and sha256(path) != digests[name]:
                raise RunError(f"{path} was altered (its digest differs). Bring it back, or train again.")

    def metrics(self) -> list[dict[str, Any]]:
        """One entry per validation."""
        if self.finished:
            self.refuse_altered("metrics.jsonl")
        try:
            return [json.loads(line) for line in self._metric_lines()]
        except json.JSONDecodeError as error:
            raise RunError(f"{self.folder / 'metrics.jsonl'} was altered: a line is no JSON ({error}).") from None

    def _metric_lines(self) -> list[str]:
        path = self.folder / "metrics.jsonl"
        return read_text(path).splitlines() if path.exists() else []

    def selected_metrics(self) -> dict[str, Any]:
        """The entry of the weights that were kept."""
        step = self.manifest["selected"]["step"]
        return next(line for line in self.metrics() if line["step"] == step)

    def write_config(self, config: Config) -> None:
        """Write the configuration."""
        write_text(self.folder / "config.yaml", yaml.safe_dump(config.model_dump(), sort_keys=False))

    def append_metrics(self, line: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        path = self.folder / "metrics.jsonl"
        with told_when_full(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def keep_metric_lines(self, count: int) -> None:
        """Keep the first `count` lines: those after the checkpoint come again, and the last may be half a line."""
        lines = self._metric_lines()[:count]
        write_text(self.folder / "metrics.jsonl", "".join(f"{line}\n" for line in lines))

    def clear(self) -> None:
        """Remove what an earlier run left: its manifest first, so that what remains is never taken for whole."""
        self.refuse_others()
        for name in ("manifest.json", *FILES):
            (self.folder / name).unlink(missing_ok=True)
        for name in FOLDERS:
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def refuse_others(self) -> None:
        """Raise where a file with the name of one of ours is of something else: a data set, an export, a project."""
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
        """Write the manifest: from now on the run is whole."""
        files = {name: sha256(self.folder / name) for name in FILES if (self.folder / name).exists()}
        manifest = {
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


def _rule(by: str, figures: Mapping[str, float], *, half: bool) -> str:
    """A rule that selects, with what its words leave open: on which sequences, and which likelihood."""
    mixed = f" ({LIKELIHOOD}: of a mixture with popularity)" if PLAIN in figures and LIKELIHOOD in by else ""
    return f"{by}{mixed} on {'every second validation sequence' if half else 'validation'}"


def _flat(content: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Nested fields with their names joined by dots."""
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _peak_memory() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
