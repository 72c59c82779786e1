"""What a peer would show: the 20 best items after every prefix of the test sequences, from its best epoch.

It needs numpy and torch alone, so that each peer's own virtual environment can run it. Every peer is given the rule of
our `mle` on sparse logs: after each epoch the likelihood of the validation split's next items in a mixture with
popularity, the weights of the best epoch kept, and an end after a few epochs without a better one. Items that the
training split never shows are left out: whoever has them in the softmax only ever pushes them down, so that their
likelihood falls from the first epoch on, whatever else is learnt.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

K = 20
SHARES = np.linspace(0.02, 0.98, 49)  # of popularity in the mixture
BATCH = 256  # sequences scored at once
Logits = Callable[[Tensor, Tensor], Tensor]  # (items [B, T], -1 where padded; where a next item follows) -> [n, V]


@dataclass(frozen=True)
class Split:
    """Sequences as one array: sequence s is item[offsets[s]:offsets[s + 1]]."""

    offsets: np.ndarray
    item: np.ndarray

    @classmethod
    def read(cls, folder: Path, name: str) -> Split:
        """Written by benchmarks/sequence_models.py."""
        return cls(np.load(folder / f"{name}.offsets.npy"), np.load(folder / f"{name}.item.npy"))

    def windows(self, length: int) -> Iterator[tuple[Tensor, Tensor, np.ndarray, np.ndarray]]:
        """Inputs [B, length], next items [B, length] (both -1 where there is none), and of each next item the number
        of its sequence and of the items before it, in the order of the next items that are there.
        """
        for first in range(0, len(self.offsets) - 1, BATCH):
            numbers = np.arange(first, min(first + BATCH, len(self.offsets) - 1))
            inputs, following = (np.full((len(numbers), length), -1) for _ in range(2))
            sequence, before = [], []
            for row, number in enumerate(numbers):
                items = self.item[self.offsets[number] : self.offsets[number + 1]]
                size = min(length, len(items) - 1)
                if size > 0:
                    inputs[row, -size:], following[row, -size:] = items[-size - 1 : -1], items[-size:]
                    sequence.append(np.full(size, number))
                    before.append(np.arange(len(items) - size, len(items)))
            if sequence:
                tensors = torch.from_numpy(inputs), torch.from_numpy(following)
                yield *tensors, np.concatenate(sequence), np.concatenate(before)


@dataclass
class Keeper:
    """Judges a network after each epoch, and keeps the best."""

    validation: Split
    counts: np.ndarray  # [V] how often the training split shows an item
    length: int
    patience: int
    best: float = -float("inf")
    epoch: int = 0
    seen: int = 0
    weights: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, settings: dict[str, Any], train: Split) -> Keeper:
        """Build from the validation split and the settings that benchmarks/sequence_models.py wrote."""
        counts = np.bincount(train.item, minlength=settings["items"])
        return cls(Split.read(folder, "validation"), counts, settings["length"], settings["patience"])

    def judge(self, network: torch.nn.Module, logits: Logits) -> bool:
        """Whether training should continue."""
        self.seen += 1
        value = likelihood(self.validation, self.counts, logits, network, self.length)
        print(f"epoch {self.seen}: validation log-likelihood {value:.4f}", flush=True)
        if value > self.best:
            self.best, self.epoch, self.weights = value, self.seen, copy.deepcopy(network.state_dict())
        return self.seen - self.epoch < self.patience

    def write(self, folder: Path, network: torch.nn.Module, logits: Logits, **facts: Any) -> None:
        """The test split's lists by the best weights: sequence and items before it [n], items [n, K]."""
        network.load_state_dict(self.weights)
        lists = top(Split.read(folder, "test"), logits, network, self.length)
        for name, array in zip(("sequence", "after", "items"), lists, strict=True):
            np.save(folder / f"{facts['peer']}.{name}.npy", array)
        facts |= {"epoch": self.epoch, "epochs": self.seen, "validation": self.best}
        (folder / f"{facts['peer']}.json").write_text(json.dumps(facts))


@torch.no_grad()
def likelihood(split: Split, counts: np.ndarray, logits: Logits, network: torch.nn.Module, length: int) -> float:
    """max over m of the mean of log((1 - m) π(a|x) + m q(a)), of the next items a that training shows."""
    share = torch.from_numpy((counts + 0.5) / (counts + 0.5).sum())
    total, count = torch.zeros(len(SHARES), dtype=torch.float64), 0
    for inputs, following, _, _ in _evaluated(split, network, length):
        rows = torch.log_softmax(logits(inputs, following >= 0).double(), dim=1).cpu()
        target = following[following >= 0].cpu()
        logp = rows.gather(1, target[:, None])[:, 0]
        counted = torch.from_numpy(counts > 0)[target] & torch.isfinite(logp)
        probability, popular = logp[counted].exp(), share[target[counted]]
        count += len(probability)
        total += torch.stack([torch.log((1 - m) * probability + m * popular).sum() for m in SHARES.tolist()])
    return float(total.max()) / max(count, 1)


@torch.no_grad()
def top(split: Split, logits: Logits, network: torch.nn.Module, length: int) -> tuple[np.ndarray, ...]:
    """The K best items after every prefix."""
    found = [
        (sequence, before, logits(inputs, following >= 0).topk(K, dim=1).indices.cpu().numpy().astype(np.int32))
        for inputs, following, sequence, before in _evaluated(split, network, length)
    ]
    return tuple(np.concatenate(column) for column in zip(*found, strict=True))


def _evaluated(
    split: Split, network: torch.nn.Module, length: int
) -> Iterator[tuple[Tensor, Tensor, np.ndarray, np.ndarray]]:
    training, device = network.training, next(network.parameters()).device
    network.eval()
    for inputs, following, sequence, before in split.windows(length):
        yield inputs.to(device), following.to(device), sequence, before
    network.train(training)
