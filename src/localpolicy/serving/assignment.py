"""Who gets the candidate: a salted hash decides, so that everyone keeps their arm and a larger share only adds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localpolicy.errors import ConfigError

SHADOW = "shadow"


def hashed_position(unit: str, salt: str) -> float:
    """A number in [0, 1) that depends on the unit and the salt alone; 52 bits of a sha256."""
    return int(hashlib.sha256(f"{salt}:{unit}".encode()).hexdigest()[:13], 16) / 16**13


@dataclass(frozen=True)
class Assignment:
    """The candidate's share of traffic now."""

    salt: str
    stage: str  # '' without a rollout, 'shadow', or the share in percent
    share: float

    @classmethod
    def none(cls) -> Assignment:
        """All traffic to the current policy."""
        return cls("", "", 0.0)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Assignment:
        """Out of a rollout's file."""
        share = content["share"]
        if not isinstance(share, int | float) or not 0 <= share <= 1:
            raise ConfigError(f"a rollout's share must be between 0 and 1, got {share!r}.")
        return cls(str(content["salt"]), str(content["stage"]), float(share))

    @property
    def shadow(self) -> bool:
        """Whether the candidate is asked, and not shown."""
        return self.stage == SHADOW

    def is_candidate(self, unit: str) -> bool:
        """Whether this unit gets the candidate."""
        return hashed_position(unit, self.salt) < self.share
