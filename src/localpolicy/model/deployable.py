"""What recommends, whatever it is made of: a policy, a baseline, a file of lists."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import pyarrow as pa

from localpolicy.logits import Logits
from localpolicy.types import Batch


class Origin(NamedTuple):
    """What a policy was made from; recorded with every metric of it."""

    objective: str
    kind: str  # of its log: 'interactions' or 'impressions'
    events: list[str]  # event names by code
    estimates_logging: str | None  # the head that estimates μ, where there is one: 'policy' or 'logging'


class Deployable(Protocol):
    """Rows over a catalogue that knows its items, and which events its histories hold: a policy, or a baseline."""

    @property
    def items(self) -> pa.Table:
        """index, item_id, count."""
        ...

    @property
    def origin(self) -> Origin:
        """What it was made from."""
        ...

    def logits(self, batch: Batch) -> Logits:
        """Unnormalised log-probabilities at the batch's positions."""
        ...
