"""The layer on a ranker that a service answers from, and its replacement by a new one."""

from __future__ import annotations

import logging
from pathlib import Path

from localpolicy.errors import LocalPolicyError, RunError
from localpolicy.ranker.layer import FILE, Layer
from localpolicy.ranker.rules import Rules
from localpolicy.runtime.files import read_yaml
from localpolicy.serving.config import ServeConfig
from localpolicy.serving.deployment import Deployment

LOG = logging.getLogger(__name__)


class LayerSlot:
    """Folder of a layer and the layer loaded from it: as `deployment.Slot` for exports."""

    def __init__(self, folder: Path, config: ServeConfig, served: Layer | None = None) -> None:
        self.folder, self.shadow, self.served = folder, config.shadow, served
        self.rules = Rules() if config.rules is None else Rules.parse(read_yaml(config.rules) or {})
        self.loaded: Layer | None = None
        self.refused: str | None = None
        self.damaged = False  # the loaded layer is intact, but its files have changed
        self._stamp: tuple[int, int] | None = None

    def refresh(self) -> bool:
        """Load the layer if its files changed; return whether they did."""
        stamp = self._written()
        if self.loaded is not None and (stamp is None or stamp == self._stamp):
            return False  # a folder that is being replaced is absent for a moment
        self._stamp = stamp
        try:
            made = self._load()
        except Exception as error:  # whatever is wrong with the new layer, the old one stays in service
            self.refused, self.damaged = str(error), False
            if self.loaded is None:
                if isinstance(error, LocalPolicyError):
                    raise
                raise LocalPolicyError(f"{self.folder} cannot be served: {error}") from None
            LOG.warning("rejected the new layer, still serving %s: %s", self.loaded.version, error)
            return False
        if self.loaded is not None and made.version != self.loaded.version:
            LOG.warning("swapped %s for %s", self.loaded.version, made.version)
        self.loaded, self.refused, self.damaged = made, None, False
        return True

    def recheck(self) -> None:
        """Compare the files' digests again, so that damage on the disk is reported before a restart meets it."""
        stamp = self._written()
        replaced = stamp is not None and stamp != self._stamp  # `refresh` loads the layer that is in the folder now
        if self.loaded is None or replaced or (self.refused is not None and not self.damaged):
            return
        try:
            self._load()
        except Exception as error:
            if stamp == self._written():
                self.damaged, self.refused = True, f"{error} The loaded layer stays in service until a restart."
                LOG.error("%s", self.refused)
        else:
            if self.damaged:
                self.damaged, self.refused = False, None

    def _load(self) -> Layer:
        made = Layer(Path(self.folder), rules=self.rules, shadow=self.shadow)
        if not made.critics:
            raise LocalPolicyError(f"{self.folder} has no critic; make it with 'lpi improve'.")
        if self.served is not None:
            self._check_asks_no_more(made, self.served)
        return made

    def _check_asks_no_more(self, made: Layer, served: Layer) -> None:
        """Raise RunError if the new layer needs probabilities that clients need not send, or lacks a served critic."""
        if made.law["kind"] == "probabilities" != served.law["kind"]:
            raise RunError(f"{self.folder} needs the probability of every candidate, which clients need not send now.")
        if missing := sorted(served.about["critics"].keys() - made.about["critics"].keys()):
            raise RunError(f"{self.folder} has no critic of '{missing[0]}', whose weight clients may send now.")

    def _written(self) -> tuple[int, int] | None:
        try:
            about = (self.folder / FILE).stat()
        except OSError:
            return None
        return about.st_mtime_ns, about.st_ino


def layer_deployment(config: ServeConfig) -> Deployment:
    """Deployment of a layer, with the candidate named by a rollout's file."""
    return Deployment(
        config.export, rollout=config.rollout, slot=lambda folder, served: LayerSlot(folder, config, served)
    )
