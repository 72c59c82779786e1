"""A name that is made first and locked later, while somebody clears up in between. Every interleaving is injected."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from localpolicy.errors import RunError
from localpolicy.runtime import files, folders, locks
from localpolicy.runtime.files import PARTIAL, whole_file
from localpolicy.runtime.folders import partial_folder, remove_abandoned, training_lock
from localpolicy.runtime.locks import NotLocked, lock_if_free, make_locked, try_to_lock
from localpolicy.serving import service
from localpolicy.serving.database import Database

Make = Callable[[], Path]


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def removed_before(make: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """The first name is taken for abandoned, and gone before its maker looks again."""
    made = []

    def first_is_removed() -> Path:
        made.append(make())
        if len(made) == 1:
            remove(made[0])
        return made[-1]

    return first_is_removed


def removed_meanwhile(make: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """The first name is being removed: somebody else has its lock while its maker asks for it."""
    made, held = [], []

    def first_is_held() -> Path:
        if len(made) == 1:
            remove(made[0])
            os.close(held[0])
        made.append(make())
        if len(made) == 1:
            held.append(lock_if_free(made[0]))
        return made[-1]

    return first_is_held


def removed_after_opening(make: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """The first name is removed after its maker opened it and before that maker locks it."""
    made, flock = [], fcntl.flock

    def late(descriptor: int, how: int) -> None:
        if len(made) == 1 and made[0].exists():
            remove(made[0])
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    return lambda: made.append(make()) or made[-1]


INTERLEAVINGS = [removed_before, removed_meanwhile, removed_after_opening]


@pytest.fixture(params=INTERLEAVINGS, ids=lambda one: one.__name__)
def disturbed(request, monkeypatch):
    """`make_locked` with somebody who removes what its caller makes first; the names that were made."""
    names: list[Path] = []

    def disturbed_make(make: Make) -> tuple[Path, int | None]:
        noted = request.param(lambda: names.append(make()) or names[-1], monkeypatch)
        return make_locked(noted)

    for module in (folders, files, service):
        monkeypatch.setattr(module, "make_locked", disturbed_make)
    return names


def test_a_partial_folder_that_is_being_removed_gives_way_to_another(disturbed, tmp_path):
    with partial_folder(tmp_path / "data") as folder:
        first, second = disturbed
        assert folder == second and folder.is_dir() and not first.exists()
        remove_abandoned(tmp_path / "data")
        (folder / "log.parquet").write_text("kept")
    assert list(tmp_path.iterdir()) == []


def test_a_partial_file_that_is_being_removed_gives_way_to_another(disturbed, tmp_path):
    with whole_file(tmp_path / "a.json") as partial:
        first, second = disturbed
        assert partial == second and not first.exists()
        assert lock_if_free(partial) is None
        partial.write_text("whole")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.json", "whole")]


def test_a_folder_of_metrics_that_is_being_removed_gives_way_to_another(disturbed, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with service.shared_numbers() as folder:
        assert folder == disturbed[1] and folder.is_dir() and lock_if_free(folder) is None
    assert list(tmp_path.iterdir()) == []


def test_two_writers_of_one_process_have_two_partial_files(tmp_path):
    path = tmp_path / "a.json"
    with whole_file(path) as first, whole_file(path) as second:
        assert first != second
        first.write_text("first"), second.write_text("second")
    assert path.read_text() == "first" and len(list(tmp_path.iterdir())) == 1


def without_locks(descriptor: int, how: int) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def test_reasons_against_a_lock_are_distinguished(tmp_path, monkeypatch):
    (tmp_path / "a").touch()
    held = try_to_lock(tmp_path / "a")
    assert isinstance(held, int)
    assert try_to_lock(tmp_path / "a") is NotLocked.TAKEN
    assert try_to_lock(tmp_path / "b") is NotLocked.GONE
    os.close(held)
    monkeypatch.setattr(fcntl, "flock", without_locks)
    assert try_to_lock(tmp_path / "a") is NotLocked.NO_LOCKS


def test_without_locks_a_folder_is_made_once_and_nothing_is_cleared(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", without_locks)
    left = tmp_path / f".data{PARTIAL}left"
    left.mkdir()
    with partial_folder(tmp_path / "data") as folder:
        remove_abandoned(tmp_path / "data")
        assert set(tmp_path.iterdir()) == {folder, left}
    assert list(tmp_path.iterdir()) == [left]


def test_a_log_on_a_disk_without_locks_can_be_rotated(tmp_path, monkeypatch):
    database = Database(tmp_path / "log.db", create=True)
    monkeypatch.setattr(fcntl, "flock", without_locks)
    entered = []
    with database.only_mover():
        entered.append(True)
    database.close()
    assert entered


@pytest.fixture
def dead() -> str:
    """The number of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return f"{ended.pid}\n"


@pytest.mark.parametrize("left", ["a killed process", "nobody"])
def test_a_writer_waits_for_a_process_that_cleans_up(left, dead, tmp_path, monkeypatch):
    path = tmp_path / folders.LOCK
    path.write_text(dead if left == "a killed process" else "")
    clearing, waits = lock_if_free(path), []

    def cleared(seconds: float) -> None:
        if not waits:
            path.unlink()
            os.close(clearing)
        waits.append(seconds)

    monkeypatch.setattr(time, "sleep", cleared)
    with training_lock(tmp_path):
        assert int(path.read_text()) == os.getpid()
    assert len(waits) == 1


@pytest.mark.parametrize(("number", "waits"), [(str(os.getpid()), 0), ("", 3)], ids=["named", "nameless"])
def test_a_holder_that_stays_is_an_error(number, waits, tmp_path, monkeypatch):
    path = tmp_path / folders.LOCK
    path.write_text(number)
    held, clock, slept = lock_if_free(path), [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += locks.CLEARING / 3

    monkeypatch.setattr(time, "sleep", sleep)
    with pytest.raises(RunError, match="another process trains"), training_lock(tmp_path):
        pass
    os.close(held)
    assert len(slept) == waits
