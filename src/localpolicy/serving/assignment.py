"""Who gets the candidate: a salted hash decides, so that everyone keeps their arm and a larger share only adds."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localpolicy.errors import ConfigError

SHADOW = "shadow"
BACK = "rolled back"


def share_of(stage: str) -> float:
    """Return the share of traffic that gets the candidate in a stage."""
    try:
        share = 0.0 if stage == SHADOW else float(stage) / 100
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise ConfigError(f"a stage is 'shadow' or a percentage up to 100, got '{stage}'.")
    return share


def hashed_position(unit: str, salt: str) -> float:
    """Return a number in [0, 1) that depends on the unit and the salt alone: 52 bits of a sha256."""
    return int(hashlib.sha256(f"{salt}:{unit}".encode()).hexdigest()[:13], 16) / 16**13


@dataclass(frozen=True)
class Assignment:
    """Candidate policy and its present share of traffic."""

    salt: str
    stage: str  # '' without a rollout, 'shadow', the share in percent, or 'rolled back'
    share: float
    rollout: str = ""  # its id
    export: Path | None = None  # the candidate's folder
    version: str = ""  # the candidate's expected version
    replaces: frozenset[str] = frozenset()  # once the rollout is done: versions that the candidate replaces

    @classmethod
    def none(cls) -> Assignment:
        """Return the assignment of all traffic to the current policy."""
        return cls("", "", 0.0)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Assignment:
        """Build the assignment from the content of a rollout's file."""
        share, candidate = content["share"], content["candidate"] or {"export": None, "version": ""}
        if not isinstance(share, int | float) or not 0 <= share <= 1:
            raise ConfigError(f"a rollout's share must be between 0 and 1, got {share!r}.")
        export = None if candidate["export"] is None else Path(candidate["export"])
        return cls(str(content["salt"]), str(content["stage"]), float(share), str(content["id"]), export,
                   str(candidate["version"]), frozenset(content.get("replaces", ())))  # fmt: skip

    @property
    def on(self) -> bool:
        """Whether a rollout is running."""
        return self.stage not in ("", BACK)

    def over(self, current: str) -> bool:
        """Whether the rollout is done and a policy that it did not replace has become the current one."""
        return bool(self.replaces) and current not in self.replaces

    @property
    def shadow(self) -> bool:
        """Whether the candidate makes lists that are not shown (stage `shadow`)."""
        return self.stage == SHADOW

    def is_candidate(self, unit: str) -> bool:
        """Whether this unit gets the candidate."""
        return hashed_position(unit, self.salt) < self.share
