"""Run as users meet it: its settings, its selected weights and metrics, and its policy."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from torch import nn

from localpolicy.catalogue.shards import Shard
from localpolicy.errors import ConfigError, RunError
from localpolicy.model.lists import Lists
from localpolicy.model.policy import Policy
from localpolicy.model.similar import embedding_table, similar_items
from localpolicy.results import Result
from localpolicy.runs.config import Config
from localpolicy.runs.folder import LIKELIEST, RunFolder
from localpolicy.runtime.files import read_json, read_yaml

# The figure that every run is also kept by, so that two runs always have one in common; on a sparse log it has ranking
# added (see `training.selection.imitation`).
LIKELIHOOD = "logp"
PLAIN = "plain_logp"  # where the likelihood is that of a mixture with popularity, that of the policy alone
IMITATION = f"{LIKELIHOOD} + 3*all.nDCG@20"
BY_LIKELIHOOD = (LIKELIHOOD, IMITATION)


class Run(RunFolder, Result):
    """A run on disk, finished or not."""

    def summary(self) -> str:
        """Objective, data and selected epoch of the run, with its validation metrics."""
        if not self.finished:
            return f"{self.folder}, not finished"
        manifest, selected = self.manifest, self.manifest["selected"]
        kept = f"{selected['by']} {selected['value']:.4f}"
        if "stages" not in manifest:
            kept = f"epoch {selected['epoch']} of {manifest['epochs']} by {kept}"
        return f"{self.described}, seed {manifest['seed']}, {kept}, in {self.folder}"

    @property
    def described(self) -> str:
        """The objective, with the form of a policy that was made of other networks."""
        form = self.manifest.get("improvement", {}).get("form")
        return f"{self.manifest['objective']} ({form})" if form else str(self.manifest["objective"])

    def selection(self) -> dict[str, str]:
        """Text on the selection of each network: its epoch, the metric that selected it, and the validation sequences.

        A closed form is assembled from networks that were each selected at an epoch of their own, on every second
        sequence (the others choose β): it has no epoch itself, and its metric is over all sequences.
        """
        manifest, kept = self.manifest, self.selected_metrics()
        selected, figures = manifest["selected"], kept["validation"]
        value = f"{selected['value']:.5f}"
        if stages := manifest.get("stages"):
            by = _rule(selected["by"], figures, half=False)
            half = "calibration" in manifest.get("improvement", {})  # the others choose β
            rows = {}
            for name, stage in stages.items():
                network = "logging policy μ̂" if name == "logging" else name.replace("-", " ")
                what = f"{network}: selected epoch, by {_rule(stage['selected']['by'], figures, half=half)}"
                epoch = stage["selected"]["epoch"]
                rows[what] = f"{epoch} of {stage['epochs']}{'' if epoch else ' (its start)'}"
            return {**rows, f"the policy made of them: {by}": value}
        within = f" (step {kept['step']})" if "epoch_share" in kept else ""  # of a validation within an epoch
        by = _rule(selected["by"], figures, half=self.config.train.choose_on == "half")
        return {"selected epoch": f"{selected['epoch']} of {manifest['epochs']}{within}", f"selected by {by}": value}

    def to_dict(self) -> dict[str, Any]:
        """Manifest, and one entry per validation."""
        return {**self.manifest, "metrics": self.metrics()}

    def to_arrow(self) -> pa.Table:
        """One row per validation: epoch, step, and every metric as a column (`validation.AR@1`)."""
        return pa.Table.from_pylist([dict(_flat(line)) for line in self.metrics()])

    @property
    def kept_by(self) -> str:
        """Metric that selected the weights; of several towers, that of μ̂."""
        manifest = self.manifest
        if "stages" not in manifest:
            return str(manifest["selected"]["by"])
        return str(manifest["stages"].get("logging", {}).get("selected", {}).get("by", LIKELIHOOD))

    @property
    def out_of_time(self) -> bool:
        """Whether the time limit ended training, or its epochs ended while each was better than those before."""
        config, manifest = self.config.train, self.manifest
        if manifest["epochs"] >= config.epochs:
            return bool(manifest["selected"]["epoch"] == manifest["epochs"])
        return config.minutes is not None and manifest["seconds"] >= 60 * config.minutes

    @property
    def trained_sha256(self) -> str:
        """SHA-256 of the trained weights; an extended run (`lpi extend`) reports that of its source run."""
        manifest = self.manifest
        return str(manifest.get("extended", {}).get("trained", manifest["policy_sha256"]))

    @property
    def digest(self) -> str:
        """SHA-256 of everything that changes an answer: weights, network (with a closed form's β), events, items.

        Equal digests mean equal policies; the training code and the objective are no part of it.
        """
        about, items = read_json(self.folder / "policy.json"), pq.read_table(self.folder / "items.parquet")["item_id"]
        content = {
            **about, "origin": about["origin"]["events"], "weights": self.manifest["policy_sha256"],
            "items": items.to_pylist(),
        }  # fmt: skip
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def version(self) -> str:
        """Version that an impression log names as its policy: the beginning of the digest."""
        return self.digest[:16]

    def data_location(self, data: Path) -> dict[str, str]:
        """Path of the data as given, and relative to the run, which holds if both are moved together."""
        return {"path": str(data), "from_run": os.path.relpath(data.resolve(), self.folder.resolve())}

    @property
    def data_folders(self) -> list[Path]:
        """Folders where the data may be: the original one, and the one relative to the run."""
        recorded = self.manifest["data"]
        moved = [(self.folder / recorded["from_run"]).resolve()] if "from_run" in recorded else []  # older runs lack it
        return [Path(recorded["path"]), *moved]

    @property
    def config(self) -> Config:
        """Resolved configuration of the run."""
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
        """Load the selected policy, that of the last epoch, or with `likeliest` that of the best held-out likelihood.

        With `beta`, the dial; with `shard`, this rank's rows.
        """
        manifest = self.manifest  # refuses a run that is not finished
        weights = "last.safetensors" if last else "policy.safetensors"
        if likeliest and self.kept_by not in BY_LIKELIHOOD:
            if "sha256" not in manifest.get("likeliest", {}):
                raise RunError(f"{self.folder} kept no weights by likelihood. Train again.")
            weights = LIKELIEST
        self.refuse_altered(weights, "policy.json", "items.parquet")
        return Policy.load(self.folder, beta=beta, weights=weights, backbone=backbone, shard=shard)

    def recommend(self, histories: Any, k: int = 10, **options: Any) -> Lists:
        """The k best items for each history: lists of item ids, or a frame with a row per event.

        See `Policy.recommend` for the options.
        """
        return self.policy(beta=options.pop("beta", None)).recommend(histories, k, **options)

    def embeddings(self, out: Path | str | None = None) -> Any:
        """Item embeddings as a frame: item_id, name if any, embedding; with `out` as a Parquet file too."""
        return embedding_table(self.policy(), out)

    def selected_metrics(self) -> dict[str, Any]:
        """Entry of metrics.jsonl for the selected weights."""
        step = self.manifest["selected"]["step"]
        return next(line for line in self.metrics() if line["step"] == step)


def similar(run: Run | Policy | Path | str, items: Iterable[Hashable] | Hashable, k: int = 10) -> Any:
    """The k items of the largest cosine with each of `items`, by the run's embeddings: a frame, nearest first."""
    if isinstance(run, Policy):
        return similar_items(run, items, k)
    return similar_items((run if isinstance(run, Run) else Run(run)).policy(), items, k)


def _rule(by: str, figures: Mapping[str, float], *, half: bool) -> str:
    """Selection rule, with its sequences, and with the kind of likelihood if there are two."""
    mixed = f" ({LIKELIHOOD}: of a mixture with popularity)" if PLAIN in figures and LIKELIHOOD in by else ""
    return f"{by}{mixed} on {'every second validation sequence' if half else 'validation'}"


def _flat(content: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Nested fields with their names joined by dots."""
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
