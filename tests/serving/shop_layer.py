"""A shop with a foreign ranker, and a layer on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from localpolicy.ranker.improve import improve
from localpolicy.simulation.foreign_ranker import ForeignRanker, RankerConfig

SHOP = ForeignRanker(RankerConfig(items=200, people=300, candidates=15, places=5), seed=1)


def make_layer(out: Path) -> Path:
    """A layer with a finite β."""
    rng = np.random.default_rng(1)
    requests = SHOP.requests(2500, rng)
    lists = SHOP.lists(requests, rng)
    tables = SHOP.tables(requests, lists, SHOP.clicks(requests, lists, rng))
    assert improve(*tables, items=SHOP.items(), out=out, critics=("logistic",)).beta < np.inf
    return out
