"""π(a|x) = (1 - ε) 1[a is the last item answered] + ε popularity: people come back to what they had."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import torch
from torch import Tensor

from localpolicy.catalogue.logits import Logits
from localpolicy.data.store import Prepared
from localpolicy.measure.baselines.history import popularity, recent, target_events
from localpolicy.measure.baselines.sparse_rows import mixed
from localpolicy.model.policy import Origin
from localpolicy.types import Batch


@dataclass(frozen=True)
class LastItem:
    """The last item again, then the popular ones."""

    share: Tensor  # [V] popularity
    codes: list[int]  # events that answer
    origin: Origin
    items: pa.Table
    background: float = 0.5  # ε; ranks do not depend on it, likelihood and divergence do

    @classmethod
    def fit(cls, data: Prepared) -> LastItem:
        """Only popularity is learned."""
        origin = Origin("last item", data.kind, data.events, None)
        return cls(popularity(data), target_events(data, context=True), origin, data.catalogue)

    def logits(self, batch: Batch) -> Logits:
        """One exception per row."""
        row, item, _ = recent(batch, self.codes, depth=1)
        share = self.share.to(row.device)
        whole = torch.ones(len(row), device=row.device)
        return mixed(share, len(batch.scored), row, item, whole, background=self.background)
