"""Full disks: the user can fix one, so an error names the file that could not be written."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localpolicy.errors import WriteError

# Error numbers of writes that a full disk, a quota, a limit or a read-only mount refuses.
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
# SQLite's, DuckDB's own limit of 90 % of the disk, and NumPy's, which has no errno ("4000 requested and 8 written").
SMALLEST = 64 * 1024  # bytes
FULL_WORDS = ("space left", "file too large", "disk is full", "failed to offload", "requested and")


def is_disk_full(error: Exception) -> bool:
    """Whether the message of an engine that hides the errno means that the disk is full."""
    return any(words in str(error).lower() for words in FULL_WORDS)


def has_no_room(path: Path) -> bool:
    """Whether the disk of a file has less than a page of SQLite's index left, which SQLite reports as an I/O error."""
    return path.parent.exists() and shutil.disk_usage(path.parent).free < SMALLEST


@contextmanager
def raise_on_full_disk(path: Path) -> Iterator[None]:
    """Context manager: turn a full disk into a `WriteError` that names the file."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL and not is_disk_full(error):
            raise
        raise WriteError(path, os.strerror(error.errno if error.errno in FULL else errno.ENOSPC)) from None
