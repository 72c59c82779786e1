"""Locks on files and folders. The system holds them, so a lock ends with its process, however that ends."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from localpolicy.errors import RunError
from localpolicy.runtime.full_disk import raise_on_full_disk

CLEARING = 5.0  # seconds that a lock without a living holder's number is waited for: whoever clears up has it briefly
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}  # what a file system answers that has no locks


class NotLocked(Enum):
    """Reason why a file or folder could not be locked."""

    TAKEN = "somebody else has the lock"
    GONE = "nothing is there any more"
    NO_LOCKS = "the system, or its file system, has no locks"


def try_to_lock(path: Path) -> int | NotLocked:
    """Lock a file or folder and return its descriptor, or the reason why that did not work."""
    if sys.platform == "win32":
        return NotLocked.NO_LOCKS
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return NotLocked.GONE
    except OSError:
        return NotLocked.NO_LOCKS
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        return NotLocked.TAKEN if isinstance(error, BlockingIOError) else NotLocked.NO_LOCKS
    if is_open_at(path, descriptor):
        return descriptor
    os.close(descriptor)  # its holder removed it after we opened it and before we locked it
    return NotLocked.GONE


def lock_if_free(path: Path) -> int | None:
    """Lock a file or folder and return its descriptor, or None if that did not work, whatever the reason.

    Used to clean up after killed processes: a file that cannot be locked may be in use, and stays.
    """
    lock = try_to_lock(path)
    return None if isinstance(lock, NotLocked) else lock


def make_locked(make: Callable[[], Path]) -> tuple[Path, int | None]:
    """New file or folder from `make`, and the descriptor of its lock, or None if there are no locks here.

    Between making and locking, a process that cleans up may take it for abandoned and remove it. Then `make` is called
    again and must return another name.
    """
    while True:
        path = make()
        lock = try_to_lock(path)
        if lock is NotLocked.NO_LOCKS:
            return path, None
        if not isinstance(lock, NotLocked):
            return path, lock


def lock_file(path: Path, *, busy: str) -> int:
    """Create and lock the file `path`; return its descriptor, or raise a `RunError` if another process has it.

    The file holds the number of its process, which the error names after `busy`. A process that cleans up holds the
    lock for a moment without writing a number, so such a holder is waited for.
    """
    import fcntl

    late = time.monotonic() + CLEARING
    while True:
        with raise_on_full_disk(path):
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
            if not _is_alive(holder) and time.monotonic() < late:
                time.sleep(0.01)
                continue
            who = f"{busy} (process {holder})" if holder else busy
            raise RunError(f"{who}; wait for it, or choose another folder.") from None
        if is_open_at(path, descriptor):
            with raise_on_full_disk(path):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()}\n".encode())
            return descriptor
        os.close(descriptor)  # its holder removed it after we opened it and before we locked it


def _is_alive(process: str) -> bool:
    """Whether a process of this number runs here; False without a number."""
    if not process.isdecimal():
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def is_open_at(path: Path, descriptor: int) -> bool:
    """Whether `descriptor` is open on the file that `path` names now."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
