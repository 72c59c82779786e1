"""What a baseline reads of a log: who answered what, and how recently."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from localpolicy.data.store import CONTEXT, NO_ANSWER, Prepared
from localpolicy.types import Batch

SMOOTHING = 0.5  # added to every item's count, so that no item has probability 0 and log p is finite


def target_events(data: Prepared, *, context: bool = False) -> list[int]:
    """Codes of the events that say someone wanted an item; with `context` also those that no policy chose."""
    unwanted = {NO_ANSWER} if context else {NO_ANSWER, CONTEXT}
    return [code for code, name in enumerate(data.events) if name not in unwanted]


def popularity(data: Prepared) -> Tensor:
    """(answers + ½) / Σ (answers + ½), over the training split: [V]."""
    train = data["train"].arrays
    wanted = np.isin(train["event"], target_events(data))
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
