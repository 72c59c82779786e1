"""Histories as people have them, ids and names of events, for whatever gives rows over a catalogue."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import torch

from localpolicy.catalogue import fused
from localpolicy.catalogue.logits import Logits
from localpolicy.data.batches import batch_of_histories
from localpolicy.data.store import CONTEXT, NO_ANSWER
from localpolicy.errors import DataError, nearest
from localpolicy.model.lists import Lists, draw_lists
from localpolicy.types import Batch

LONGEST = 1_000  # actions of a history that a policy without a network is handed
Index = Mapping[Hashable, int]


class ListingPolicy(Protocol):
    """A policy that knows its items, and the events of its histories."""

    @property
    def items(self) -> pa.Table:
        """index, item_id, count."""
        ...

    @property
    def origin(self) -> Any:
        """With `events`, by code."""
        ...

    def logits(self, batch: Batch) -> Logits:
        """Unnormalised log-probabilities at the batch's positions."""
        ...


def index_of(items: pa.Table) -> dict[Hashable, int]:
    """Item id -> index."""
    return {value: index for index, value in enumerate(items["item_id"].to_pylist())}


def batch_from(
    histories: Sequence[Sequence[Hashable]],
    events: Sequence[Sequence[str]] | None,
    *,
    index: Index,
    names: Sequence[str],
    length: int = LONGEST,
) -> Batch:
    """Histories of item ids (and what came of each) as a batch. Items that are not in `index` are left out."""
    if events is None:  # each counts as the first event
        indices = [[*map(index.get, history)] for history in histories]
        known = [[each for each in row if each is not None] for row in indices]
        return batch_of_histories(known, length=length)
    codes = {name: code for code, name in enumerate(names)}
    items, given_events = [], []
    for number, history in enumerate(histories):
        given = list(events[number])
        if len(given) != len(history):
            raise DataError(f"history {number} has {len(history)} items and {len(given)} events.")
        unknown = next((name for name in given if name not in codes), None)
        if unknown is not None:
            raise DataError(f"history {number}: no event '{unknown}'{nearest(str(unknown), codes)}")
        pairs = [(index[item], codes[name]) for item, name in zip(history, given, strict=True) if item in index]
        items.append([item for item, _ in pairs])
        given_events.append([event for _, event in pairs])
    return batch_of_histories(items, given_events, length=length)


def lists_from(
    policy: ListingPolicy,
    batch: Batch,
    histories: Sequence[Sequence[Hashable]],
    k: int,
    *,
    index: Index,
    sample: bool = False,
    exclude_seen: bool = False,
    exclude: Sequence[Hashable] = (),
    exclude_each: Sequence[Sequence[Hashable]] | None = None,
    candidates: Sequence[Sequence[Hashable] | None] | None = None,
    seed: int | None = None,
) -> Lists:
    """The k best items for each history of the batch, or with `sample` k drawn without replacement.

    Of each history's own, `exclude_each` may not be shown, and only `candidates` may (None: all).
    """

    def known(items: Sequence[Hashable]) -> set[int]:
        return {index[item] for item in items if item in index}

    everything = set(range(len(policy.items))) if candidates is not None else set()
    forbidden = []
    for row, history in enumerate(histories):
        mine = known(exclude) | (known(history) if exclude_seen else set())
        mine |= known(exclude_each[row]) if exclude_each is not None else set()
        allowed = None if candidates is None else candidates[row]
        forbidden.append(sorted(mine if allowed is None else mine | (everything - known(allowed))))
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return draw_lists(
        policy.logits(batch), k, ids=policy.items["item_id"], forbidden=forbidden, sample=sample, generator=generator,
        catalogue=fused,
    )  # fmt: skip


def answered_event(events: Sequence[str]) -> str:
    """The event that an item of a history stands for where nothing is said of it, and it was answered."""
    return next(name for name in events if name not in (NO_ANSWER, CONTEXT))


def recommend_with(
    policy: ListingPolicy,
    histories: Sequence[Sequence[Hashable]],
    k: int,
    *,
    events: Sequence[Sequence[str]] | None = None,
    **options: Any,
) -> Lists:
    """Lists from a policy without a network, such as a baseline. Without `events` every item counts as wanted."""
    index = index_of(policy.items)
    if events is None:
        events = [[answered_event(policy.origin.events)] * len(history) for history in histories]
    batch = batch_from(histories, events, index=index, names=policy.origin.events)
    return lists_from(policy, batch, histories, k, index=index, **options)
