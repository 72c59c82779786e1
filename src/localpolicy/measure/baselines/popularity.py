"""π(a|x) = share of a among all answers: the same list for everyone."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import torch
from torch import Tensor

from localpolicy.catalogue.logits import Logits
from localpolicy.data.store import Prepared
from localpolicy.measure.baselines.history import popularity
from localpolicy.measure.baselines.sparse_rows import SparseLogits
from localpolicy.model.policy import Origin
from localpolicy.types import Batch


@dataclass(frozen=True)
class Popularity:
    """The most popular items first."""

    share: Tensor  # [V]
    origin: Origin
    items: pa.Table

    @classmethod
    def fit(cls, data: Prepared) -> Popularity:
        """Count answers in the training split."""
        return cls(popularity(data), Origin("popularity", data.kind, data.events, None), data.catalogue)

    def logits(self, batch: Batch) -> Logits:
        """log share, whatever the history."""
        share = self.share.to(batch.row.device)
        none = torch.empty(0, dtype=torch.long, device=share.device)
        return SparseLogits(share.log(), len(batch.scored), none, none, share.new_empty(0))
