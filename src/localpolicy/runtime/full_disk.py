"""A full disk: the user's to mend, so an error names the file that could not be written."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localpolicy.errors import WriteError

# What a disk, a quota, a limit or a read-only mount answers to a write that it refuses.
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
# The last two are SQLite's, and DuckDB's own limit of 90 % of the disk.
FULL_WORDS = ("space left", "file too large", "disk is full", "failed to offload")


def says_full(error: Exception) -> bool:
    """Whether the words of an engine that hides the errno mean that the disk is full."""
    return any(words in str(error).lower() for words in FULL_WORDS)


@contextmanager
def told_when_full(path: Path) -> Iterator[None]:
    """Turn a full disk into a `WriteError` that names the file."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise WriteError(path, os.strerror(error.errno)) from None
