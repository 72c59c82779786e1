"""Simple baselines, which published work shows beating learned policies: popularity, the last item again, item-kNN.

They are measured as policies are, can be saved and served, and need no training.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from scipy import sparse
from torch import Tensor

from localpolicy import __version__
from localpolicy.catalogue.logits import Logits
from localpolicy.catalogue.sparse import SparseLogits
from localpolicy.data.store import CONTEXT, NO_ANSWER, Prepared
from localpolicy.errors import ConfigError, RunError, nearest
from localpolicy.model.histories import Deployable, recommend_with
from localpolicy.model.lists import Lists
from localpolicy.model.policy import FORMAT, Origin
from localpolicy.model.weights import load_weights, save_weights
from localpolicy.runs.run import Run
from localpolicy.runtime.files import read_json, sealed, sha256, whole_file, write_json
from localpolicy.runtime.folders import refuse_occupied
from localpolicy.types import Batch


def mixed(base: Tensor, rows: int, row: Tensor, item: Tensor, weight: Tensor, *, background: float) -> SparseLogits:
    """log[(1 - ε) weight + ε base]: rows whose weights sum to 1, over a distribution `base` [V].

    A row without any pair keeps `base` alone; its missing mass is a constant that normalising restores.
    """
    value = torch.log((1 - background) * weight + background * base[item])
    return SparseLogits(torch.log(background * base), rows, row, item, value.to(base.dtype))


SMOOTHING = 0.5  # added to every item's count, so that no item has probability 0 and log p is finite


def events_but(data: Prepared, *left_out: str) -> list[int]:
    """Codes of the events: without NO_ANSWER those that say someone wanted an item, without CONTEXT those chosen."""
    return [code for code, name in enumerate(data.events) if name not in left_out]


def popularity(data: Prepared, *, shown: bool = False) -> Tensor:
    """(answers + ½) / Σ (answers + ½), over the training split: [V]; of all that was `shown`, answered or not."""
    train = data["train"].arrays
    wanted = np.isin(train["event"], events_but(data, CONTEXT, *([] if shown else [NO_ANSWER])))
    counts = np.bincount(train["item"][wanted], minlength=data.n_items) + SMOOTHING
    return torch.from_numpy((counts / counts.sum()).astype(np.float32))


def recent(batch: Batch, codes: list[int], depth: int) -> tuple[Tensor, Tensor, Tensor]:
    """(position, item, lag) of what was answered just before each position; lag 0 is the latest, lags below `depth`.

    Only steps of the window are seen, as a policy would; items that were shown in vain are passed over.
    """
    wanted = torch.isin(batch.previous_event, torch.tensor(codes, device=batch.row.device))
    wanted &= batch.previous_item >= 0
    answered_so_far = wanted.cumsum(0)
    pairs = []
    first = batch.scored if batch.context is None else batch.context[batch.scored]
    token = first
    position = torch.arange(len(token), device=token.device)
    # One step back at a time, for as long as some position still has a step before it.
    while len(token):
        lag = answered_so_far[first[position]] - answered_so_far[token]
        here = wanted[token] & (lag < depth)
        pairs.append(torch.stack([position[here], batch.previous_item[token[here]], lag[here]]))
        further = (batch.column[token] > 0) & (lag < depth)
        position, token = position[further], token[further] - 1
    joined = torch.cat(pairs, dim=1) if pairs else torch.empty(3, 0, dtype=torch.long)
    joined = joined[:, torch.argsort(joined[0], stable=True)]
    return joined[0], joined[1], joined[2]


@dataclass(frozen=True)
class Popularity:
    """The most popular items first."""

    share: Tensor  # [V]
    origin: Origin
    items: pa.Table

    @classmethod
    def fit(cls, data: Prepared) -> Popularity:
        """Count answers in the training split."""
        return cls(popularity(data), Origin("popularity", data.kind, data.events, None), data.catalogue)

    def logits(self, batch: Batch) -> Logits:
        """log share, whatever the history."""
        return SparseLogits.alike(self.share.log(), batch)


@dataclass(frozen=True)
class LastItem:
    """The last item again, then the popular ones."""

    share: Tensor  # [V] popularity
    codes: list[int]  # events that answer
    origin: Origin
    items: pa.Table
    background: float = 0.5  # ε; ranks do not depend on it, likelihood and divergence do

    @classmethod
    def fit(cls, data: Prepared) -> LastItem:
        """Only popularity is learned."""
        origin = Origin("last item", data.kind, data.events, None)
        return cls(popularity(data), events_but(data, NO_ANSWER), origin, data.catalogue)

    def logits(self, batch: Batch) -> Logits:
        """One exception per row."""
        row, item, _ = recent(batch, self.codes, depth=1)
        share = self.share.to(row.device)
        whole = torch.ones(len(row), device=row.device)
        return mixed(share, len(batch.scored), row, item, whole, background=self.background)


LONGEST = 100  # most recent answers of a sequence that count: pairs grow with the square of a lifetime


@dataclass(frozen=True)
class ItemNeighbours:
    """Neighbours of what was answered lately."""

    similar: sparse.csr_matrix  # [V, V]
    share: Tensor  # [V] popularity, for items without a neighbour
    codes: list[int]
    origin: Origin
    items: pa.Table
    depth: int = 10  # answers looked back at
    decay: float = 0.8
    background: float = 0.1  # ε of popularity

    @classmethod
    def fit(cls, data: Prepared, *, neighbours: int = 100) -> ItemNeighbours:
        """Count which items share sequences of the training split."""
        codes = events_but(data, NO_ANSWER)
        return cls(
            similar=similarity(_memberships(data, codes), neighbours=neighbours),
            share=popularity(data),
            codes=codes,
            origin=Origin("item-kNN", data.kind, data.events, None),
            items=data.catalogue,
        )

    def logits(self, batch: Batch) -> Logits:
        """Exceptions for the neighbours of what was answered."""
        row, item, lag = (part.cpu().numpy() for part in recent(batch, self.codes, self.depth))
        shape = (len(batch.scored), len(self.share))
        history = sparse.csr_matrix((self.decay**lag, (row, item)), shape=shape)
        scores = (history @ self.similar).tocoo()
        total = np.bincount(scores.row, weights=scores.data, minlength=shape[0])
        order = np.argsort(scores.row, kind="stable")
        row, item = scores.row[order].astype(np.int64), scores.col[order].astype(np.int64)
        device = batch.row.device
        pairs = (torch.from_numpy(part).to(device) for part in (row, item, scores.data[order] / total[row]))
        return mixed(self.share.to(device), shape[0], *pairs, background=self.background)


def similarity(memberships: sparse.csr_matrix, *, neighbours: int) -> sparse.csr_matrix:
    """|A ∩ B| / √(|A| |B|) for items as sets of sequences [S, V], each row's largest few."""
    together = (memberships.T @ memberships).tocoo()
    size = np.sqrt(np.asarray(memberships.sum(0), dtype=np.float64)).ravel()
    cosine = together.data / (size[together.row] * size[together.col])
    # By row, then by falling similarity, then by item, so that ties are broken the same way everywhere.
    order = np.lexsort((together.col, -cosine, together.row))
    row = together.row[order]
    first = np.searchsorted(row, np.arange(together.shape[0]))
    kept = order[np.arange(len(row)) - first[row] < neighbours]
    return sparse.csr_matrix((cosine[kept], (together.row[kept], together.col[kept])), shape=together.shape)


