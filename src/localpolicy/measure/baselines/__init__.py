"""Simple baselines, as policies like any other: published work shows them beating deep ones on these data.

Each is fitted on the training split alone and gives a whole distribution over the catalogue, so that ranks,
divergence, off-policy estimates and the truth are measured as for a trained policy. A GRU, the fourth baseline
one should have, is a run like others: `lpi train DATA --objective mle --set model.backbone=gru`.
"""

from __future__ import annotations

from collections.abc import Callable

from localpolicy.data.store import Prepared
from localpolicy.measure.baselines.last_item import LastItem
from localpolicy.measure.baselines.neighbours import ItemNeighbours
from localpolicy.measure.baselines.popularity import Popularity
from localpolicy.measure.scorer import Deployable

BASELINES: dict[str, Callable[[Prepared], Deployable]] = {
    "popularity": Popularity.fit,
    "last item": LastItem.fit,
    "item-kNN": ItemNeighbours.fit,
}

__all__ = ["BASELINES", "ItemNeighbours", "LastItem", "Popularity"]
