"""Log-weight of items without events, fitted to held-out events.

Known items stand in for new ones: with embeddings mixed from similar items (as if they had no events), in place of
their own, the log w of the largest held-out likelihood is sought. If events of truly new items were held out, these
decide themselves. At the best log w the probability of such items is their share of the events; it is never above 0, so
that no item is preferred for being new.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from localpolicy.catalogue import backend
from localpolicy.data.batches import Windows
from localpolicy.logits import AnyHead, Head
from localpolicy.model.item_embeddings import ABSENT, mixed
from localpolicy.model.network import Network
from localpolicy.runtime.ranks import Ranks

POSITIONS = 2_000  # held-out positions that the log-weight is fitted to
LOWEST, STEPS = -12.0, 24
ENOUGH = 20  # held-out events of new items that suffice for a fit to them


@torch.no_grad()
def fit_rise(network: Network, windows: Windows, catalogue: ModuleType, *, batch_size: int, ranks: Ranks) -> None:
    """Fit the log-weight of new items to held-out events; do nothing without new items."""
    features = network.features
    if features is None or features.new is None or "policy" not in network.heads:
        return
    hidden, items = _held_out(network, windows, batch_size=batch_size, ranks=ranks)
    new = features.new
    truly = ranks.summed(int(np.isin(items.cpu().numpy(), new.items).sum()))[0] >= ENOUGH
    tried, made = (new.items, new.made) if truly else (new.trial, new.trial_made)
    head, device = network.head("policy"), items.device
    rows, bias = features.whole(head.weight), features.whole(head.bias)  # type: ignore[arg-type]
    near, share = torch.from_numpy(made.near).to(device), torch.from_numpy(made.share).to(rows)
    trial = Head(mixed(rows, near, share), mixed(bias[:, None], near, share).squeeze(1))
    absent = torch.zeros(network.n_items, dtype=torch.bool, device=device)
    absent[torch.from_numpy(np.concatenate([tried, new.items])).to(device)] = True
    own = absent if network.shard is None else absent[network.shard.own]
    others = head.replaced(head.weight, head.bias.masked_fill(own, ABSENT))  # type: ignore[union-attr]
    anchor = int((~absent).nonzero()[0])
    ahead = _logsumexp(trial, hidden, 0, backend()) - _logsumexp(others, hidden, anchor, catalogue)
    is_tried = torch.zeros_like(absent)
    is_tried[torch.from_numpy(tried).to(device)] = True
    counted = is_tried[items] | ~absent[items]
    taken = float(is_tried[items[counted]].sum())
    ahead = ahead[counted].double()

    def rises(log_weight: float) -> bool:
        """Whether d/ds Σ [s 1(new) - log(others + e^s new)] = Σ [1(new) - share of the new] > 0."""
        return ranks.summed(taken - float(torch.sigmoid(ahead + log_weight).sum()))[0] > 0

    low, high = LOWEST, 0.0
    if rises(high):
        features.rise.fill_(0.0)
        return
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if rises(middle) else (low, middle)
    features.rise.fill_(low)


def _logsumexp(head: AnyHead, hidden: Tensor, item: int, catalogue: ModuleType) -> Tensor:
    """log Σ_a exp(h · w_a + b_a), from one item's score and its log-probability, which every backend gives."""
    at = torch.full((len(hidden),), item, device=hidden.device)
    logits = head.logits(hidden)
    log_probability: Tensor = catalogue.log_prob(logits, at)
    return logits.at(at) - log_probability


def _held_out(network: Network, windows: Windows, *, batch_size: int, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """Hidden states and taken items of the first held-out positions with a history."""
    parts, count = [], 0.0
    for batch in windows.in_order(batch_size, rank=ranks.rank, ranks=ranks.total):
        before = batch.history if batch.context is None else batch.history[batch.context]
        at = batch.scored[before[batch.scored] > 0]
        parts.append((network.hidden_without_dropout(batch)[at], batch.item[at]))
        count += ranks.summed(len(at))[0]
        if count >= POSITIONS:
            break
    hidden, items = zip(*parts, strict=True)
    return torch.cat(hidden), torch.cat(items)
