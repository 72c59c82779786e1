"""Simple baselines on disk: saved, recognised and loaded, with the methods of a run."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from scipy import sparse
from torch import Tensor

from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, RunError, nearest
from localpolicy.model.baselines import KINDS, Baseline, ItemNeighbours, why_not
from localpolicy.model.deployable import Origin
from localpolicy.model.histories import recommend_with
from localpolicy.model.lists import Lists
from localpolicy.model.policy import FORMAT
from localpolicy.model.weights import load_weights, save_weights
from localpolicy.runs.run import Run
from localpolicy.runtime.files import read_json, sealed, sha256, whole_file, write_json
from localpolicy.runtime.folders import refuse_occupied
from localpolicy.version import __version__

SAVED = ("policy.json", "policy.safetensors", "items.parquet")  # their digests are in the manifest
CALLED = {  # as typed
    "last-item": "last item", "item-knn": "item-kNN", "itemknn": "item-kNN", "knn": "item-kNN", "als": "ALS",
    "item-mean": "item mean", "most-dear": "dearest", "most-recent": "most recent",
}  # fmt: skip


class BaselineRun(Run):
    """A fitted baseline with the methods of a run."""

    def summary(self) -> str:
        """Name of the baseline, and its folder."""
        return f"{self.manifest['objective']}, fitted, in {self.folder}"

    def to_dict(self) -> dict[str, Any]:
        """Content of the manifest."""
        return self.manifest

    def to_arrow(self) -> pa.Table:
        """Table of one row with the plain values of the manifest."""
        return pa.Table.from_pylist([{"objective": self.manifest["objective"], "folder": str(self.folder)}])

    def recommend(self, histories: Any, k: int = 10, **options: Any) -> Lists:
        """The k best items for each history; see `Policy.recommend` for the options."""
        if options.pop("beta", None) is not None:
            raise ConfigError(f"{self.folder} is a simple baseline, which has no dial: leave --beta out.")
        return recommend_with(load_baseline(self.folder), histories, k, **options)


def baseline_called(name: str) -> str | None:
    """Name of the baseline that a word of the command line stands for, or None."""
    name = CALLED.get(name.lower().replace("_", "-").replace(" ", "-"), name.lower())
    return name if name in KINDS else None


def fit_baseline(name: str, data: Prepared | Path | str, *, out: Path | str, force: bool = False) -> Baseline:
    """Fit a baseline on the training split and save it into the folder `out`."""
    known = baseline_called(name)
    if known is None:
        raise ConfigError(f"no baseline '{name}'{nearest(name, KINDS)}")
    data, folder = data if isinstance(data, Prepared) else Prepared(data), Path(out)
    refuse_occupied(folder, force=force)
    Run(folder).refuse_others()
    data.verify()
    if (lacking := why_not(known, data)) is not None:
        raise ConfigError(f"{data.path} gives no baseline '{known}': {lacking}.")
    fitted = KINDS[known].fit(data)
    (folder / "manifest.json").unlink(missing_ok=True)  # what is half replaced must not pass for whole
    save_baseline(fitted, folder)
    where = {"path": str(data.path), "from_run": os.path.relpath(data.path.resolve(), folder.resolve())}
    manifest = {
        "format": FORMAT.current,
        "objective": known,
        "seed": None,
        "data": {**where, "digest": data.digest, "kind": data.kind},
        "selected": {"by": None, "value": None, "epoch": None, "step": None},
        "policy_sha256": sha256(folder / "policy.safetensors"),
        "files": {name: sha256(folder / name) for name in SAVED},
        "versions": {"localpolicy": __version__},
    }
    write_json(folder / "manifest.json", sealed(manifest))
    return fitted


def save_baseline(policy: Baseline, folder: Path) -> None:
    """Write the baseline into a folder; equal ones give equal bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {each.name: getattr(policy, each.name) for each in fields(policy)}
    tensors: dict[str, Tensor] = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    if isinstance(policy, ItemNeighbours):
        parts = {name: getattr(policy.similar, name) for name in ("data", "indices", "indptr")}
        tensors |= {f"similar.{name}": torch.from_numpy(np.ascontiguousarray(part)) for name, part in parts.items()}
    save_weights(tensors, folder / "policy.safetensors")
    plain = [name for name in values if name not in (*tensors, "similar", "origin", "items")]
    about = {"format": FORMAT.current, "baseline": policy.origin.objective, "origin": policy.origin._asdict()}
    write_json(folder / "policy.json", {**about, "settings": {name: getattr(policy, name) for name in plain}})
    with whole_file(folder / "items.parquet") as partial:
        pq.write_table(policy.items, partial)


def is_baseline(folder: Path) -> bool:
    """Whether a folder holds a saved baseline."""
    path = folder / "policy.json"
    return path.exists() and isinstance(about := read_json(path), dict) and "baseline" in about


def load_baseline(folder: Path | str) -> Baseline:
    """Load a saved baseline."""
    folder = Path(folder)
    Run(folder).verify()
    about = FORMAT.upgraded(read_json(folder / "policy.json"), folder)
    if about["baseline"] not in KINDS:
        raise RunError(f"{folder} holds '{about['baseline']}', which is no baseline of this version: fit another.")
    tensors = load_weights(folder / "policy.safetensors")
    given: dict[str, Any] = {**{name: value for name, value in tensors.items() if "." not in name}, **about["settings"]}
    items = pq.read_table(folder / "items.parquet")
    if about["baseline"] == "item-kNN":
        data, indices, indptr = (tensors[f"similar.{name}"].numpy() for name in ("data", "indices", "indptr"))
        given["similar"] = sparse.csr_matrix((data, indices, indptr), shape=(len(items), len(items)))
    return KINDS[about["baseline"]](**given, origin=Origin(**about["origin"]), items=items)
