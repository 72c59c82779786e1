"""Interface of everything that recommends: a policy, a baseline, a file of lists."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import pyarrow as pa

from localpolicy.logits import Logits
from localpolicy.types import Batch


class Origin(NamedTuple):
    """Objective, log and events that a policy was made from; recorded with every metric of it."""

    objective: str
    kind: str  # kind of its log: 'interactions' or 'impressions'
    events: list[str]  # event names by code
    estimates_logging: str | None  # head that estimates μ: 'policy', 'logging' or none


class Deployable(Protocol):
    """Source of logits over a catalogue, which knows its items and events: a policy, or a baseline."""

    @property
    def items(self) -> pa.Table:
        """Item table of the catalogue: index, item_id, count."""
        ...

    @property
    def origin(self) -> Origin:
        """Objective, log and events that this was made from."""
        ...

    def logits(self, batch: Batch) -> Logits:
        """Unnormalised log-probabilities at the batch's positions."""
        ...
