"""`Policy`: logits over the catalogue for contexts, and lists for histories.

Saved as a folder: `policy.safetensors` (weights), `policy.json` (description of the network) and `items.parquet` (index
of each item), so a policy needs neither its data set nor its training code.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from localpolicy.catalogue import fused
from localpolicy.catalogue.shards import Shard
from localpolicy.errors import ConfigError, RunError
from localpolicy.logits import Logits
from localpolicy.model.backbones import passed_before
from localpolicy.model.config import ModelConfig
from localpolicy.model.deployable import Origin
from localpolicy.model.heads import HEADS
from localpolicy.model.histories import batch_from, histories_of, index_of, lists_from, pairs_of
from localpolicy.model.lists import Lists, with_names
from localpolicy.model.network import Network
from localpolicy.model.towers import Towers, build
from localpolicy.model.weights import (
    fill,
    load_weights,
    refuse_broken,
    refuse_other_shapes,
    save_weights,
    without_features,
)
from localpolicy.runtime.files import read_json, whole_file, write_json
from localpolicy.runtime.formats import Format, unchanged
from localpolicy.types import Batch

AT_ONCE = 256  # pairs that are scored together

FORMAT = Format(2, "train again", upgrades={1: unchanged})  # of a run: policy.json and manifest.json
LARGEST = 1 << 40  # of a number in policy.json: so that none of their products overflows


class Policy:
    """π(a|x): a trained network, read without dropout. With `beta`, the dial: μ̂ exp(Q/β) instead of its policy head."""

    def __init__(
        self, network: Network | Towers, origin: Origin, items: pa.Table, *, beta: float | None = None
    ) -> None:
        self.network = network.eval()
        self.origin = origin
        self.items = items
        self.beta = beta
        self.learnt: dict[str, Tensor] = {}  # saved weights of features (see `Network.plain_state`)
        self._index: dict[Hashable, int] | None = None
        if beta is not None:
            self._check_dial(beta)

    def __repr__(self) -> str:
        dial = "" if self.beta is None else f" at β={self.beta:g}"
        return f"<Policy: {self.origin.objective}{dial} over {self.n_items:,} items>"

    # ------------------------------------------------------------------ distributions

    @property
    def n_items(self) -> int:
        """Number of items in the catalogue, V."""
        return self.network.n_items

    @property
    def critic(self) -> str | None:
        """Head that the dial tilts by: 'tilt' (a calibrated critic of its own), 'q', 'reward', or None."""
        return self.network.dial

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
        """Unnormalised log π(·|x) at the given tokens of a batch."""
        return self.rows_of(self.network.hidden_without_dropout(batch)[tokens])

    def rows_of(self, hidden: Tensor) -> Logits:
        """Unnormalised log π(·|x) at hidden states [N, D]."""
        return self.network.policy(hidden, beta=self.beta, logging=self.origin.estimates_logging)

    # ------------------------------------------------------------------ lists

    def batch(self, histories: Sequence[Sequence[Hashable]], events: Sequence[Sequence[str]] | None = None) -> Batch:
        """Histories of item ids (and their events) as a batch. Items that this policy never saw are left out."""
        if self._index is None:
            self._index = index_of(self.items)
        batch = batch_from(histories, events, index=self._index, names=self.origin.events, length=self.network.length)
        return batch.to(self.network.embedding.device)

    def log_probabilities(
        self, histories: Sequence[Sequence[Hashable]], events: Sequence[Sequence[str]] | None = None
    ) -> Tensor:
        """log π(·|x) of every item for each history: [B, V]. For small catalogues."""
        return torch.log_softmax(self.logits(self.batch(histories, events)).chunk(0, self.n_items), dim=1)

    def recommend(
        self,
        histories: Any,
        k: int,
        *,
        events: Sequence[Sequence[str]] | None = None,
        sample: bool = False,
        exclude_seen: bool = False,
        exclude: Sequence[Hashable] = (),
        exclude_each: Sequence[Sequence[Hashable]] | None = None,
        candidates: Sequence[Sequence[Hashable] | None] | None = None,
        seed: int | None = None,
    ) -> Lists:
        """The k best items for each history, or with `sample` k drawn without replacement, with propensities.

        `histories` are lists of item ids, or a frame with a row per event. `exclude` is never shown to anyone;
        `exclude_each` and `candidates` (None: all) hold one list per history.
        """
        given = histories_of(histories, self.items["item_id"].type)
        batch = self.batch(given.histories, given.events if events is None else events)
        assert self._index is not None
        lists = lists_from(
            self, batch, given.histories, k, index=self._index, sample=sample, exclude_seen=exclude_seen,
            exclude=exclude, exclude_each=exclude_each, candidates=candidates, seed=seed,
        )  # fmt: skip
        return with_names(replace(lists, ids=given.ids), self.items)

    def with_items(self, table: Any) -> Policy:
        """The policy extended by the new items of a table (a file or a frame): old rows stay, bit for bit."""
        from localpolicy.model.extension import Extension  # it knows networks of all kinds

        extension = Extension(self.items, self.network, table)
        backbone = copy.deepcopy(self.network.towers[0].backbone) if self.network.own_backbone else None
        wider = build(extension.described(self.network.describe()), backbone=backbone)
        state = extension.state(self.network, self.learnt)
        fill(wider, state, source=Path("the extended policy"))
        policy = Policy(wider.to(self.network.embedding.device), self.origin, extension.items, beta=self.beta)
        policy.learnt = self.learnt
        return policy

    @torch.no_grad()
    def scores(self, pairs: Any, histories: Any) -> pa.Table:
        """log π(item | history) of given pairs: `pairs` is a frame of sequence_id (as in `histories`) and item_id.

        `histories` is a frame with a row per event. The result is the table of `pairs` with a column log_probability;
        null for an item that the policy never saw.
        """
        wanted = pairs_of(pairs, histories, self.items["item_id"].type)
        index = index_of(self.items)
        found: list[float | None] = []
        for first in range(0, len(wanted.items), AT_ONCE):
            part = slice(first, first + AT_ONCE)
            events = None if wanted.events is None else wanted.events[part]
            rows = self.logits(self.batch(wanted.histories[part], events))
            known = [index.get(item, -1) for item in wanted.items[part]]
            at = torch.tensor(known, device=self.network.embedding.device)
            logp = rows.at(at.clamp(min=0)) - fused.logsumexp(rows)
            found += [value if item >= 0 else None for value, item in zip(logp.tolist(), known, strict=True)]
        return wanted.table.append_column("log_probability", pa.array(found, pa.float64()))

    # ------------------------------------------------------------------ on disk

    def save(self, folder: Path, *, catalogue: Path | None = None) -> None:
        """Write the policy; equal policies give equal bytes."""
        folder = Path(folder)
        save_weights(self.network.state_dict(), folder / "policy.safetensors")
        self.save_description(folder, catalogue=catalogue)

    def save_description(self, folder: Path, *, catalogue: Path | None = None) -> None:
        """Write everything but the weights: policy.json and items.parquet."""
        write_json(
            folder / "policy.json",
            {"format": FORMAT.current, "network": self.network.describe(), "origin": self.origin._asdict()},
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
        """Read a saved policy (a run folder). `backbone` is the user's module, if the run was trained with one.

        With `shard` only this rank's rows are read.
        """
        folder = Path(folder)
        if not (folder / "policy.json").exists():
            raise RunError(f"{folder} is not a run (no policy.json). 'lpi train' makes one.")
        about = _description(folder / "policy.json")
        made = about.network
        if backbone is not None and not made.own_backbone:
            raise RunError(f"{folder} needs no backbone=: it has one of ours.")
        if backbone is None and made.own_backbone:
            backbone = passed_before(made.own_backbone)
        shard = None if shard is None else shard._replace(n_items=made.items)
        with torch.device("meta"):
            refuse_other_shapes(build(made.model_dump(), backbone=backbone), folder / weights)
        network = build(made.model_dump(), backbone=backbone, shard=shard)
        tensors = load_weights(folder / weights, split=network.split, shard=shard)
        refuse_broken(tensors, folder / weights)
        learnt, tensors = without_features(tensors)
        fill(network, tensors, source=folder / weights)
        items = _catalogue(folder / "items.parquet", made.items)
        policy = cls(network, about.origin, items, beta=beta)
        policy.learnt = learnt
        return policy


class _StoredPart(BaseModel):
    """Schema of a part of policy.json: other keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class _Made(_StoredPart):
    """Schema of `Network.describe`."""

    model: ModelConfig
    items: int = Field(ge=1, le=LARGEST)
    events: int = Field(ge=0, le=LARGEST)
    length: int = Field(ge=1, le=LARGEST)
    heads: tuple[Literal[*HEADS], ...]  # type: ignore[valid-type]
    own_backbone: str | Literal[False] | None


