"""Files that are whole or absent: written under a temporary name, flushed, then renamed."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from localpolicy.errors import DataError, LocalPolicyError, RunError, WriteError

PARTIAL = ".partial-"  # in the name of everything unfinished; a reader never looks at such names
MADE = ".localpolicy.json"  # in a folder of our making: the files that we put there
REPLACED = ".old"  # ends the name of a folder that is being replaced
LOCK = ".lock"  # in a folder that one process writes to
LARGEST_TEXT = 1 << 28  # bytes of a JSON, YAML or text file that is read whole
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}  # what a file system says that has none
# What a disk, a quota, a limit or a mount says when it takes no more: the user's to mend, not ours.
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


FULL_WORDS = ("space left", "file too large", "failed to offload")  # the last is DuckDB's own limit, 90 % of the disk


def says_full(error: Exception) -> bool:
    """Whether an engine that hides the errno means that the disk takes no more."""
    return any(words in str(error).lower() for words in FULL_WORDS)


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
    """A temporary path that becomes `path` when the block ends well, and vanishes when it does not.

    It is locked while the block runs. The lock ends with the process, so the next writer can tell what a kill left.
    """
    path = Path(path)
    if path.is_dir():
        raise LocalPolicyError(f"{path} is a folder; expected the name of a file to write, as {path / 'result'}.")
    partial = path.with_name(f"{path.name}{PARTIAL}{os.getpid()}")
    with told_when_full(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise LocalPolicyError(f"{path} cannot be written: {path.parent} is a file, not a folder.") from None
        _remove_abandoned_files(path)
        partial.touch()
        lock = _lock_if_free(partial)
        try:
            yield partial
            _flush(partial)
            os.replace(partial, path)
            _flush(path.parent)
        finally:
            partial.unlink(missing_ok=True)
            if lock is not None:
                os.close(lock)


def _remove_abandoned_files(path: Path) -> None:
    """Remove the temporary files that killed processes left on the way to `path`."""
    for left in path.parent.iterdir():
        if left.name.startswith(f"{path.name}{PARTIAL}") and (lock := _lock_if_free(left)) is not None:
            left.unlink(missing_ok=True)
            os.close(lock)


@contextmanager
def whole_folder(path: Path, *, force: bool = False, later: Collection[str] = ()) -> Iterator[Path]:
    """A temporary folder that becomes `path` when the block ends well, and vanishes when it does not.

    A folder that exists and is not empty is replaced only with `force`, only if it is one that we made, and only once
    the new one is whole. `later` names files that will be added to it.
    """
    path = Path(path)
    check_target(path, force=force)
    with told_when_full(path), partial_folder(path) as partial:
        partial.chmod(0o755)
        yield partial
        made = sorted(str(file.relative_to(partial)) for file in partial.rglob("*") if file.is_file())
        write_json(partial / MADE, {"made": [*made, *later]})
        for file in sorted(partial.rglob("*")):
            _flush(file)
        # Checked again: another process may have finished into the same folder meanwhile.
        check_target(path, force=force)
        _put(partial, path)
        _flush(path.parent)


def refuse_odd_name(path: Path) -> None:
    """Raise on a name that is not UTF-8: JSON, Parquet and DuckDB cannot say it."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode(errors="backslashreplace")
        raise LocalPolicyError(f"{shown}: the name is not UTF-8. Rename it, or choose another name.") from None


def check_target(path: Path, *, force: bool) -> None:
    """Raise unless `path` can become a folder of ours; what killed processes left on the way to it is removed."""
    refuse_odd_name(path)
    remove_abandoned(path)
    refuse_occupied(path, force=force)
    refuse_foreign_content(path)


def _put(partial: Path, path: Path) -> None:
    """Let `partial` take the place of `path`; what was there is left under the name of `partial`, or gone."""
    if not path.exists():
        os.replace(partial, path)
    elif not _exchanged(partial, path):
        # Between these two renames there is no `path`: after a kill there, the next process puts the old one back.
        replaced = partial.with_name(partial.name + REPLACED)
        os.replace(path, replaced)
        os.replace(partial, path)
        shutil.rmtree(replaced, ignore_errors=True)


