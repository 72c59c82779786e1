"""Counts for the simple baselines: answers per item, per sequence, and before each position."""

from __future__ import annotations

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from localpolicy.data.store import CONTEXT, NO_ANSWER, Prepared
from localpolicy.limits import SMOOTHING
from localpolicy.types import Batch

LONGEST = 100  # most recent answers of a sequence that count: pairs grow with the square of a lifetime


def events_but(data: Prepared, *left_out: str) -> list[int]:
    """Codes of all events except those named: without NO_ANSWER answers and context, without CONTEXT those shown."""
    return [code for code, name in enumerate(data.events) if name not in left_out]


def popularity(data: Prepared, *, shown: bool = False) -> Tensor:
    """(answers + ½) / Σ (answers + ½), over the training split: [V]. With `shown`, counts of all shown items."""
    train = data["train"].arrays
    wanted = np.isin(train["event"], events_but(data, CONTEXT, *([] if shown else [NO_ANSWER])))
    counts = np.bincount(train["item"][wanted], minlength=data.n_items) + SMOOTHING
    return torch.from_numpy((counts / counts.sum()).astype(np.float32))


def recent(batch: Batch, codes: list[int], depth: int) -> tuple[Tensor, Tensor, Tensor]:
    """(position, item, lag) of the latest items whose event is in `codes`, before each position; lag 0 is the last one.

    Only steps of the window are seen, as by a policy; items that were shown in vain are passed over.
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


def memberships(data: Prepared, codes: list[int]) -> sparse.csr_matrix:
    """Indicator matrix of the items with an event in `codes` in each training sequence: [S, V] of zeros and ones."""
    train = data["train"]
    lengths = np.diff(train.offsets)
    sequence = np.repeat(np.arange(len(train)), lengths)
    from_end = np.repeat(train.offsets[1:], lengths) - np.arange(train.events)
    wanted = np.isin(train.arrays["event"], codes) & (from_end <= LONGEST)
    shape = (len(train), data.n_items)
    counts = sparse.csr_matrix((np.ones(wanted.sum()), (sequence[wanted], train.arrays["item"][wanted])), shape=shape)
    counts.data[:] = 1.0
    return counts