def _memberships(data: Prepared, codes: list[int]) -> sparse.csr_matrix:
    """Which of the training sequences hold which items: [S, V] of zeros and ones."""
    train = data["train"]
    lengths = np.diff(train.offsets)
    sequence = np.repeat(np.arange(len(train)), lengths)
    from_end = np.repeat(train.offsets[1:], lengths) - np.arange(train.events)
    wanted = np.isin(train.arrays["event"], codes) & (from_end <= LONGEST)
    shape = (len(train), data.n_items)
    counts = sparse.csr_matrix((np.ones(wanted.sum()), (sequence[wanted], train.arrays["item"][wanted])), shape=shape)
    counts.data[:] = 1.0
    return counts


Baseline = Popularity | LastItem | ItemNeighbours
KINDS: dict[str, type[Baseline]] = {"popularity": Popularity, "last item": LastItem, "item-kNN": ItemNeighbours}
BASELINES: dict[str, Callable[[Prepared], Deployable]] = {name: kind.fit for name, kind in KINDS.items()}


# ---------------------------------------------------------------------- saved, and read again


SAVED = ("policy.json", "policy.safetensors", "items.parquet")  # their digests are in the manifest
CALLED = {"last-item": "last item", "item-knn": "item-kNN", "itemknn": "item-kNN", "knn": "item-kNN"}  # as typed


