"""The log on a PostgreSQL server: the same records, the same rotation, several servers at once."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from test_log import HOUR, START, answer, listed, write

from localpolicy.errors import LocalPolicyError
from localpolicy.serving.database import Database
from localpolicy.serving.erase import erase
from localpolicy.serving.log import Log
from localpolicy.serving.records import Shown
from localpolicy.serving.rotate import rotate

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
pytestmark = pytest.mark.skipif(
    not BINARIES or shutil.which("runuser") is None, reason="PostgreSQL's server is not installed"
)


@pytest.fixture(scope="module")
def place():
    """A server of its own, on a socket in a folder; it refuses to run as root."""
    folder = Path(subprocess.run(["mktemp", "-d", "/tmp/lpi-pg-XXXX"], capture_output=True, text=True).stdout.strip())
    shutil.chown(folder, "postgres")
    run = ["runuser", "-u", "postgres", "--", "env", "LC_ALL=C"]
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(
        [*run, BINARIES[-1] / "initdb", "-D", folder / "data", "-A", "trust", "-E", "UTF8", "--no-sync"], **quiet
    )
    options = f"-k {folder} -c listen_addresses=''"
    control = [*run, BINARIES[-1] / "pg_ctl", "-D", folder / "data", "-w"]
    subprocess.run([*control, "-l", folder / "log", "-o", options, "start"], **quiet)
    try:
        yield f"postgresql://postgres@/postgres?host={folder}"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], **quiet)
        shutil.rmtree(folder)


def test_records_of_several_servers_are_joined_rotated_and_erased(place, tmp_path):
    logs = [Log(place) for _ in range(3)]
    requests = [listed(number) for number in range(60)]

    def serve(number: int) -> None:
        for request in requests[number::3]:
            assert write(logs[number], request, answer(request, 2, id=request.id)) == [True, True]
            assert write(logs[number], answer(request, 2, id=request.id)) == [False]
            write(logs[number], Shown(request.id, 2, START + 1))

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert logs[0].find(requests[1].id).result(10) == ([1, 2, 3], START)
    erase("p7", log=place)
    for log in logs:
        log.close()
    (file,) = rotate(place, out=tmp_path, upto=START + HOUR)
    rows = pq.read_table(file).to_pylist()
    assert len(rows) == 59 * 2 and {row["sequence_id"] for row in rows} == {f"p{n}" for n in range(60)} - {"p7"}
    assert {(row["item_id"], row["event"]) for row in rows} == {(1, "none"), (2, "click")}
    assert rotate(place, out=tmp_path, upto=START + HOUR) == []


def test_a_server_that_went_away_is_found_again(place):
    log = Log(place)
    assert write(log, listed()) == [True]
    other = Database(place)
    other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    with pytest.raises(LocalPolicyError, match="could not be written"):
        log.append(listed()).result(10)
    assert write(log, listed()) == [True]
    other.close()
    log.close()


def test_a_server_that_does_not_answer():
    with pytest.raises(LocalPolicyError, match="does not answer"):
        Log("postgresql://postgres@127.0.0.1:1/none?connect_timeout=2")
