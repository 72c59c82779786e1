"""`Policy`: what everything else holds. It gives rows over the catalogue for contexts, and lists for histories.

Saved as a folder: `policy.safetensors` (weights), `policy.json` (what is needed to build the network again) and
`items.parquet` (which item has which index), so a policy needs neither its data set nor its training code.
"""

from __future__ import annotations

import shutil
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from localpolicy.catalogue import backend
from localpolicy.catalogue.logits import Logits, tilted
from localpolicy.catalogue.shards import Shard
from localpolicy.data.batches import batch_of_histories
from localpolicy.errors import ConfigError, DataError, RunError, nearest
from localpolicy.model.backbones import passed_before
from localpolicy.model.lists import Lists, draw_lists
from localpolicy.model.network import ModelConfig, Network
from localpolicy.model.weights import fill, load_weights, save_weights
from localpolicy.runtime.files import read_json, whole_file, write_json
from localpolicy.types import Batch

FORMAT = 1


class Origin(NamedTuple):
    """What a policy was made from; recorded with every figure it gives."""

    objective: str
    kind: str  # of its log: 'interactions' or 'impressions'
    events: list[str]  # event names by code
    estimates_logging: str | None  # the head that estimates μ, where there is one: 'policy' or 'logging'


class Policy:
    """π(a|x): a trained network, read without dropout. With `beta`, the dial: μ̂ exp(Q/β) instead of its policy head."""

    def __init__(self, network: Network, origin: Origin, items: pa.Table, *, beta: float | None = None) -> None:
        self.network = network.eval()
        self.origin = origin
        self.items = items
        self.beta = beta
        self._index: dict[Hashable, int] | None = None
        if beta is not None:
            self._check_dial(beta)

    # ------------------------------------------------------------------ what it believes

    @property
    def size(self) -> int:
        """V."""
        return self.network.items

    @property
    def critic(self) -> str | None:
        """The head the dial tilts by: 'q', 'reward', or none."""
        if "q_a" in self.network.heads:
            return "q"
        return "reward" if "reward" in self.network.heads else None

    def _check_dial(self, beta: float) -> None:
        if not beta > 0:  # NaN included
            raise ConfigError(f"beta must be > 0, got {beta}.")
        if self.critic is None or self.origin.estimates_logging is None:
            lacks = "critic (Q or r̂)" if self.critic is None else "estimate of the logging policy"
            raise ConfigError(
                f"a {self.origin.objective} policy has no {lacks}, so there is nothing to dial. "
                "Train sqn, lpi_cb or lpi_rl, or leave beta out to use the trained head."
            )

    def dialled(self, beta: float | None) -> Policy:
        """The policy π_β ∝ μ̂ exp(Q/β) of the same network; None gives the trained head."""
        return Policy(self.network, self.origin, self.items, beta=beta)

    def logging(self) -> Policy:
        """This run's own estimate of the logging policy, as a policy."""
        if self.origin.estimates_logging is None:
            raise ConfigError(f"a {self.origin.objective} policy has no estimate of the logging policy.")
        return _HeadPolicy(self.network, self.origin, self.items, self.origin.estimates_logging)

    @torch.no_grad()
    def logits(self, batch: Batch) -> Logits:
        """Unnormalised log π(·|x) at the batch's positions."""
        return self.rows_at(batch, batch.scored)

    @torch.no_grad()
    def rows_at(self, batch: Batch, tokens: Tensor) -> Logits:
        """The same at any tokens."""
        return self._rows(self.network.hidden_without_dropout(batch)[tokens])

    def _rows(self, hidden: Tensor) -> Logits:
        if self.beta is None:
            return self.network.head("policy").detach().logits(hidden)
        base, critic = self.origin.estimates_logging, self.critic
        assert base is not None and critic is not None
        return tilted(hidden, self.network.head(base).detach(), self.network.head(critic).detach(), beta=self.beta)

    # ------------------------------------------------------------------ what it would show

    def batch(self, histories: Sequence[Sequence[Hashable]], answers: Sequence[Sequence[str]] | None = None) -> Batch:
        """Histories of item ids (and what came of each) as a batch. Items this policy never saw are left out."""
        if self._index is None:
            self._index = {value: index for index, value in enumerate(self.items["item_id"].to_pylist())}
        codes = {name: code for code, name in enumerate(self.origin.events)}
        items, events = [], []
        for number, history in enumerate(histories):
            given = list(answers[number]) if answers is not None else [self.origin.events[0]] * len(history)
            if len(given) != len(history):
                raise DataError(f"history {number} has {len(history)} items and {len(given)} answers.")
            unknown = next((name for name in given if name not in codes), None)
            if unknown is not None:
                raise DataError(f"history {number}: no event '{unknown}'{nearest(str(unknown), codes)}")
            known = [
                (self._index[item], codes[name])
                for item, name in zip(history, given, strict=True)
                if item in self._index
            ]
            items.append([item for item, _ in known])
            events.append([event for _, event in known])
        device = self.network.embedding.device
        return batch_of_histories(items, events, length=self.network.length).to(device)

    def log_probabilities(
        self, histories: Sequence[Sequence[Hashable]], answers: Sequence[Sequence[str]] | None = None
    ) -> Tensor:
        """log π(·|x) of every item for each history: [B, V]. For small catalogues."""
        return torch.log_softmax(self.logits(self.batch(histories, answers)).chunk(0, self.size), dim=1)

    def recommend(
        self,
        histories: Sequence[Sequence[Hashable]],
        k: int,
        *,
        answers: Sequence[Sequence[str]] | None = None,
        sample: bool = False,
        exclude_seen: bool = False,
        exclude: Sequence[Hashable] = (),
        seed: int | None = None,
    ) -> Lists:
        """The k best items for each history, or with `sample` k drawn without replacement, with propensities."""
        batch = self.batch(histories, answers)
        assert self._index is not None
        unwanted = {self._index[item] for item in exclude if item in self._index}
        forbidden = [
            sorted(unwanted | ({self._index[i] for i in history if i in self._index} if exclude_seen else set()))
            for history in histories
        ]
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return draw_lists(
            self.logits(batch), k, ids=self.items["item_id"], forbidden=forbidden, sample=sample, generator=generator,
            catalogue=backend(),
        )  # fmt: skip

    # ------------------------------------------------------------------ on disk

    def save(self, folder: Path, *, catalogue: Path | None = None) -> None:
        """Write the policy; equal policies give equal bytes."""
        folder = Path(folder)
        save_weights(self.network.state_dict(), folder / "policy.safetensors")
        self.save_description(folder, catalogue=catalogue)

    def save_description(self, folder: Path, *, catalogue: Path | None = None) -> None:
        """Everything but the weights."""
        write_json(
            folder / "policy.json",
            {"format": FORMAT, "network": self.network.describe(), "origin": self.origin._asdict()},
        )
        with whole_file(folder / "items.parquet") as partial:
            shutil.copyfile(catalogue, partial) if catalogue else pq.write_table(self.items, partial)

    @classmethod
    def load(
        cls,
        folder: Path | str,
        *,
        beta: float | None = None,
        weights: str = "policy.safetensors",
        backbone: nn.Module | None = None,
        shard: Shard | None = None,
    ) -> Policy:
        """Read a saved policy (a run folder). `backbone` is needed where the run was trained with one of the user's.

        With `shard` only this rank's rows are read.
        """
        folder = Path(folder)
        if not (folder / "policy.json").exists():
            raise RunError(f"{folder} is not a run (no policy.json). 'lpi train' makes one.")
        about = read_json(folder / "policy.json")
        if about.get("format") != FORMAT:
            raise RunError(f"{folder} has format {about.get('format')}; this version reads {FORMAT}.")
        made = about["network"]
        if backbone is not None and not made["own_backbone"]:
            raise RunError(f"{folder} needs no backbone=: it has one of ours.")
        if backbone is None and made["own_backbone"]:
            backbone = passed_before(made["own_backbone"])
        shard = None if shard is None else shard._replace(items=made["items"])
        network = Network(
            ModelConfig.parse(made["model"]),
            items=made["items"],
            events=made["events"],
            length=made["length"],
            heads=tuple(made["heads"]),
            backbone=backbone,
            shard=shard,
        )
        fill(network, load_weights(folder / weights, split=network.split, shard=shard), source=folder / weights)
        try:
            items = pq.read_table(folder / "items.parquet")
        except (pa.ArrowInvalid, OSError) as error:
            raise RunError(f"{folder / 'items.parquet'} cannot be read ({error}): it was altered.") from None
        return cls(network, Origin(**about["origin"]), items, beta=beta)


class _HeadPolicy(Policy):
    """The same network, another head."""

    def __init__(self, network: Network, origin: Origin, items: pa.Table, head: str) -> None:
        super().__init__(network, origin, items)
        self._head = head

    def _rows(self, hidden: Tensor) -> Logits:
        return self.network.head(self._head).detach().logits(hidden)
