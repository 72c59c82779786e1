"""Ranking metrics of one rank, named as in every report: nDCG@20 is the same text in code, command line and page."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from localpolicy.errors import ConfigError, nearest

Array = np.ndarray


def hit(rank: Array, k: int) -> Array:
    """1[rank <= k]."""
    return np.asarray(rank <= k, dtype=np.float64)


def ndcg(rank: Array, k: int) -> Array:
    """1[rank <= k] / log2(rank + 1)."""
    return np.asarray(hit(rank, k) / np.log2(rank + 1))


def mrr(rank: Array, k: int) -> Array:
    """1[rank <= k] / rank."""
    return np.asarray(hit(rank, k) / rank)


METRICS: dict[str, Callable[[Array, int], Array]] = {"HR": hit, "nDCG": ndcg, "MRR": mrr}


def metric(name: str) -> Callable[[Array], Array]:
    """The function that `nDCG@20` names; without @k the whole catalogue counts."""
    match = re.fullmatch(r"([A-Za-z]+)(?:@([1-9][0-9]*))?", name)
    if not match or match[1] not in METRICS:
        raise ConfigError(f"no metric '{name}'{nearest(name.partition('@')[0], METRICS)}; write it as nDCG@20.")
    function, k = METRICS[match[1]], int(match[2] or np.iinfo(np.int64).max)
    return lambda rank: function(rank, k)
