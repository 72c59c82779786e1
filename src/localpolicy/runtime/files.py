"""Files that are whole or absent: written under a temporary name, flushed, then renamed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from localpolicy.errors import DataError, LocalPolicyError, RunError, WriteError

PARTIAL = ".partial-"  # in the name of everything unfinished; a reader never looks at such names
LOCK = ".lock"  # in a folder that one process writes to
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}  # what a file system says that has none
# What a disk, a quota, a limit or a mount says when it takes no more: the user's to mend, not ours.
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


@contextmanager
def told_when_full(path: Path) -> Iterator[None]:
    """A disk that takes no more is an error that names the file."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise WriteError(path, os.strerror(error.errno)) from None


def _flush(path: Path) -> None:
    """Ask the disk to keep what was written, so that a rename never outlives its content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path that becomes `path` when the block ends well, and vanishes when it does not."""
    path = Path(path)
    if path.is_dir():
        raise LocalPolicyError(f"{path} is a folder; expected the name of a file to write, as {path / 'result'}.")
    partial = path.with_name(f"{path.name}{PARTIAL}{os.getpid()}")
    with told_when_full(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise LocalPolicyError(f"{path} cannot be written: {path.parent} is a file, not a folder.") from None
        try:
            yield partial
            _flush(partial)
            os.replace(partial, path)
            _flush(path.parent)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path, *, force: bool = False) -> Iterator[Path]:
    """A temporary folder that becomes `path` when the block ends well, and vanishes when it does not.

    A folder that exists and is not empty is replaced only with `force`, and only once the new one is whole.
    """
    path = Path(path)
    refuse_occupied(path, force=force)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{path.name}{PARTIAL}", dir=path.parent))
    partial.chmod(0o755)
    try:
        yield partial
        for file in sorted(partial.rglob("*")):
            _flush(file)
        # Checked again: another process may have finished into the same folder meanwhile.
        refuse_occupied(path, force=force)
        replaced = partial.with_name(partial.name + ".old")
        if path.exists():
            os.replace(path, replaced)
        os.replace(partial, path)
        _flush(path.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def refuse_occupied(path: Path, *, force: bool) -> None:
    """Raise unless `path` is absent, an empty folder, or may be replaced."""
    path = Path(path)
    _refuse_file(path)
    if path.is_dir() and any(map(_counts, path.iterdir())) and not force:
        raise LocalPolicyError(
            f"{path} exists and is not empty. Choose another folder, or replace it (--force, where the command has it)."
        )


def _refuse_file(path: Path) -> None:
    if path.is_file():
        raise LocalPolicyError(f"{path} is a file; expected a folder that does not exist yet.")


def refuse_foreign(path: Path) -> None:
    """Raise where results would be mixed into a data set or a run, or `path` is a file."""
    _refuse_file(path)
    if (path / "manifest.json").exists():
        raise LocalPolicyError(f"{path} is a data set or a run; choose a folder of its own for results.")


def _counts(path: Path) -> bool:
    """Whether it is more than what a killed process left."""
    return PARTIAL not in path.name and path.name != LOCK


@contextmanager
def sole_trainer(folder: Path) -> Iterator[None]:
    """While the block runs, no other process trains into `folder`; it gets a `RunError`.

    The lock is the system's, so it ends with the process, however that ends; a file that a kill left locks nobody out.
    """
    path = Path(folder) / LOCK
    if sys.platform == "win32":  # has no such locks
        yield
        return
    _refuse_file(path.parent)
    descriptor = _locked(path)
    try:
        yield
    finally:
        if _is_open_at(path, descriptor):
            path.unlink()
        os.close(descriptor)


def _locked(path: Path) -> int:
    """The descriptor of a file that is locked, and lies at `path`."""
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
            os.close(descriptor)
            if not isinstance(error, BlockingIOError):
                raise
            raise RunError(
                f"another process trains into {path.parent}; wait for it, or choose another folder."
            ) from None
        if _is_open_at(path, descriptor):
            return descriptor
        os.close(descriptor)  # who held it removed it between our opening and our locking


def _is_open_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def sweep(folder: Path) -> None:
    """Remove what processes that were killed left unfinished in a folder that nobody else writes to."""
    for left in Path(folder).rglob(f"*{PARTIAL}*"):
        left.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Write `content` as indented JSON, whole or not at all. Numbers that are not finite are refused."""
    with whole_file(path) as partial:
        partial.write_text(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The content of a JSON file, or a `DataError` that says what is wrong with it."""
    path = Path(path)
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise DataError(f"{path} is missing.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not readable as JSON ({error}); it is truncated or altered.") from None


def sha256(path: Path) -> str:
    """The hex digest of a file's bytes."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