def _exchanged(one: Path, other: Path) -> bool:
    """Whether the system could exchange the two in one step (Linux, and not every file system)."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return renameat2 is not None and renameat2(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


@contextmanager
def partial_folder(path: Path, *, within: Path | None = None) -> Iterator[Path]:
    """A temporary folder for what becomes `path`, beside it or `within` another folder; removed in the end.

    It is locked while the block runs. The lock ends with the process, so what a kill left can be told and removed.
    """
    parent = path.parent if within is None else within
    parent.mkdir(parents=True, exist_ok=True)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}{PARTIAL}", dir=parent))
        lock = _lock_if_free(folder)
        if lock is None or _is_open_at(folder, lock):
            break
        os.close(lock)  # taken for abandoned between its making and its locking
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def remove_abandoned(path: Path, *, within: Path | None = None) -> None:
    """Remove the temporary folders that killed processes left on the way to `path`."""
    parent = path.parent if within is None else within
    if not parent.is_dir():
        return
    left = {folder.name: folder for folder in parent.iterdir() if folder.name.startswith(f".{path.name}{PARTIAL}")}
    for name, folder in sorted(left.items()):
        if name.endswith(REPLACED) and name.removesuffix(REPLACED) in left:
            continue  # the new folder's, which comes with it
        lock = _lock_if_free(folder)
        if lock is None:
            continue
        replaced = left.get(name + REPLACED)
        if replaced is not None and not path.exists():
            os.replace(replaced, path)  # killed between taking the old one away and putting the new one there
        for abandoned in filter(None, (folder, replaced)):
            shutil.rmtree(abandoned, ignore_errors=True)
        os.close(lock)


def _lock_if_free(path: Path) -> int | None:
    """A descriptor that locks a file or folder, or None where another process has it or there are no locks."""
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


def refuse_occupied(path: Path, *, force: bool) -> None:
    """Raise unless `path` is absent, an empty folder, or may be replaced."""
    path = Path(path)
    _refuse_file(path)
    if path.is_dir() and any(map(_counts, path.iterdir())) and not force:
        raise LocalPolicyError(
            f"{path} exists and is not empty. Choose another folder, or replace it (--force, where the command has it)."
        )


def refuse_foreign_content(path: Path) -> None:
    """Raise where a folder holds a file that we did not make: to replace it would delete what is not ours."""
    if not path.is_dir():
        return
    made = _made(path)
    for file in sorted(path.rglob("*")):
        if file.is_file() and _counts(file) and str(file.relative_to(path)) not in made:
            raise LocalPolicyError(
                f"{path} is not replaced: it holds {file.relative_to(path)}, which localpolicy did not make there. "
                "Choose another folder, or move the file away."
            )


def _made(path: Path) -> set[str]:
    """The files that the folder's own list says we made."""
    try:
        content = read_json(path / MADE)
        return {MADE, *content["made"]}
    except (DataError, OSError, TypeError, KeyError):
        return set()


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


def utf8(text: str) -> bytes:
    """What is written, whatever the locale. Odd bytes of a file name that is no UTF-8 are escaped as JSON has it."""
    return text.encode("utf-8", errors="backslashreplace")


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8, whole or not at all."""
    with whole_file(path) as partial:
        partial.write_bytes(utf8(text))


def read_text(path: Path) -> str:
    """A text of ours or of the user's, or a `DataError` that says what is wrong with it."""
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > LARGEST_TEXT:
            raise DataError(f"{path} has {size:,} bytes; expected at most {LARGEST_TEXT:,}: it is another file.")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataError(f"{path} is missing.") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error}); it is truncated or altered.") from None


def write_json(path: Path, content: Any) -> None:
    """Write `content` as indented JSON, whole or not at all. Numbers that are not finite are refused."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The content of a JSON file, or a `DataError` that says what is wrong with it."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:  # ValueError: no JSON, or a number of thousands of digits
        raise DataError(f"{path} is not readable as JSON ({error}); it is truncated or altered.") from None


def read_yaml(path: Path) -> Any:
    """The content of a YAML file, or a `DataError` that says what is wrong with it."""
    return parse_yaml(read_text(path), source=str(path))


def parse_yaml(text: str, *, source: str) -> Any:
    """The content of a YAML text; `source` is what an error calls it."""
    import yaml  # here, so that `lpi --help` need not load it

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date such as 2020-99-99
        raise DataError(f"{source} is not readable as YAML ({error}).") from None


def sha256(path: Path) -> str:
    """The hex digest of a file's bytes."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
