"""Writers of one folder exclude each other, say who holds it, and a kill leaves nothing that stops the next."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from localpolicy.data.guess.guess import UnknownColumns
from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.errors import DataError, RunError, WriteError
from localpolicy.runtime.folders import only_writer, whole_folder

HOLD = """
import sys, time
from pathlib import Path
from localpolicy.runtime.folders import only_writer
with only_writer(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def day(number: int, rows: int = 360) -> pa.Table:
    names = range(rows)
    return pa.table({
        "sequence_id": [f"{number}-{row // 3}" for row in names], "item_id": [row % 5 for row in names],
        "event": ["click"] * rows, "timestamp": [1_714_521_600 + 86_400 * number + row for row in names],
    })  # fmt: skip


def test_a_second_process_names_the_writer_and_a_kill_frees_the_folder(tmp_path):
    path = tmp_path / "data"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(RunError, match=rf"another process writes .*data \(process {holder.pid}\)"), whole_folder(path):
        pass
    with pytest.raises(RunError, match="another process writes"):
        prepare(day(0), out=path)
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    holder.stdin.close(), holder.stdout.close()
    with whole_folder(path) as partial:
        (partial / "a").write_text("b")
    assert [file.name for file in tmp_path.iterdir()] == ["data"]


def test_another_thread_is_another_writer(tmp_path):
    refused = []

    def other() -> None:
        try:
            with only_writer(tmp_path / "data"):
                pass
        except RunError as error:
            refused.append(str(error))

    with only_writer(tmp_path / "data"), only_writer(tmp_path / "data"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(refused) == 1 and list(tmp_path.iterdir()) == []


def test_two_days_appended_at_once_are_both_there_or_one_is_refused(tmp_path):
    path = tmp_path / "data"
    prepare(day(0), out=path)
    results: list[object] = []

    def append(number: int) -> None:
        try:
            prepare(day(number), out=path, append=path, force=True)
            results.append(number)
        except (RunError, DataError) as error:
            results.append(error)

    threads = [threading.Thread(target=append, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = [number for number in results if isinstance(number, int)]
    assert done and len(Prepared(path)) == 120 * (1 + len(done))
    for number in {1, 2, 3} - set(done):
        prepare(day(number), out=path, append=path, force=True)
    assert len(Prepared(path)) == 120 * 4


def test_a_data_set_that_changed_since_it_was_opened_is_not_continued(tmp_path):
    path = tmp_path / "data"
    opened = prepare(day(0), out=path)
    prepare(day(1), out=path, append=opened, force=True)
    with pytest.raises(DataError, match="written by another process"):
        prepare(day(2), out=path, append=opened, force=True)


@pytest.mark.parametrize("error", [
    WriteError(Path("a/b"), "No space left on device"), UnknownColumns(Path("a"), ["item_id"], ["x"]), RunError("why"),
], ids=lambda error: type(error).__name__)  # fmt: skip
def test_errors_leave_their_process_whole(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and vars(again) == vars(error)
