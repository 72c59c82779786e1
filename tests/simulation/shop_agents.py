"""Reference agents for the shop that see the hidden truth: greedy for now, and greedy for later."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from localpolicy.simulation.shoppers import INTENT_MEMORY, Shoppers
from localpolicy.simulation.store_world import REWARDS


@dataclass(frozen=True)
class Myopic:
    """argmax_a E[reward now | true state, a]."""

    def choose(self, shoppers: Shoppers, remaining: int) -> np.ndarray:
        """Items [B]."""
        del remaining
        return np.asarray(_immediate(shoppers.click_probabilities(), shoppers).argmax(1))


@dataclass(frozen=True)
class FarSighted:
    """argmax_a E[reward now] + P(click) · lookahead · depth · intent_value · Σ_{k<remaining} memory^k.

    One price on purchase intent instead of a plan: not optimal, but what a unit of intent brings later is
    counted, so it beats `Myopic` where clicks move intent, and equals it where `lookahead` is 0.
    """

    intent_value: float = 0.1  # reward per impression that one unit of intent brings while it lasts

    def choose(self, shoppers: Shoppers, remaining: int) -> np.ndarray:
        """Items [B]."""
        later = self.intent_value * INTENT_MEMORY * (1 - INTENT_MEMORY ** (remaining - 1)) / (1 - INTENT_MEMORY)
        click = shoppers.click_probabilities()
        gain = (shoppers.config.lookahead * later * shoppers.goods.depth).astype(np.float32)
        return np.asarray((_immediate(click, shoppers) + click * gain).argmax(1))


def _immediate(click: np.ndarray, shoppers: Shoppers) -> np.ndarray:
    _, clicked, bought = REWARDS.astype(np.float32)
    return np.asarray(click * (clicked + (bought - clicked) * shoppers.purchase_probabilities()))
