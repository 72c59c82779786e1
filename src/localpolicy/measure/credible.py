"""Means of many groups at once, each believed as far as its numbers carry (Bühlmann and Straub 1970)."""

from __future__ import annotations

import numpy as np


def credible_means(
    item: np.ndarray, values: np.ndarray, *, n_items: int, weight: np.ndarray | None = None
) -> np.ndarray:
    """Shrunken mean of every item [V] from the values of n decisions; the overall mean for an item never taken.

    A value of weight w has the variance σ²/w.
    """
    n = len(values)
    if not n:
        return np.zeros(n_items)
    weight = np.ones(n) if weight is None else weight
    counts, mean = np.bincount(item, weights=weight, minlength=n_items), float(np.average(values, weights=weight))
    total = np.bincount(item, weights=weight * values, minlength=n_items)
    means = np.divide(total, counts, out=np.full(n_items, mean), where=counts > 0)
    seen = int((counts > 0).sum())
    if seen < 2 or n <= seen:  # nothing to compare, or no item twice
        return np.full(n_items, mean)
    within = float((weight * (values - means[item]) ** 2).sum()) / (n - seen)
    between = float((counts * (means - mean) ** 2).sum()) - (seen - 1) * within
    between /= counts.sum() - float((counts**2).sum()) / counts.sum()
    if between <= 0:
        return np.full(n_items, mean)
    return np.asarray(mean + counts / (counts + within / between) * (means - mean))