class BaselineRun(Run):
    """A fitted baseline, with what a run can do."""

    def summary(self) -> str:
        """What was fitted, and where it is."""
        return f"{self.manifest['objective']}, fitted, in {self.folder}"

    def to_dict(self) -> dict[str, Any]:
        """The manifest."""
        return self.manifest

    def to_arrow(self) -> pa.Table:
        """Its manifest's plain values, one row."""
        return pa.Table.from_pylist([{"objective": self.manifest["objective"], "folder": str(self.folder)}])

    def recommend(self, histories: Any, k: int = 10, **options: Any) -> Lists:
        """The k best items for each history; see `Policy.recommend` for the options."""
        if options.pop("beta", None) is not None:
            raise ConfigError(f"{self.folder} is a simple baseline, which has no dial: leave --beta out.")
        return recommend_with(load_baseline(self.folder), histories, k, **options)


def baseline_called(name: str) -> str | None:
    """The baseline meant by a word of the command line."""
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
    fitted = KINDS[known].fit(data)
    (folder / "manifest.json").unlink(missing_ok=True)  # what is half replaced must not pass for whole
    save_baseline(fitted, folder)
    where = {"path": str(data.path), "from_run": os.path.relpath(data.path.resolve(), folder.resolve())}
    manifest = {
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
    """Write the policy; equal ones give equal bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {"share": policy.share}
    if isinstance(policy, ItemNeighbours):
        parts = {name: getattr(policy.similar, name) for name in ("data", "indices", "indptr")}
        tensors |= {f"similar.{name}": torch.from_numpy(np.ascontiguousarray(part)) for name, part in parts.items()}
    save_weights(tensors, folder / "policy.safetensors")
    plain = [each.name for each in fields(policy) if each.name not in ("share", "similar", "origin", "items")]
    about = {"format": FORMAT, "baseline": policy.origin.objective, "origin": policy.origin._asdict()}
    write_json(folder / "policy.json", {**about, "settings": {name: getattr(policy, name) for name in plain}})
    with whole_file(folder / "items.parquet") as partial:
        pq.write_table(policy.items, partial)


def is_baseline(folder: Path) -> bool:
    """Whether a folder holds a saved baseline."""
    path = folder / "policy.json"
    return path.exists() and isinstance(about := read_json(path), dict) and "baseline" in about


def load_baseline(folder: Path | str) -> Baseline:
    """Read a saved baseline."""
    folder = Path(folder)
    Run(folder).verify()
    about = read_json(folder / "policy.json")
    if about.get("format") != FORMAT or about["baseline"] not in KINDS:
        raise RunError(
            f"{folder} holds '{about['baseline']}' in format {about.get('format')}: upgrade, or fit it again."
        )
    tensors = load_weights(folder / "policy.safetensors")
    given: dict[str, Any] = {"share": tensors["share"], **about["settings"]}
    items = pq.read_table(folder / "items.parquet")
    if about["baseline"] == "item-kNN":
        data, indices, indptr = (tensors[f"similar.{name}"].numpy() for name in ("data", "indices", "indptr"))
        given["similar"] = sparse.csr_matrix((data, indices, indptr), shape=(len(items), len(items)))
    return KINDS[about["baseline"]](**given, origin=Origin(**about["origin"]), items=items)
