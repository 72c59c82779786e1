"""What can be measured: anything with rows over the catalogue; and what could be deployed."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa
import torch

from localpolicy.catalogue.logits import Logits
from localpolicy.model.histories import LONGEST
from localpolicy.model.policy import Origin, Policy
from localpolicy.types import Batch


class Scorer(Protocol):
    """Anything with rows over the catalogue: a policy, or a simple baseline."""

    def logits(self, batch: Batch) -> Logits:
        """Unnormalised log-probabilities at the batch's positions."""
        ...


class Deployable(Scorer, Protocol):
    """A scorer that knows which items it speaks of, and which events its histories hold."""

    @property
    def items(self) -> pa.Table:
        """index, item_id, count."""
        ...

    @property
    def origin(self) -> Origin:
        """What it was made from."""
        ...


def context_length(policy: Deployable) -> int:
    """The longest context this policy reads, in actions."""
    return policy.network.length if isinstance(policy, Policy) else LONGEST


def device_of(*policies: Scorer) -> torch.device:
    """Where the first network among these wants its batches; what has no network follows."""
    inner = (getattr(policy, "policy", policy) for policy in policies)  # one that is read through another's catalogue
    devices = (policy.network.embedding.device for policy in inner if isinstance(policy, Policy))
    return next(devices, torch.device("cpu"))
