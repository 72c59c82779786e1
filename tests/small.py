"""Small prepared data sets, batches and networks for the tests of the model layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from localpolicy.data.batches import WindowConfig, Windows
from localpolicy.data.store import Prepared
from localpolicy.data.store_writer import writing
from localpolicy.model.config import ModelConfig
from localpolicy.model.deployable import Origin
from localpolicy.model.heads import HEADS as EVERY_HEAD
from localpolicy.model.heads import ProjectedHead
from localpolicy.model.network import Network
from localpolicy.model.policy import Policy
from localpolicy.types import Batch

HEADS = tuple(head for head in EVERY_HEAD if head != "q")  # a network has one Q head, or two
ITEMS = 7
EVENTS = ["click", "purchase", "context"]
# (item, event, reward, propensity) of each action: windows of length 5 keep some whole, and cut others.
SEQUENCES = [
    [(3, 0, 0.2, 0.5), (1, 1, 1.0, 0.25), (4, 0, 0.3, 0.125)],
    [(2, 1, 0.9, 0.1)],
    [(5, 0, 0.1, 0.2), (0, 0, 0.4, 0.3), (6, 1, 0.8, 0.4), (1, 0, 0.5, 0.5), (2, 1, 0.7, 0.6), (3, 0, 0.6, 0.7),
     (0, 1, 1.5, 0.8)],
    [(4, 0, 0.25, 0.9), (4, 1, 1.25, 0.15), (0, 0, 0.35, 0.35), (6, 0, 0.45, 0.45), (5, 1, 0.55, 0.55)],
    [(1, 0, 0.65, 0.65), (6, 1, 0.75, 0.75), (2, 0, 0.85, 0.85), (3, 1, 0.95, 0.95), (5, 0, 1.05, 0.05),
     (4, 1, 1.15, 0.11)],
]  # fmt: skip


def prepared(folder: Path, sequences: list[list[tuple]] = SEQUENCES) -> Prepared:
    """These sequences as the train split."""
    flat = [action for sequence in sequences for action in sequence]
    columns = {name: np.array([action[place] for action in flat])
               for place, name in enumerate(("item", "event", "reward", "propensity"))}  # fmt: skip
    with writing(folder, kind="interactions", events=EVENTS, optional=("propensity",)) as store:
        store.splits["train"].append(np.array([len(sequence) for sequence in sequences]), columns)
        store.write_items(pa.array([f"i{item}" for item in range(ITEMS)]), np.ones(ITEMS, np.int64))
    return Prepared(folder)


def whole(data: Prepared, *, length: int = 5, last: int | None = None) -> Batch:
    """All train sequences as one batch, rewards in float64."""
    windows = Windows(data, "train", WindowConfig(length=length, last=last))
    return double(windows.cut(torch.arange(len(windows))))


def double(batch: Batch) -> Batch:
    """The batch with float64 numbers."""
    return Batch(**{**batch.__dict__, "reward": batch.reward.double(),
                    "propensity": None if batch.propensity is None else batch.propensity.double()})  # fmt: skip


def network(*, seed: int = 0, length: int = 5, heads: tuple[str, ...] = HEADS, **settings: object) -> Network:
    """A float64 network in which no weight is zero, critics included."""
    torch.manual_seed(seed)
    config = ModelConfig.parse({"width": 8, "blocks": 2, "heads": 2, "dropout": 0.0, "tied": False, **settings})
    made = Network(config, items=ITEMS, events=len(EVENTS), length=length, heads=heads).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return made


def policy(made: Network, *, estimates: str | None = "logging", beta: float | None = None) -> Policy:
    """A policy of this network; items are called i0, i1, ..."""
    table = pa.table({"index": np.arange(ITEMS, dtype=np.int32), "item_id": [f"i{item}" for item in range(ITEMS)],
                      "count": np.ones(ITEMS, np.int64)})  # fmt: skip
    return Policy(made, Origin("lpi_rl", "interactions", EVENTS, estimates), table, beta=beta)


def scores(made: Network, hidden: Tensor, head: str) -> Tensor:
    """A head's row of scores for one hidden state, as a sum over the width."""
    numbers = made.heads[head]
    if isinstance(numbers, ProjectedHead):
        seen, (v, c) = numbers.projection @ hidden, (numbers.context[:-1], numbers.context[-1])
        shared = (v * hidden).sum() + c
        return torch.stack([(made.embedding[a] * seen).sum() + numbers.bias[a] + shared for a in range(ITEMS)])
    return torch.stack([(hidden * numbers.weight[item]).sum() + numbers.bias[item] for item in range(ITEMS)])
