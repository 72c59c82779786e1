"""Hidden side of the shop: shoppers' wishes, their answers to an item, and changes by answers.

    P(click)            = σ(base + taste[category] + appeal + repeat effect)
    P(purchase | click) = σ(purchase base + intent + quality)

A click raises the taste for its category, an item shown in vain lowers it. A click on a deep item raises the purchase
intent and a click on bait lowers it, by `lookahead`: there, the item with the best immediate reward is not the best
item to show.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np

from localpolicy.simulation.assortment import Assortment
from localpolicy.simulation.store_config import StoreConfig

RECENT = 8  # shown items that a shopper remembers
TASTE_RISE, TASTE_FALL, TASTE_BOUND = 0.15, 0.05, 3.0
REPEAT_LIFT = 1.0  # logits for an item that the shopper answered recently ...
FATIGUE = 0.4  # ... and against it for each time it was shown recently
INTENT_MEMORY = 0.95  # share of the purchase intent that lasts from one impression to the next


@dataclass
class Shoppers:
    """State of B shoppers; `answer` changes it in place."""

    config: StoreConfig = field(repr=False)
    goods: Assortment = field(repr=False)
    taste: np.ndarray  # [B, C]
    intent: np.ndarray  # [B]
    shown: np.ndarray  # [B, RECENT] items, -1 where none
    liked: np.ndarray  # [B, RECENT] whether each was answered
    step: int = 0

    @classmethod
    def arrive(cls, size: int, config: StoreConfig, goods: Assortment, rng: np.random.Generator) -> Shoppers:
        """Draw B new shoppers."""
        return cls(
            config,
            goods,
            taste=config.taste * rng.standard_normal((size, config.categories), dtype=np.float32),
            intent=config.intent * rng.standard_normal(size, dtype=np.float32),
            shown=np.full((size, RECENT), -1, np.int32),
            liked=np.zeros((size, RECENT), bool),
        )

    def leave(self, remaining: int) -> None:
        """Keep the first `remaining` shoppers."""
        if remaining < len(self.intent):
            for member in fields(self):
                value = getattr(self, member.name)
                if isinstance(value, np.ndarray):
                    setattr(self, member.name, value[:remaining])

    def click_probability(self, item: np.ndarray) -> np.ndarray:
        """P(click) of one item each [B]."""
        again = self.shown == item[:, None]
        repeat = REPEAT_LIFT * (again & self.liked).any(1) - FATIGUE * again.sum(1)
        taste = self.taste[np.arange(len(item)), self.goods.category[item]]
        return sigmoid(self.config.click_base + taste + self.config.appeal * self.goods.appeal[item] + repeat)

    def purchase_probability(self, item: np.ndarray) -> np.ndarray:
        """P(purchase | click) of one item each [B]."""
        return sigmoid(self.config.purchase_base + self.intent + self.config.item_quality * self.goods.quality[item])

    def click_probabilities(self) -> np.ndarray:
        """P(click) of every item [B, V]; costs B x V, so it is for references and tests, not for logs."""
        rows = np.arange(len(self.intent))
        repeat = np.zeros((len(rows), len(self.goods.category)), np.float32)
        for shown, liked in zip(self.shown.T, self.liked.T, strict=True):
            repeat[rows[liked], shown[liked]] = REPEAT_LIFT
        for shown in self.shown.T:
            seen = shown >= 0
            repeat[rows[seen], shown[seen]] -= FATIGUE
        appeal = (self.config.click_base + self.config.appeal * self.goods.appeal).astype(np.float32)
        return sigmoid(self.taste[:, self.goods.category] + appeal + repeat)

    def purchase_probabilities(self) -> np.ndarray:
        """P(purchase | click) of every item [B, V]."""
        quality = (self.config.purchase_base + self.config.item_quality * self.goods.quality).astype(np.float32)
        return sigmoid(self.intent[:, None] + quality)

    def answer(self, item: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw 0 none, 1 click or 2 purchase for one item each; the shoppers change accordingly."""
        # Both draws are made for everyone, so that two policies meet the same luck under the same seed.
        luck = rng.random((2, len(item)), dtype=np.float32)
        clicked = luck[0] < self.click_probability(item)
        bought = clicked & (luck[1] < self.purchase_probability(item))
        own_taste = np.arange(len(item)), self.goods.category[item]
        change = np.where(clicked, np.float32(TASTE_RISE), np.float32(-TASTE_FALL))
        self.taste[own_taste] = np.clip(self.taste[own_taste] + change, -TASTE_BOUND, TASTE_BOUND)
        self.intent *= INTENT_MEMORY
        self.intent += self.config.lookahead * self.goods.depth[item] * clicked
        slot = self.step % RECENT
        self.shown[:, slot] = item
        self.liked[:, slot] = clicked
        self.step += 1
        return np.asarray(clicked.astype(np.uint8) + bought)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x)."""
    return np.asarray(1 / (1 + np.exp(-x)))
