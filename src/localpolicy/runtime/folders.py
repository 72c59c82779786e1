"""Where results go when the user names no folder."""

from __future__ import annotations

import logging
from itertools import count
from pathlib import Path

HOME = "lpi"  # under the working directory

log = logging.getLogger(__name__)


def new_folder(what: str) -> Path:
    """The first of lpi/<what>, lpi/<what>-2, … that is not there yet; the log says which."""
    folder = next(
        path for number in count(1) if not (path := Path(HOME) / (what if number == 1 else f"{what}-{number}")).exists()
    )
    log.info("writing to %s (choose another folder with out=)", folder)
    return folder
