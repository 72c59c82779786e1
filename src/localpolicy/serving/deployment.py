"""Who answers: the deployed export, perhaps a candidate, and how a new one takes its place.

A new export is loaded and checked beside the old one; requests at work keep the policy they began with. One that is
damaged, or gives other lists than at its export, is refused: the old one goes on, and the reason is told.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from localpolicy.errors import LocalPolicyError
from localpolicy.serving.assignment import Assignment
from localpolicy.serving.recommender import Recommender

LOG = logging.getLogger(__name__)
Stamp = tuple[int, int, int] | None


@dataclass
class Slot:
    """A place where an export lies, and what was loaded from it."""

    folder: Path
    threads: int
    loaded: Recommender | None = None
    stamp: Stamp = None
    refused: str | None = None

    def refresh(self) -> bool:
        """Load what is new; whether anything was."""
        stamp = _stamp(self.folder / "export.json")
        if stamp is None and self.loaded is not None:
            return False  # a folder that is being replaced is absent for a moment
        if stamp == self.stamp and stamp is not None:
            return False
        try:
            made = Recommender(self.folder, threads=self.threads)
            made.check()
        except Exception as error:  # whatever is wrong with it, the old one goes on
            self.refused = str(error)
            self.stamp = stamp
            if self.loaded is None:
                if isinstance(error, LocalPolicyError):
                    raise
                raise LocalPolicyError(f"{self.folder} cannot be served: {error}") from None
            LOG.warning("refused a new export, %s goes on: %s", self.loaded.version, error)
            return False
        if self.loaded is not None and made.version != self.loaded.version:
            LOG.warning("swapped %s for %s", self.loaded.version, made.version)
        self.loaded, self.stamp, self.refused = made, stamp, None
        return True


class Deployment:
    """The current policy, the candidate, and who is given which."""

    def __init__(
        self,
        export: Path,
        *,
        candidate: Path | None = None,
        rollout: Path | None = None,
        threads: int = 1,
    ) -> None:
        self.rollout = rollout
        self.current = Slot(export, threads)
        self.current.refresh()
        self.candidate = None if candidate is None else Slot(candidate, threads)
        if self.candidate is not None:
            self.candidate.refresh()
        self.assignment = Assignment.none()
        self._stage: Stamp = None
        self._read_stage()

    def refresh(self) -> None:
        """Look for new exports and a new stage. Called from one thread at a time."""
        self.current.refresh()
        if self.candidate is not None:
            try:
                self.candidate.refresh()
            except LocalPolicyError as error:
                LOG.warning("the candidate cannot be served: %s", error)
        self._read_stage()

    def _read_stage(self) -> None:
        if self.rollout is None or (stamp := _stamp(self.rollout)) == self._stage:
            return
        self._stage = stamp
        if stamp is None:
            self.assignment = Assignment.none()
            return
        try:
            self.assignment = Assignment.of(json.loads(self.rollout.read_text()))
        except (ValueError, KeyError, LocalPolicyError) as error:
            LOG.warning("%s cannot be read (%s); the candidate gets no traffic", self.rollout, error)
            self.assignment = Assignment.none()

    def recommender(self, unit: str) -> tuple[Recommender, str]:
        """The policy that answers this person (or request), and the name of its arm."""
        assert self.current.loaded is not None
        if self.candidate is None or self.candidate.loaded is None or not self.assignment.stage:
            return self.current.loaded, ""
        if self.assignment.is_candidate(unit):
            return self.candidate.loaded, "candidate"
        return self.current.loaded, "current"

    @property
    def shadow(self) -> Recommender | None:
        """The candidate, while it answers beside the current policy and nobody sees what."""
        return self.candidate.loaded if self.candidate is not None and self.assignment.shadow else None


def _stamp(path: Path) -> Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
