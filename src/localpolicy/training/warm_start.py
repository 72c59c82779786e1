"""Starting from an older run on a data set with new items and new sequences.

Items are matched by id. What the older run knows of an item (its embedding, its row and bias in every head) is copied.
A new item starts as the mean item:

- its embedding is the mean of the known ones: a history reads it as nothing in particular. Logits are trained each by
  its own items, so equal starts do not stay equal;
- its row in a critic (q_a, q_b, reward) and that row's bias are the means too: its value starts as the mean value
  Σ_a Q(x,a)/n, so it is the maximum in no context;
- its row in a policy or logging head is the mean w̄, and its bias is b̄ - δ. With n known items, Jensen's inequality
  gives Σ_a exp(h·w_a + b_a) >= n exp(h·w̄ + b̄) in every context h, so m new items hold together at most
  (m/n) e^-δ times the mass of the known ones. δ = max(0, log(m / (n NEWCOMERS))) makes that at most NEWCOMERS: no
  known item loses more than a factor 1 + NEWCOMERS, KL(old‖new) <= log(1 + NEWCOMERS), and yet no new item has
  probability 0, so the first time it is taken its gradient is as strong as any.

Windows may be longer than the older run's: positions that it never saw start as its last one. Heads that it lacks start
as in a new run, and so do events it never saw; the optimiser starts from scratch.
"""

from __future__ import annotations

import logging
from math import log
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from localpolicy.data.store import Prepared
from localpolicy.errors import RunError
from localpolicy.model.catalogue_mapping import match_items
from localpolicy.model.config import OF_ITEM_TABLE
from localpolicy.model.heads import SOFTMAX_HEADS
from localpolicy.model.network import FEATURES, Network
from localpolicy.model.weights import load_weights, without_features
from localpolicy.runs.run import Run
from localpolicy.runtime.files import read_json

LOG = logging.getLogger(__name__)
NEWCOMERS = 0.01  # largest mass of all new items together, relative to the known ones
POSITIONS = "backbone.position"  # [T, D], if the backbone has positions
FREE = ("dropout", *OF_ITEM_TABLE)  # settings of the model that no weight depends on


@torch.no_grad()
def warm_start(network: Network, folder: Path | str, data: Prepared) -> dict[str, Any]:
    """Copy the selected weights of the run in `folder` into `network`; return the entry for the manifest."""
    run = Run(folder)
    digest = run.manifest["policy_sha256"]
    run.refuse_altered("policy.json", "policy.safetensors", "items.parquet")
    about = read_json(run.folder / "policy.json")
    _refuse_other_shape(network, about["network"], run.folder)
    weights = load_weights(run.folder / "policy.safetensors")
    if "critics" in about["network"]:  # of several towers, the logging policy's
        weights = {
            name.removeprefix("logging."): weight for name, weight in weights.items() if name.startswith("logging.")
        }
    features, weights = without_features(weights)
    items = pq.read_table(run.folder / "items.parquet")
    older_index = torch.from_numpy(match_items(data.catalogue, items))
    if not bool((older_index >= 0).any()):
        raise RunError(f"--warm-start: {run.folder} and {data.path} have no item in common (matched by id).")
    if "extended" in run.manifest:
        _say_what_is_lost(items, data, run.folder)
    copied = []
    for name, target in network.state_dict().items():
        if name not in weights and (name.startswith(("heads.", FEATURES)) or name == "answer"):
            continue  # a head or events the older run lacks, or the embedding again where the policy head is tied
        if name == POSITIONS and name in weights:
            weights[name] = _of_longer_windows(weights[name], len(target))
        if name not in weights or (name.startswith("backbone.") and weights[name].shape != target.shape):
            raise RunError(f"--warm-start: {run.folder} has another backbone: its weights do not fit {name}.")
        start = weights[name].to(target)
        if name == "answer":
            start = _by_event(target, start, data.events, about["origin"]["events"])
        elif name in network.tables:
            start = _by_item(start, older_index.to(start.device), low=name.endswith(".bias") and name.split(".")[1])
            start = start if network.shard is None else start[network.shard.own]
        target.copy_(start)
        copied.append(name)
    if features:
        network.take_features(features)
    heads = [name for name in network.heads if f"heads.{name}.bias" in copied]
    return {
        "run": str(run.folder),
        "policy_sha256": digest,
        "known_items": int((older_index >= 0).sum()),
        "new_items": int((older_index < 0).sum()),
        "heads": heads,
        "fresh_heads": [name for name in network.heads if name not in heads],
    }


def _say_what_is_lost(items: pa.Table, data: Prepared, folder: Path) -> None:
    """Warn of items that the older run was given without training, and that data without their table lack."""
    lost = (match_items(items, data.catalogue) < 0) & (items["count"].to_numpy() == 0)
    if lost.any():
        ids = [str(each) for each in items["item_id"].filter(pa.array(lost))[:3].to_pylist()]
        LOG.warning(
            "%s items that lpi extend gave %s are not in %s (%s%s): the new run will not know them. Prepare the data "
            "with a table that holds them (--items), or extend the new run again.",
            f"{int(lost.sum()):,}", folder, data.path, ", ".join(ids), ", …" if lost.sum() > len(ids) else "",
        )  # fmt: skip


def _by_item(start: Tensor, older_index: Tensor, *, low: str | bool) -> Tensor:
    """Tables in the data's order; new items get the mean of the known ones, a softmax head's bias minus δ."""
    known = older_index >= 0
    matched = start[older_index[known]]
    rows = start.new_empty((len(older_index), *start.shape[1:]))
    rows[known] = matched
    new, old = int((~known).sum()), int(known.sum())
    if new:
        rows[~known] = matched.mean(0)
        if low in SOFTMAX_HEADS:
            rows[~known] -= max(0.0, log(new / (old * NEWCOMERS)))
    return rows


def _of_longer_windows(position: Tensor, length: int) -> Tensor:
    """Position embeddings for windows of this length: rows beyond the older run's windows repeat its last one."""
    more = max(0, length - len(position))
    return torch.cat([position, position[-1:].expand(more, -1)])


def _by_event(target: Tensor, start: Tensor, events: list[str], older: list[str]) -> Tensor:
    """Event embeddings by the events' names; an event that the older run never saw keeps its own start."""
    rows = target.clone()
    for code, name in enumerate(events):
        if name in older:
            rows[code] = start[older.index(name)]
    return rows


def _refuse_other_shape(network: Network, older: dict[str, Any], folder: Path) -> None:
    """Raise RunError if weights cannot be copied as they are, naming every difference."""

    def named(described: dict[str, Any]) -> dict[str, Any]:
        shape = {f"model.{name}": value for name, value in described["model"].items() if name not in FREE}
        return {**shape, "data.length": described["length"], "a backbone of the user's": described["own_backbone"]}

    there, here = named(older), named(network.describe())
    if here["data.length"] > there["data.length"]:  # positions are counted from a window's start: those it knows stay
        del here["data.length"]
    if not there.get("model.event_embeddings"):  # they start at zero: the network gives what the older one gives
        del here["model.event_embeddings"]
    different = [name for name in here if here[name] != there.get(name)]
    if different:
        said = ", ".join(f"{name} is {there.get(name)} there and {here[name]} here" for name in different)
        raise RunError(f"--warm-start: {folder} has another network: {said}. Set these equally, or start without it.")
