"""Locks on files and folders. The system holds them, so a lock ends with its process, however that ends."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from localpolicy.errors import RunError
from localpolicy.runtime.full_disk import told_when_full

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}  # what a file system answers that has no locks


def lock_if_free(path: Path) -> int | None:
    """Lock a file or folder; return its descriptor, or None where another process has it or there are no locks."""
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def lock_file(path: Path, *, busy: str) -> int:
    """Create and lock the file `path`; return its descriptor, or raise a `RunError` where another process has it.

    The file holds the number of its process, which the error says after `busy`.
    """
    import fcntl

    while True:
        with told_when_full(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in NO_LOCKS:
                return descriptor
            holder = os.read(descriptor, 20).decode(errors="replace").strip()
            os.close(descriptor)
            if not isinstance(error, BlockingIOError):
                raise
            who = f"{busy} (process {holder})" if holder else busy
            raise RunError(f"{who}; wait for it, or choose another folder.") from None
        if is_open_at(path, descriptor):
            with told_when_full(path):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()}\n".encode())
            return descriptor
        os.close(descriptor)  # its holder removed it after we opened it and before we locked it


def is_open_at(path: Path, descriptor: int) -> bool:
    """Whether `descriptor` is open on what `path` names now."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
