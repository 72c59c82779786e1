"""Histories as users give them (item ids and names of events), turned into batches for any policy."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from localpolicy.catalogue import fused
from localpolicy.data.batches import batch_of_histories
from localpolicy.data.column_names import columns_meant
from localpolicy.data.column_names import plain as plain_name
from localpolicy.data.store import CONTEXT, NO_ANSWER
from localpolicy.errors import DataError, nearest, shown
from localpolicy.model.deployable import Deployable
from localpolicy.model.lists import Lists, draw_lists, with_names
from localpolicy.runtime.frames import arrow_stream, is_table, plain_table, table_name
from localpolicy.types import Batch

LONGEST = 1_000  # actions of a history that a policy without a network reads
Index = Mapping[Hashable, int]


class Histories(NamedTuple):
    """Histories of B users, with their events and their users' ids if these are known."""

    histories: list[list[Hashable]]
    events: list[list[str]] | None = None
    ids: list[Any] | None = None  # sequence ids of a frame, in the order of their first rows


EXPECTED = (
    "expected lists of item ids (one for each person), or a frame with a row per event: whose it is (sequence_id, "
    "user_id, …), item_id and, if known, event and timestamp"
)


def histories_of(given: Any, kind: pa.DataType) -> Histories:
    """Histories from lists of lists, or from a frame, else DataError. `kind` is the type of the catalogue's ids."""
    if is_table(given):
        return _of_frame(given, kind)
    if isinstance(given, str | bytes | Mapping) or not hasattr(given, "__len__") or not hasattr(given, "__getitem__"):
        raise DataError(f"{EXPECTED}; got {table_name(given)}.")
    plain = {int if pa.types.is_integer(kind) else str}
    if set(map(type, given)) <= {list, tuple} and set(map(type, chain.from_iterable(given))) <= plain:
        return Histories([*map(list, given)])  # as most are; to look at each item takes 20 times as long
    for number, history in enumerate(given):
        if isinstance(history, str | bytes | Mapping) or not hasattr(history, "__len__"):
            raise DataError(f"{EXPECTED}; history {number} is {shown(history)}. One history is a list too: [[…]].")
    return Histories([[_id(item, kind, number) for item in history] for number, history in enumerate(given)])


def _id(item: Any, kind: pa.DataType, number: int) -> Hashable:
    """Item id as a number or text of the catalogue's type; DataError if it is neither."""
    plain = item.item() if isinstance(item, np.generic) else item
    fits = (
        isinstance(plain, int) and not isinstance(plain, bool) if pa.types.is_integer(kind) else isinstance(plain, str)
    )
    if not fits:
        wanted = "whole numbers" if pa.types.is_integer(kind) else "texts"
        raise DataError(f"history {number}: the log's items are {wanted}, got {shown(item)} ({type(item).__name__}).")
    known: Hashable = plain
    return known


def _listed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _of_frame(frame: Any, kind: pa.DataType) -> Histories:
    """Histories from a frame with one row per event, sorted by time if it has one; or with one list per person."""
    table = plain_table(arrow_stream(frame))
    meant = columns_meant(table.column_names, ("sequence_id", "item_id", "event", "timestamp"))
    whole = next((name for name in table.column_names if plain_name(name) in ("history", "items", "histories")), None)
    if whole is not None and _listed(table[whole].type):
        given = histories_of([list(row) for row in table[whole].to_pylist()], kind)
        return given._replace(ids=table[meant["sequence_id"]].to_pylist() if "sequence_id" in meant else None)
    missing = [name for name in ("sequence_id", "item_id") if name not in meant]
    if missing:
        raise DataError(f"{EXPECTED}; no column means {' or '.join(missing)} among {', '.join(table.column_names)}.")
    if "timestamp" in meant:
        table = table.take(pc.sort_indices(table, [(meant["timestamp"], "ascending")]))
    rows: dict[Any, tuple[list[Hashable], list[str]]] = {}
    happened = table[meant["event"]].cast(pa.string()).to_pylist() if "event" in meant else [""] * len(table)
    columns = (table[meant["sequence_id"]].to_pylist(), table[meant["item_id"]].to_pylist(), happened)
    for who, item, event in zip(*columns, strict=True):
        items, events = rows.setdefault(who, ([], []))
        items.append(_id(item, kind, len(rows) - 1))
        events.append(event)
    events_of = [events for _, events in rows.values()] if "event" in meant else None
    return Histories([items for items, _ in rows.values()], events_of, list(rows))


class Pairs(NamedTuple):
    """Items whose scores are wanted, each with its history."""

    table: pa.Table  # the table that was given
    items: list[Hashable]
    histories: list[list[Hashable]]
    events: list[list[str]] | None


