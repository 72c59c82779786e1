"""Items of a simulated shop: categories, heavy-tailed popularity, and hidden traits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from localpolicy.errors import ConfigError
from localpolicy.simulation.distributions import PopularityLaw


@dataclass(frozen=True)
class Assortment:
    """Items [V] of a shop, numbered category by category [C], each category's most popular first."""

    law: PopularityLaw  # popularity within a category
    share: np.ndarray  # [C] popularity of each category
    first: np.ndarray  # [C] number of its most popular item
    size: np.ndarray  # [C]
    category: np.ndarray  # [V]
    within: np.ndarray  # [V] probability of the item given its category
    appeal: np.ndarray  # [V] moves clicks
    quality: np.ndarray  # [V] moves purchases
    depth: np.ndarray  # [V] in [-1, 1]: bait (< 0) costs purchase intent, depth builds it

    def draw(self, category: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Draw an item of each category by popularity, from uniform numbers in [0, 1)."""
        return np.asarray(self.first[category] + self.law.sample(uniform, self.size[category]))


def stock(
    items: int, categories: int, *, law: PopularityLaw, category_tail: float, bait: float, rng: np.random.Generator
) -> Assortment:
    """Make the items of a shop. Appeal and quality have variance 1; `bait` in [0, 1] is −corr(depth, appeal)."""
    if categories > items:
        raise ConfigError(f"{categories} categories need at least as many items, got {items}.")
    share = (1.0 + np.arange(categories)) ** -category_tail
    share /= share.sum()
    size = _sizes(items, share)
    category = np.repeat(np.arange(categories), size)
    first = np.cumsum(size) - size
    depth = rng.uniform(-1, 1, items)
    return Assortment(
        law=law,
        share=share,
        first=first,
        size=size,
        category=category,
        within=law.probability(np.arange(items) - first[category], size[category]),
        appeal=-bait * np.sqrt(3) * depth + np.sqrt(1 - bait**2) * rng.standard_normal(items),
        quality=rng.standard_normal(items),
        depth=depth,
    )


def _sizes(items: int, share: np.ndarray) -> np.ndarray:
    """Number of items per category: one each, the rest by √share (popular categories are larger, and also denser)."""
    weight = np.sqrt(share) / np.sqrt(share).sum()
    bounds = np.round(np.cumsum(weight) * (items - len(share))).astype(np.int64)
    return 1 + np.diff(bounds, prepend=0)
