"""Files that are whole or absent: written under a temporary name, flushed, then renamed. Streams are written to."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from localpolicy.errors import DataError, LocalPolicyError, WriteError
from localpolicy.runtime.full_disk import raise_on_full_disk
from localpolicy.runtime.locks import lock_if_free, make_locked

PARTIAL = ".partial-"  # in the name of everything unfinished; a reader never looks at such names
SEAL = "manifest_sha256"  # in a manifest: the digest of all its other entries
STDOUT = "-"  # file name that stands for standard output
MOST_LINKS = 40  # of a chain, as Linux has it
DESCRIPTOR = re.compile(r"/dev/(stdout|stderr)|/(?:dev|proc/self)/fd/([0-9]+)")  # names of open files
LARGEST_TEXT = 1 << 28  # bytes of a JSON, YAML or text file that is read whole


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Context manager: a temporary path that becomes `path` if the block succeeds, and is removed if it fails.

    A link stays, and the file that it names is replaced. A pipe or a device (/dev/stdout) is not replaced but written
    to, once the content is complete. The temporary file is locked while the block runs. The lock ends with the process,
    so the next writer recognises a killed process's file.
    """
    path = followed(Path(path))
    if path.is_dir():
        raise LocalPolicyError(f"{path} is a folder; expected the name of a file to write, as {path / 'result'}.")
    if is_stream(path):
        with _streamed(path) as partial:
            yield partial
        return
    with raise_on_full_disk(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise LocalPolicyError(f"{path} cannot be written: {path.parent} is a file, not a folder.") from None
        _remove_abandoned_files(path)
        partial, lock = make_locked(lambda: _new_partial(path))
        try:
            yield partial
            flush(partial)
            os.replace(partial, path)
            flush(path.parent)
        finally:
            partial.unlink(missing_ok=True)
            if lock is not None:
                os.close(lock)


def followed(path: Path) -> Path:
    """Path that a link, or a chain of links, names in the end, existing or not. Streams are left as they are."""
    for _ in range(MOST_LINKS):
        if DESCRIPTOR.fullmatch(os.path.abspath(path)) or not path.is_symlink():
            return path
        path = path.parent / path.readlink()
    raise LocalPolicyError(f"{path} is a loop of links; name a file or folder that can be written.")


def is_stream(path: Path) -> bool:
    """Whether a path is a stream to write into, not a file to replace: a pipe, a terminal, an open descriptor."""
    if DESCRIPTOR.fullmatch(os.path.abspath(path)):
        return True
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        raise LocalPolicyError(f"{path} is a disk or a socket; expected the name of a file to write.")
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


@contextmanager
def _streamed(path: Path) -> Iterator[Path]:
    """Context manager: a temporary file whose content is written into the stream `path` if the block succeeds."""
    with tempfile.TemporaryDirectory() as folder:
        partial = Path(folder) / path.name
        yield partial
        sys.stdout.flush()  # so that earlier output comes first
        number = DESCRIPTOR.fullmatch(os.path.abspath(path))
        if number is None:
            descriptor = os.open(path, os.O_WRONLY)
        else:
            descriptor = os.dup({"stdout": 1, "stderr": 2}[number[1]] if number[1] else int(number[2]))
        try:
            with raise_on_full_disk(path), partial.open("rb") as content, os.fdopen(descriptor, "wb") as stream:
                shutil.copyfileobj(content, stream)
        except BrokenPipeError:
            raise WriteError(path, "its reader has closed it") from None


def _new_partial(path: Path) -> Path:
    """New empty file in the folder of `path`, under a unique name: process numbers repeat among containers."""
    while True:
        partial = path.with_name(f"{path.name}{PARTIAL}{secrets.token_hex(4)}")
        try:
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        except FileExistsError:
            continue
        return partial


def _remove_abandoned_files(path: Path) -> None:
    """Remove the temporary files for `path` that killed processes left."""
    for file in path.parent.iterdir():
        if file.name.startswith(f"{path.name}{PARTIAL}") and (lock := lock_if_free(file)) is not None:
            file.unlink(missing_ok=True)
            os.close(lock)


def flush(path: Path) -> None:
    """Make the disk keep the written bytes, so that after a crash no renamed file lacks its content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def utf8(text: str) -> bytes:
    """`text` as UTF-8, whatever the locale. Bytes of a file name that are not UTF-8 are escaped, as in JSON."""
    return text.encode("utf-8", errors="backslashreplace")


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8, whole or not at all."""
    with whole_file(path) as partial:
        partial.write_bytes(utf8(text))


def read_text(path: Path) -> str:
    """Content of a text file, or a `DataError` that says what is wrong with it."""
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
    """Content of a JSON file, or a `DataError` that says what is wrong with it."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:  # ValueError: not JSON, or a number with thousands of digits
        raise DataError(f"{path} is not readable as JSON ({error}); it is truncated or altered.") from None


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Content with a digest of itself, so that a reader notices changes."""
    rest = {name: value for name, value in content.items() if name != SEAL}
    as_read = json.loads(json.dumps(rest))  # JSON turns every key into a text
    return {**rest, SEAL: hashlib.sha256(json.dumps(as_read, sort_keys=True).encode()).hexdigest()}


def read_sealed(path: Path) -> Any:
    """Content of a JSON file; `DataError` if it cannot be read or differs from its digest. Older files have none."""
    content = read_json(path)
    if isinstance(content, dict) and SEAL in content and sealed(content)[SEAL] != content[SEAL]:
        raise DataError(f"{path} was altered (its digest differs). Bring it back, or make it again.")
    return content


def read_yaml(path: Path) -> Any:
    """Content of a YAML file, or a `DataError` that says what is wrong with it."""
    return parse_yaml(read_text(path), source=str(path))


def parse_yaml(text: str, *, source: str) -> Any:
    """Content of a YAML text; errors name it by `source`."""
    import yaml  # here, so that `lpi --help` need not load it

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date such as 2020-99-99
        raise DataError(f"{source} is not readable as YAML ({error}).") from None


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