def pairs_of(pairs: Any, histories: Any, kind: pa.DataType) -> Pairs:
    """Pairs of user and item from a frame, each with the user's history from another frame."""
    given = histories_of(histories, kind)
    if not is_table(pairs) or given.ids is None:
        raise DataError("scores need two frames: pairs with sequence_id and item_id; histories with sequence_id too.")
    table = plain_table(arrow_stream(pairs))
    meant = columns_meant(table.column_names, ("sequence_id", "item_id"))
    if len(meant) < 2:
        raise DataError(f"pairs need sequence_id and item_id; the columns are {', '.join(table.column_names)}.")
    row = {who: number for number, who in enumerate(given.ids)}
    whose = table[meant["sequence_id"]].to_pylist()
    if (unknown := next((who for who in whose if who not in row), None)) is not None:
        raise DataError(f"pairs: no history of {shown(unknown)} is given.")
    items = [_id(item, kind, number) for number, item in enumerate(table[meant["item_id"]].to_pylist())]
    events = None if given.events is None else [given.events[row[who]] for who in whose]
    return Pairs(table, items, [given.histories[row[who]] for who in whose], events)


def index_of(items: pa.Table) -> dict[Hashable, int]:
    """Map from item id to index."""
    return {value: index for index, value in enumerate(items["item_id"].to_pylist())}


def batch_from(
    histories: Sequence[Sequence[Hashable]],
    events: Sequence[Sequence[str]] | None,
    *,
    index: Index,
    names: Sequence[str],
    length: int = LONGEST,
) -> Batch:
    """Histories of item ids (and their events) as a batch. Items that are not in `index` are left out."""
    if events is None:  # each counts as the first event
        indices: Any = [[*map(index.get, history)] for history in histories]
        if None in chain.from_iterable(indices):
            indices = [[each for each in row if each is not None] for row in indices]
        return batch_of_histories(indices, length=length)
    codes = {name: code for code, name in enumerate(names)}
    items, given_events = [], []
    for number, history in enumerate(histories):
        given = list(events[number])
        if len(given) != len(history):
            raise DataError(f"history {number} has {len(history)} items and {len(given)} events.")
        # Shown items without a response are no history to a policy that learnt from people's actions.
        unknown = next((name for name in given if name not in codes and name != NO_ANSWER), None)
        if unknown is not None:
            raise DataError(f"history {number}: no event '{unknown}'{nearest(str(unknown), codes)}")
        pairs = [
            (index[item], codes[name])
            for item, name in zip(history, given, strict=True)
            if item in index and name in codes
        ]
        items.append([item for item, _ in pairs])
        given_events.append([event for _, event in pairs])
    return batch_of_histories(items, given_events, length=length)


def lists_from(
    policy: Deployable,
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

    `exclude_each` and `candidates` hold one list per history: items that may not be shown, and the only ones that may
    (None: all).
    """

    def known(items: Sequence[Hashable]) -> set[int]:
        return {index[item] for item in items if item in index}

    def forbidden_of(row: int, history: Sequence[Hashable]) -> Sequence[int]:
        mine = known(exclude) | (known(history) if exclude_seen else set())
        mine |= known(exclude_each[row]) if exclude_each is not None else set()
        allowed = None if candidates is None else candidates[row]
        return sorted(mine if allowed is None else mine | (everything - known(allowed)))

    everything = set(range(len(policy.items))) if candidates is not None else set()
    forbidden: list[Sequence[int]] = [()] * len(histories)
    if exclude_seen or exclude or exclude_each is not None or candidates is not None:
        forbidden = [forbidden_of(row, history) for row, history in enumerate(histories)]
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return draw_lists(
        policy.logits(batch), k, ids=policy.items["item_id"], forbidden=forbidden, sample=sample, generator=generator,
        catalogue=fused,
    )  # fmt: skip


def answered_event(events: Sequence[str]) -> str:
    """Event assumed for items of a history without events: the first one that is an answer."""
    return next(name for name in events if name not in (NO_ANSWER, CONTEXT))


def recommend_with(policy: Deployable, histories: Any, k: int, *, events: Any = None, **options: Any) -> Lists:
    """Lists from a policy without a network, such as a baseline. Without `events` every item counts as wanted."""
    index, given = index_of(policy.items), histories_of(histories, policy.items["item_id"].type)
    if events is None:
        wanted = answered_event(policy.origin.events)
        events = given.events or [[wanted] * len(history) for history in given.histories]
    batch = batch_from(given.histories, events, index=index, names=policy.origin.events)
    lists = lists_from(policy, batch, given.histories, k, index=index, **options)
    return with_names(replace(lists, ids=given.ids), policy.items)
