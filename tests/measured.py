"""Policies without training, and small logs, for the tests of evaluation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from localpolicy.data.batches import WindowConfig
from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.measure.candidates import Candidate
from localpolicy.measure.divergence import Reference
from localpolicy.measure.evaluate import measure
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.position_metrics import Scores
from localpolicy.measure.significance import holm_factors
from localpolicy.model.config import ModelConfig
from localpolicy.model.deployable import Origin
from localpolicy.model.network import Network
from localpolicy.model.policy import Policy

EVENTS = ["none", "click", "purchase"]
REWARDS = {"none": 0.0, "click": 0.2, "purchase": 1.0}


def log(
    folder: Path, sequences: list[list[int]], *, events: list[list[int]] | None = None, items: int = 9,
    names: list[str] = EVENTS, split: str = "test", item_id: object = None,
) -> Prepared:  # fmt: skip
    """These sequences of items as one split (and as the training split, so that baselines can be fitted)."""
    kind = "impressions" if "none" in names else "interactions"
    rewards = {name: REWARDS.get(name, 0.5) for name in names}
    flat = np.array([item for sequence in sequences for item in sequence], dtype=np.int64)
    codes = [[1] * len(sequence) for sequence in sequences] if events is None else events
    event = np.array([code for sequence in codes for code in sequence], dtype=np.int64)
    reward = np.array([rewards[names[code]] for code in event])
    lengths = np.array([len(sequence) for sequence in sequences])
    with writing(folder, kind=kind, events=names, rewards=rewards) as store:
        for name in {split, "train"}:
            store.splits[name].append(lengths, {"item": flat, "event": event, "reward": reward})
        store.write_items(
            np.arange(items) if item_id is None else item_id, np.bincount(flat, minlength=items).astype(np.int64)
        )
    return Prepared(folder)


def random_sequences(count: int, items: int, seed: int = 0, longest: int = 7) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, items, rng.integers(1, longest + 1)).tolist() for _ in range(count)]


def policy(
    data: Prepared, *, seed: int = 0, width: int = 8, length: int = 20, heads: tuple[str, ...] = ("policy",),
    scale: float = 0.5, event_embeddings: bool = False,
) -> Policy:  # fmt: skip
    """A network with random weights."""
    torch.manual_seed(seed)
    config = ModelConfig.parse({"width": width, "event_embeddings": event_embeddings})
    events = len(data.events) if event_embeddings else 0
    network = Network(config, items=data.n_items, events=events, length=length, heads=heads)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += scale * torch.randn_like(parameter)
    return Policy(network, Origin("mle", data.kind, data.events, "policy"), data.catalogue)


def scores(**columns: object) -> Scores:
    """Scores of a few positions; whatever is not given is made up."""
    given = {
        name: np.asarray(value) for name, value in columns.items() if name not in ("events", "settings", "js", "kl")
    }
    count = len(next(iter(given.values())))
    made = {
        "sequence": np.arange(count),
        "history": np.arange(count),
        "item": np.zeros(count, np.int64),
        "event": np.ones(count, np.int64),
        "reward": np.zeros(count),
        "repeat": np.zeros(count, bool),
        "rank": np.ones(count),
        "tied": np.zeros(count, np.int64),
        "logp": np.zeros(count),
        "top": np.zeros(count, np.int64),
        "entropy": np.zeros(count),
        "shown": np.zeros(3, np.int64),
    }
    return Scores(
        **{**made, **given},
        events=columns.get("events", EVENTS),
        settings=columns.get("settings", {}),
        js=columns.get("js", {}),
        kl=columns.get("kl", {}),
    )


def table_of(items: int) -> pa.Table:
    return pa.table({"index": np.arange(items, dtype=np.int32), "item_id": np.arange(items), "count": np.ones(items)})


def evaluate_policy(
    policy, data: Prepared, *, name: str, window: WindowConfig, references: dict | None = None, described=(), **options
) -> Evaluation:
    """One policy measured; `described` says what each of `references` is."""
    known = {each.name: each for each in described}
    others = [
        Candidate(each, other, known.get(each, Reference(each, each))) for each, other in (references or {}).items()
    ]
    return measure(Candidate(name, policy, Reference(name, name)), data, others, window=window, **options)


def holm(p_values) -> list[float]:
    """p-values as a family of tests reads them."""
    return [float(np.minimum(1.0, factor * p)) for factor, p in zip(holm_factors(p_values), p_values, strict=True)]
