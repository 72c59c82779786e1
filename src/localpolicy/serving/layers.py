"""A layer on somebody's ranker as what a service answers with, and how a new one takes its place."""

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
    """The layer that answers. A new one in its folder is loaded beside it; a damaged one is refused, and told."""

    def __init__(self, config: ServeConfig) -> None:
        self.folder, self.shadow = config.export, config.shadow
        self.rules = Rules() if config.rules is None else Rules.parse(read_yaml(config.rules) or {})
        self.refused: str | None = None
        self.damaged = False  # what was loaded is whole, and its files are not any more
        self._stamp = self._written()
        self.loaded = self._load()

    @property
    def current(self) -> Layers:
        """Itself: there is one slot."""
        return self

    def refresh(self) -> None:
        """Load what is new."""
        stamp = self._written()
        if stamp is None or stamp == self._stamp:  # a folder that is being replaced is absent for a moment
            return
        self._stamp = stamp
        try:
            made = self._load()
        except Exception as error:  # whatever is wrong with it, the old one goes on
            self.refused, self.damaged = str(error), False
            LOG.warning("refused a new layer, %s goes on: %s", self.loaded.version, error)
            return
        if made.version != self.loaded.version:
            LOG.warning("swapped %s for %s", self.loaded.version, made.version)
        self.loaded, self.refused, self.damaged = made, None, False

    def recheck(self) -> None:
        """Compare the digests of the files again: damage on the disk is told before a restart finds it."""
        stamp = self._written()
        if stamp != self._stamp or (self.refused is not None and not self.damaged):
            return  # another layer was put there, which `refresh` looks at
        try:
            self._load()
        except Exception as error:
            if stamp == self._written():
                self.damaged, self.refused = True, f"{error} What was loaded from it goes on until a restart."
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
