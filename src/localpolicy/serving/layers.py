"""The layer on a ranker that a service answers from, and its replacement by a new one."""

from __future__ import annotations

import logging
from pathlib import Path

from localpolicy.errors import LocalPolicyError
from localpolicy.ranker.layer import FILE, Layer
from localpolicy.ranker.rules import Rules
from localpolicy.runtime.files import read_yaml
from localpolicy.serving.config import ServeConfig

LOG = logging.getLogger(__name__)


class Layers:
    """The layer in service. A new one in its folder replaces it; a damaged one is rejected, and the reason logged."""

    def __init__(self, config: ServeConfig) -> None:
        self.folder, self.shadow = config.export, config.shadow
        self.rules = Rules() if config.rules is None else Rules.parse(read_yaml(config.rules) or {})
        self.refused: str | None = None
        self.damaged = False  # the loaded layer is intact, but its files have changed
        self._stamp = self._written()
        self.loaded = self._load()

    @property
    def current(self) -> Layers:
        """This object: a layer has no candidate."""
        return self

    def refresh(self) -> None:
        """Load the layer if its files changed."""
        stamp = self._written()
        if stamp is None or stamp == self._stamp:  # a folder that is being replaced is absent for a moment
            return
        self._stamp = stamp
        try:
            made = self._load()
        except Exception as error:  # whatever is wrong with the new layer, the old one stays in service
            self.refused, self.damaged = str(error), False
            LOG.warning("rejected the new layer, still serving %s: %s", self.loaded.version, error)
            return
        if made.version != self.loaded.version:
            LOG.warning("swapped %s for %s", self.loaded.version, made.version)
        self.loaded, self.refused, self.damaged = made, None, False

    def recheck(self) -> None:
        """Compare the files' digests again, so that damage on the disk is reported before a restart meets it."""
        stamp = self._written()
        if stamp != self._stamp or (self.refused is not None and not self.damaged):
            return  # another layer is in the folder now: `refresh` loads it
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
        return made

    def _written(self) -> tuple[int, int] | None:
        try:
            about = (self.folder / FILE).stat()
        except OSError:
            return None
        return about.st_mtime_ns, about.st_ino
