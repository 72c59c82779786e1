"""Hide packages named in HIDDEN from this process and those it starts: as if they were not installed."""

import importlib.metadata
import os
import sys

HIDDEN = set(filter(None, os.environ.get("HIDDEN", "").split(",")))
found = importlib.metadata.version


class Without:
    """A finder that does not find what is hidden, and passes everything else on."""

    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else self.finder.find_spec(name, path, target)


def version(package):
    """Its version, unless it is hidden."""
    if package.replace("-", "_") in HIDDEN:
        raise importlib.metadata.PackageNotFoundError(package)
    return found(package)


sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
importlib.metadata.version = version
