"""Logging policy of the shop: it reads the observable history alone, and all its probabilities are known.

    μ(a|h) = ρ(h) again(a|h) + (1 − ρ(h)) P(category of a | h) P(a | category)
    P(c|h) = (1 − ε) softmax_c((quality · decayed answers in c + log s_c) / temperature) + ε s_c

with s_c the popularity of category c. `again` re-shows one of the last few answered items, the latest most often; ρ(h)
is 0 while nothing was answered. The ε part is plain global popularity. A draw costs the number of categories, never the
size of the catalogue.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from localpolicy.simulation.assortment import Assortment
from localpolicy.simulation.store_config import StoreConfig

SLOTS = 4  # answered items that may be shown again
COUNT_DECAY = 0.9  # of the answers in a category, per impression


def _slot_weights() -> np.ndarray:
    """[m, slot]: with m answered items known, the slot-th latest is shown again with weight 2^-slot."""
    weights = np.tril(np.ones((SLOTS + 1, SLOTS)), -1) * 0.5 ** np.arange(SLOTS)
    return np.asarray(weights / np.maximum(weights.sum(1, keepdims=True), 1e-300))


SLOT_WEIGHTS = _slot_weights()
SLOT_CUMULATIVE = np.cumsum(SLOT_WEIGHTS, 1)


@dataclass
class Memory:
    """Summary of B histories: recent answers, and decayed answers by category."""

    counts: np.ndarray  # [B, C] decayed answers
    answered: np.ndarray  # [B, SLOTS] answered items, latest first, -1 where none

    def leave(self, remaining: int) -> None:
        """Keep the first `remaining` histories."""
        self.counts, self.answered = self.counts[:remaining], self.answered[:remaining]


class ShopLogging:
    """Logging policy μ of one shop."""

    def __init__(self, config: StoreConfig, goods: Assortment) -> None:
        self.config = config
        self.goods = goods
        self.log_share = np.log(goods.share).astype(np.float32)

    def start(self, size: int) -> Memory:
        """Summary of B empty histories."""
        counts = np.zeros((size, self.config.categories), np.float32)
        return Memory(counts, np.full((size, SLOTS), -1, np.int32))

    def observe(self, memory: Memory, item: np.ndarray, event: np.ndarray) -> None:
        """Add one impression and its answer to each history."""
        answered = event > 0
        memory.counts *= COUNT_DECAY
        memory.counts[np.arange(len(item)), self.goods.category[item]] += answered
        memory.answered[answered, 1:] = memory.answered[answered, :-1]
        memory.answered[answered, 0] = item[answered]

    def replay(self, items: np.ndarray, events: np.ndarray) -> Memory:
        """Summary of whole histories [B, t]."""
        memory = self.start(len(items))
        for step in range(items.shape[1]):
            self.observe(memory, items[:, step], events[:, step])
        return memory

    def categories(self, memory: Memory) -> np.ndarray:
        """P(c|h) [B, C]."""
        scores = (self.config.quality * memory.counts + self.log_share) / self.config.temperature
        scores -= scores.max(1, keepdims=True)
        np.exp(scores, out=scores)
        scores *= (1 - self.config.exploration) / scores.sum(1, keepdims=True)
        return np.asarray(scores + self.config.exploration * self.goods.share.astype(np.float32))

    def choose(self, memory: Memory, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """a ~ μ(·|h) and μ(a|h), each [B]."""
        known = (memory.answered >= 0).sum(1)
        repeat_share = self.config.repeats * (known > 0)
        luck = rng.random((4, len(known)))
        slot = (luck[1][:, None] >= SLOT_CUMULATIVE[known]).sum(1).clip(max=SLOTS - 1)
        again = memory.answered[np.arange(len(known)), np.minimum(slot, np.maximum(known - 1, 0))]
        categories = self.categories(memory)
        line = np.cumsum(categories, 1)
        category = (luck[2][:, None] * line[:, -1:] >= line).sum(1).clip(max=self.config.categories - 1)
        item = np.where(luck[0] < repeat_share, again, self.goods.draw(category, luck[3])).astype(np.int32)
        weight = (SLOT_WEIGHTS[known] * (memory.answered == item[:, None])).sum(1)
        fresh = categories[np.arange(len(item)), self.goods.category[item]] * self.goods.within[item]
        return item, repeat_share * weight + (1 - repeat_share) * fresh

    def rows(self, memory: Memory) -> np.ndarray:
        """μ(·|h) over the whole catalogue [B, V]."""
        known = (memory.answered >= 0).sum(1)
        repeat_share = self.config.repeats * (known > 0)
        fresh = self.categories(memory).astype(np.float64)[:, self.goods.category] * self.goods.within
        rows: np.ndarray = (1 - repeat_share)[:, None] * fresh
        for slot, items in enumerate(memory.answered.T):
            there = np.flatnonzero(items >= 0)
            rows[there, items[there]] += repeat_share[there] * SLOT_WEIGHTS[known[there], slot]
        return rows
