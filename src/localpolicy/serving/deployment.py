"""The policies in service: the deployed export, perhaps a candidate, and the swap to a new export.

A new export is loaded and checked while the old one serves; running requests keep the policy they began with. One that
is damaged, or gives other lists than at its export, is refused: the old one stays in service, and the reason is logged.
"""

from __future__ import annotations

import gc
import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from localpolicy.errors import LocalPolicyError, RunError
from localpolicy.limits import CONTEXT, NO_ANSWER
from localpolicy.serving.assignment import Assignment
from localpolicy.serving.exports import ABOUT, read_export
from localpolicy.serving.recommender import Recommender

LOG = logging.getLogger(__name__)
MakeSlot = Callable[[Path, Any], Any]  # from a folder and, for a candidate, what is served now
LEAST_SHARED = 0.5  # of the smaller catalogue: with fewer shared items it is another shop's
Stamp = tuple[int, int, int] | None


@dataclass
class Slot:
    """An export's folder, and the policy that was loaded from it."""

    folder: Path
    threads: int
    served: Recommender | None = None  # for a candidate's slot: the current policy
    loaded: Recommender | None = None
    stamp: Stamp = None
    refused: str | None = None
    damaged: bool = False  # the loaded policy is intact, but its files have changed

    def recheck(self) -> None:
        """Compare the files' digests again, so that damage on the disk is reported before a restart meets it."""
        stamp = _stamp(self.folder / ABOUT)
        replaced = stamp is not None and stamp != self.stamp  # `refresh` loads the export that is in the folder now
        if self.loaded is None or replaced or (self.refused is not None and not self.damaged):
            return
        try:
            read_export(self.folder)
        except LocalPolicyError as error:
            if stamp == _stamp(self.folder / ABOUT):
                self.damaged, self.refused = True, f"{error} The loaded policy stays in service until a restart."
                LOG.error("%s", self.refused)
        else:
            if self.damaged:
                self.damaged, self.refused = False, None

    def refresh(self) -> bool:
        """Load the export if it changed; return whether one was loaded."""
        stamp = _stamp(self.folder / ABOUT)
        if stamp is None and self.loaded is not None:
            return False  # a folder that is being replaced is absent for a moment
        if stamp == self.stamp and stamp is not None:
            return False
        try:
            made = Recommender(self.folder, threads=self.threads)
            made.check()
            self._check_catalogue(made)
        except Exception as error:  # whatever is wrong with the new export, the old one stays in service
            self.refused, self.stamp, self.damaged = str(error), stamp, False
            if self.loaded is None:
                if isinstance(error, LocalPolicyError):
                    raise
                raise LocalPolicyError(f"{self.folder} cannot be served: {error}") from None
            LOG.warning("rejected the new export, still serving %s: %s", self.loaded.version, error)
            return False
        if self.loaded is not None and made.version != self.loaded.version:
            LOG.warning("swapped %s for %s%s", self.loaded.version, made.version, _other_items(self.loaded, made))
            gc.freeze()  # as when the service starts (see `app`)
        self.loaded, self.stamp, self.refused, self.damaged = made, stamp, None, False
        return True

    def _check_catalogue(self, made: Recommender) -> None:
        """Raise RunError if the new policy's catalogue or events are not those that clients use now."""
        served = self.loaded or self.served
        if served is None:
            return
        shared = len(made.index.keys() & served.index.keys())
        if shared < LEAST_SHARED * min(made.n_items, served.n_items):
            raise RunError(f"{self.folder} has another catalogue: it knows {shared:,} of the {served.n_items:,} "
                           "items served now. Start a server of its own for it.")  # fmt: skip
        if self.loaded is None:
            return
        # Clients send no context events, so a policy need not know them.
        missing = sorted(set(self.loaded.events) - {*made.events, NO_ANSWER, CONTEXT})
        if missing:
            raise RunError(f"{self.folder} does not know the event '{missing[0]}', which clients may send now: such "
                           "requests would be refused. If yours do not send it, restart the server with this export; "
                           "else serve one that was trained on a log that holds it.")  # fmt: skip


def _other_items(old: Recommender, new: Recommender) -> str:
    """Text on the items that a swap adds and removes; empty if there are none."""
    came, went = len(new.index.keys() - old.index.keys()), len(old.index.keys() - new.index.keys())
    return f": {came:,} items are new, {went:,} are gone" if came or went else ""


class Route(NamedTuple):
    """Policy that answers one person (or request), with its arm and stage of a rollout."""

    recommender: Recommender
    arm: str = ""  # 'current' or 'candidate' during a rollout
    stage: str = ""
    rollout: str = ""
    shadow: Recommender | None = None  # the candidate, if its lists are made but not shown


class Deployment:
    """The current policy, the candidate named by a rollout's file, and the assignment of requests to them."""

    def __init__(
        self, export: Path, *, rollout: Path | None = None, threads: int = 1, slot: MakeSlot | None = None
    ) -> None:
        """`slot` makes the slot of a folder; default: the slot of an export."""
        self.rollout = rollout
        self._slot = slot or (lambda folder, served: Slot(folder, threads, served=served))
        self.current: Slot = self._slot(export, None)
        self.current.refresh()
        self.candidate: Slot | None = None
        self.assignment = Assignment.none()
        self._stage: Stamp = None
        self._read_rollout()

    def refresh(self) -> None:
        """Load new exports and the rollout's new stage. Call from one thread at a time."""
        self.current.refresh()
        self._read_rollout()

    def recheck(self) -> None:
        """Compare the digests of all served files with those at their loading."""
        for slot in (self.current, self.candidate):
            if slot is not None:
                slot.recheck()

    def _read_rollout(self) -> None:
        """Read stage and candidate from the rollout's file; if it is invalid, the current policy gets all traffic."""
        if self.rollout is None:
            return
        if (stamp := _stamp(self.rollout)) != self._stage:
            self._stage, self.assignment = stamp, Assignment.none()
            if stamp is not None:
                try:
                    self.assignment = Assignment.of(json.loads(self.rollout.read_text(encoding="utf-8")))
                except Exception as error:
                    LOG.warning("%s cannot be read (%s); the candidate gets no traffic", self.rollout, error)
        assert self.current.loaded is not None
        on = self.assignment.on and not self.assignment.over(self.current.loaded.version)
        export = self.assignment.export if on else None
        if export is None:
            self.candidate = None
            return
        slot = self.candidate
        if slot is None or slot.folder != export:
            slot = self._slot(export, self.current.loaded)
        try:
            slot.refresh()
        except LocalPolicyError as error:
            LOG.warning("the candidate cannot be served: %s", error)
        self.candidate = slot

    @property
    def rolled_out(self) -> Recommender | None:
        """The candidate during a rollout, if its version is the planned one; else None."""
        found = None if self.candidate is None else self.candidate.loaded
        return found if self.assignment.on and found is not None and found.version == self.assignment.version else None

    def route(self, unit: str) -> Route:
        """Return the policy, arm and stage for this person (or request)."""
        assert self.current.loaded is not None
        assignment, candidate = self.assignment, self.rolled_out
        if candidate is None:
            return Route(self.current.loaded)
        if assignment.is_candidate(unit):
            return Route(candidate, "candidate", assignment.stage, assignment.rollout)
        shadow = candidate if assignment.shadow else None
        return Route(self.current.loaded, "current", assignment.stage, assignment.rollout, shadow)


def _stamp(path: Path) -> Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
