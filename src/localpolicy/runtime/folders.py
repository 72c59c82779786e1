"""Folders that are whole or absent; checks on replacing them, and locks for their writers."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from localpolicy.errors import DataError, LocalPolicyError
from localpolicy.runtime.files import PARTIAL, flush, followed, read_json, write_json
from localpolicy.runtime.full_disk import raise_on_full_disk
from localpolicy.runtime.locks import is_open_at, lock_file, lock_if_free, make_locked

HOME = "lpi"  # under the working directory: where results go when the user names no folder
MADE = ".localpolicy.json"  # in a folder of our making: the files that we put there
REPLACED = ".old"  # ends the name of a folder that is being replaced
LOCK = ".lock"  # in a folder that one process trains into

log = logging.getLogger(__name__)


def new_folder(what: str) -> Path:
    """The first of lpi/<what>, lpi/<what>-2, … that does not exist yet; a log message names it."""
    folder = next(
        path for number in count(1) if not (path := Path(HOME) / (what if number == 1 else f"{what}-{number}")).exists()
    )
    log.info("writing to %s (choose another folder with out=)", folder)
    return folder


@contextmanager
def whole_folder(path: Path, *, force: bool = False, later: Collection[str] = ()) -> Iterator[Path]:
    """Context manager: a temporary folder that becomes `path` if the block succeeds, and is removed if it fails.

    An existing folder that is not empty is replaced only with `force`, only if this package made it, and only once the
    new one is whole. `later` names files that will be added to it.
    """
    path = followed(Path(path))  # a link stays, and the folder that it names is replaced
    path = path if path.name not in ("", "..") else Path(os.path.abspath(path))  # "." and ".." lie in another folder
    check_target(path, force=force)
    with raise_on_full_disk(path), only_writer(path), partial_folder(path) as partial:
        partial.chmod(0o755)
        yield partial
        made = sorted(str(file.relative_to(partial)) for file in partial.rglob("*") if file.is_file())
        write_json(partial / MADE, {"made": [*made, *later]})
        for file in sorted(partial.rglob("*")):
            flush(file)
        # Checked again: another process may have finished into the same folder meanwhile.
        check_target(path, force=force)
        _replace(partial, path)
        flush(path.parent)


def _replace(partial: Path, path: Path) -> None:
    """Rename `partial` to `path`; an earlier folder of that name becomes `partial`, or is removed."""
    if not path.exists():
        os.replace(partial, path)
    elif not _exchanged(partial, path):
        # Between these two renames `path` does not exist: after a kill there, the next process puts the old one back.
        replaced = partial.with_name(partial.name + REPLACED)
        os.replace(path, replaced)
        os.replace(partial, path)
        shutil.rmtree(replaced, ignore_errors=True)


def _exchanged(first: Path, second: Path) -> bool:
    """Exchange two folders in one step; return whether the system can (Linux, and not every file system)."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return renameat2 is not None and renameat2(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0


@contextmanager
def partial_folder(path: Path, *, within: Path | None = None) -> Iterator[Path]:
    """Context manager: a temporary folder for `path`, next to it or `within` another folder; removed in the end.

    It is locked while the block runs. The lock ends with the process, so the next process recognises a killed one's
    folder.
    """
    parent = path.parent if within is None else within
    parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{path.name}{PARTIAL}"
    folder, lock = make_locked(lambda: Path(tempfile.mkdtemp(prefix=prefix, dir=parent)))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def remove_abandoned(path: Path, *, within: Path | None = None) -> None:
    """Remove the temporary folders for `path` that killed processes left."""
    parent = path.parent if within is None else within
    if not parent.is_dir():
        return
    lock_path = _lock_path(path)
    if lock_path not in _locks and (lock := lock_if_free(lock_path)) is not None:
        lock_path.unlink(missing_ok=True)
        os.close(lock)
    left = {folder.name: folder for folder in parent.iterdir() if folder.name.startswith(f".{path.name}{PARTIAL}")}
    for name, folder in sorted(left.items()):
        if name.endswith(REPLACED) and name.removesuffix(REPLACED) in left:
            continue  # handled with the new folder of that name
        lock = lock_if_free(folder)
        if lock is None:
            continue
        replaced = left.get(name + REPLACED)
        if replaced is not None and not path.exists():
            os.replace(replaced, path)  # killed between the two renames of `_replace`
        for abandoned in filter(None, (folder, replaced)):
            shutil.rmtree(abandoned, ignore_errors=True)
        os.close(lock)


def check_target(path: Path, *, force: bool) -> None:
    """Raise unless `path` can become a folder of ours; remove temporary folders that killed processes left for it."""
    if not Path(os.path.abspath(path)).name:
        raise LocalPolicyError(f"{path} is the root of all folders; expected a folder of its own.")
    refuse_odd_name(path)
    remove_abandoned(path)
    refuse_occupied(path, force=force)
    refuse_foreign_content(path)