class _MadeTowers(_Made):
    """Schema of `Towers.describe`: μ̂'s network, and its critics."""

    critics: list[_Made] = Field(min_length=1)
    beta: float = Field(gt=0)
    slope: float = Field(ge=0)
    cap: float | None = Field(None, gt=1)


class _Description(_StoredPart):
    """Schema of policy.json for a single network."""

    format: int
    network: _Made
    origin: Origin


class _TowersDescription(_Description):
    """Schema of policy.json for several towers."""

    network: _MadeTowers


def _description(path: Path) -> _Description:
    content = FORMAT.upgraded(read_json(path), path.parent)
    try:
        towers = isinstance(content.get("network"), dict) and "critics" in content["network"]
        description = (_TowersDescription if towers else _Description).model_validate(content)
    except ValidationError as error:
        why = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())
        raise RunError(f"{path} is not a policy's: it was altered. Train again. ({why})") from None
    heads = ("logging",) if isinstance(description.network, _MadeTowers) else description.network.heads
    if description.origin.estimates_logging not in (None, *heads):
        raise RunError(f"{path} is not a policy's: it was altered. Train again. (origin.estimates_logging is no head)")
    return description


def _catalogue(path: Path, items: int) -> pa.Table:
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise RunError(f"{path} cannot be read ({error}): it was altered.") from None
    if "item_id" not in table.column_names or len(table) != items:
        raise RunError(f"{path} does not name the {items:,} items of the policy ({len(table):,} rows): it was altered.")
    return table


class _HeadPolicy(Policy):
    """Policy by another head of the same network."""

    def __init__(self, network: Network | Towers, origin: Origin, items: pa.Table, head: str) -> None:
        super().__init__(network, origin, items)
        self._head = head

    def rows_of(self, hidden: Tensor) -> Logits:
        """Logits of the given head at hidden states [N, D]."""
        return self.network.head(self._head).detach().logits(hidden)