def refuse_odd_name(path: Path) -> None:
    """Raise RunError for a name that is not UTF-8: JSON, Parquet and DuckDB cannot store it."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode(errors="backslashreplace")
        raise LocalPolicyError(f"{shown}: the name is not UTF-8. Rename it, or choose another name.") from None


def refuse_occupied(path: Path, *, force: bool) -> None:
    """Raise RunError unless `path` is absent, an empty folder, or may be replaced."""
    path = Path(path)
    _refuse_file(path)
    if path.is_dir() and any(map(_is_content, path.iterdir())) and not force:
        raise LocalPolicyError(
            f"{path} exists and is not empty. Choose another folder, or replace it (--force, where the command has it)."
        )


def refuse_foreign_content(path: Path) -> None:
    """Raise RunError if a folder holds a file that this package did not make: replacing would delete it."""
    if not path.is_dir():
        return
    made = _files_made(path)
    for file in sorted(path.rglob("*")):
        ours = str(file.relative_to(path)) in made or _is_evaluation(file)
        if file.is_file() and _is_content(file) and not ours:
            raise LocalPolicyError(
                f"{path} is not replaced: it holds {file.relative_to(path)}, which localpolicy did not make there. "
                "Choose another folder, or move the file away."
            )


def _is_evaluation(file: Path) -> bool:
    """Whether a file is one that `lpi evaluate` wrote into a run, after the folder's list of files was made."""
    of_a_run = file.parent.name == "evaluation" and (file.parent.parent / "manifest.json").exists()
    return of_a_run and file.name.partition(".")[2] in ("json", "positions.parquet", "sequences.parquet")


def _files_made(path: Path) -> set[str]:
    """Files that this package made, by the folder's own list."""
    try:
        content = read_json(path / MADE)
        return {MADE, *content["made"]}
    except (DataError, OSError, TypeError, KeyError):
        return set()


def refuse_foreign(path: Path) -> None:
    """Raise RunError if `path` is a file, or if results would be mixed into a data set or a run."""
    _refuse_file(path)
    if (path / "manifest.json").exists():
        raise LocalPolicyError(f"{path} is a data set or a run; choose a folder of its own for results.")


def _refuse_file(path: Path) -> None:
    """Raise RunError for anything but a folder: a file, a device, a pipe, a link to one of them."""
    path = followed(path)
    if path.exists() and not path.is_dir():
        what = "a file" if path.is_file() else "a device, a pipe or a socket"
        raise LocalPolicyError(f"{path} is {what}; expected a folder that does not exist yet.")


def _is_content(path: Path) -> bool:
    """Whether a file is content, rather than a killed process's temporary file."""
    return PARTIAL not in path.name and path.name != LOCK


@contextmanager
def training_lock(folder: Path) -> Iterator[None]:
    """Context manager: another process that would train into `folder` gets a `RunError` while the block runs.

    The lock ends with the process, so a lock file of a killed process stops nobody.
    """
    path = followed(Path(folder)) / LOCK  # what a link names may not be there yet
    _refuse_file(path.parent)
    with _locked(path, busy=f"another process trains into {path.parent}"):
        yield


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Context manager: another process that would make or replace the folder `path` gets a `RunError` meanwhile.

    A caller that reads a folder in order to replace it must hold this lock from before it reads. The lock file stands
    next to the folder, which is replaced as a whole; the thread that has the lock may take it again.
    """
    path = followed(Path(path))
    lock = _lock_path(path)
    if _locks.get(lock) == threading.get_ident():
        yield
        return
    with _locked(lock, busy=f"another process writes {path}"):
        _locks[lock] = threading.get_ident()
        try:
            yield
        finally:
            del _locks[lock]


_locks: dict[Path, int] = {}  # locks next to folders that threads of this process have


def _lock_path(path: Path) -> Path:
    absolute = Path(os.path.abspath(path))
    return absolute.with_name(f".{absolute.name}{LOCK}")


@contextmanager
def _locked(path: Path, *, busy: str) -> Iterator[None]:
    if sys.platform == "win32":  # has no such locks
        yield
        return
    descriptor = lock_file(path, busy=busy)
    try:
        yield
    finally:
        if is_open_at(path, descriptor):
            path.unlink()
        os.close(descriptor)


def remove_partial_files(folder: Path, *, within: Collection[str] = ()) -> None:
    """Remove the unfinished files that killed processes left in a folder that nobody else writes to.

    Of its folders only those in `within` are searched: other content is not ours.
    """
    pattern = f"*{PARTIAL}*"
    inside = (file for name in within for file in (Path(folder) / name).rglob(pattern))
    for file in (*Path(folder).glob(pattern), *inside):
        if file.is_file():
            file.unlink(missing_ok=True)
