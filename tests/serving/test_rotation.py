"""Rotation: what was acknowledged is in the log or in the files, each once, whoever writes, rotates or is killed."""

from __future__ import annotations

import errno
import os
import pickle
import re
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from test_log import HOUR, START, answer, listed, write

from localpolicy.cli.main import app
from localpolicy.errors import DataError, LocalPolicyError, WriteError
from localpolicy.serving import rotate as rotating
from localpolicy.serving.audit_lists import logged_requests
from localpolicy.serving.database import Database
from localpolicy.serving.erase import erase
from localpolicy.serving.log import Log
from localpolicy.serving.records import Shown, is_made_with, new_id
from localpolicy.serving.rotate import FEEDBACK, REQUESTS, rotate

KILLS = int(os.environ.get("LPI_ROTATION_KILLS", "3"))
LISTS = int(os.environ.get("LPI_ROTATED_LISTS", "150"))  # acknowledged before the last rotation, at least


def in_files(out: Path, folder: str) -> list[str]:
    return [id for file in (out / folder).glob("*.parquet") for id in pq.read_table(file)["id"].to_pylist()]


def in_log(address: str, table: str) -> list[str]:
    database = Database(address)
    try:
        return [id for (id,) in database.rows(f"SELECT id FROM {table}")]
    finally:
        database.close()


def everything(address: str, out: Path) -> dict[str, Counter]:
    return {
        "requests": Counter(in_log(address, "requests") + in_files(out, REQUESTS)),
        "feedback": Counter(in_log(address, "feedback") + in_files(out, FEEDBACK)),
    }


def fates(out: Path) -> Counter:
    files = (out / FEEDBACK).glob("*.parquet")
    return Counter(fate for file in files for fate in pq.read_table(file)["fate"].to_pylist())


@pytest.fixture
def log(address):
    made = Log(address)
    yield made
    made.close()


def test_what_arrives_while_a_rotation_writes_stays_in_the_log(log, tmp_path, monkeypatch):
    first, second = listed(1), listed(2, time=START + 1)
    early, late, new = answer(first, 1), answer(first, 2), listed(3, time=START - HOUR)
    write(log, first, second, early)
    digest = rotating.sha256

    def meanwhile(path):
        assert write(log, late, new, Shown(second.id, 1, START)) == [True, True, False]
        return digest(path)

    monkeypatch.setattr(rotating, "sha256", meanwhile)
    (file,) = rotate(log.address, out=tmp_path, upto=START + 10 * HOUR)
    rows = pq.read_table(file).to_pylist()
    assert [(row["sequence_id"], row["item_id"], row["event"]) for row in rows] == [
        *[("p1", item, "click" if item == 1 else "none") for item in (1, 2, 3)], *[("p2", i, "none") for i in (1, 2, 3)]
    ]  # fmt: skip
    database = Database(log.address)
    assert database.rows("SELECT id, late FROM feedback") == [(late.id, 1)]
    assert database.rows("SELECT id FROM requests") == [(new.id,)]
    database.close()
    found = everything(log.address, tmp_path)
    assert found["requests"] == Counter([first.id, second.id, new.id])
    assert found["feedback"] == Counter([early.id, late.id])


def test_a_second_rotation_is_refused_and_so_is_an_erasure(log, tmp_path, monkeypatch):
    write(log, listed(1))
    said = []

    def meanwhile(path):
        for other in (lambda: rotate(log.address, out=tmp_path / "b", upto=START + HOUR),
                      lambda: erase("p1", log=log.address)):  # fmt: skip
            with pytest.raises(LocalPolicyError, match="another process rotates") as refused:
                other()
            said.append(str(refused.value))
        return "digest"

    monkeypatch.setattr(rotating, "sha256", meanwhile)
    assert len(rotate(log.address, out=tmp_path / "a", upto=START + HOUR)) == 1 and len(said) == 2
    monkeypatch.undo()
    assert rotate(log.address, out=tmp_path / "b", upto=START + HOUR) == [], "and nothing is written twice"


def test_a_clock_that_stepped_back_leaves_nothing_behind(log, tmp_path):
    write(log, listed(1))
    assert len(rotate(log.address, out=tmp_path, upto=START + HOUR)) == 1
    write(log, listed(2, time=START - HOUR), listed(3, time=START))
    (file,) = rotate(log.address, out=tmp_path, upto=START + HOUR)
    assert set(pq.read_table(file)["sequence_id"].to_pylist()) == {"p2", "p3"}
    assert in_log(log.address, "requests") == [] and len(list(tmp_path.glob("*.parquet"))) == 2


def test_answers_of_which_one_counts_are_all_kept(log, tmp_path):
    request = listed(1)
    answers = [answer(request, 1), answer(request, 1, "purchase"), answer(request, 1, after=2000)]
    write(log, request, *answers)
    rotate(log.address, out=tmp_path, upto=START + HOUR)
    assert sorted(in_files(tmp_path, FEEDBACK)) == sorted(one.id for one in answers)


def test_a_longer_window_than_the_services_takes_what_was_called_late_once(log, tmp_path):
    request = listed(1)
    write(log, request, answer(request, 1, after=2 * HOUR, late=True), answer(request, 2, after=9 * HOUR, late=True))
    (file,) = rotate(log.address, out=tmp_path, config=rotating.JoinConfig(window=3 * 3600), upto=START + HOUR)
    assert pq.read_table(file)["event"].to_pylist() == ["click", "none", "none"]
    assert fates(tmp_path) == Counter(used=1, late=1) and in_log(log.address, "feedback") == []


def test_odd_answers_are_set_aside_with_a_count_and_stop_nothing(log, tmp_path, caplog):
    request = listed(1)
    odd = [answer(request, 1, "purchse"), answer(request, 1, "purchse"), answer(request, 2, reward=1e8)]
    write(log, request, *odd, answer(request, 2))
    config = rotating.JoinConfig(largest_reward=10)
    (file,) = rotate(log.address, out=tmp_path, config=config, upto=START + HOUR)
    assert pq.read_table(file)["event"].to_pylist() == ["none", "click", "none"]
    assert len(in_files(tmp_path, FEEDBACK)) == 4, "as they came"
    assert "3 answers were set aside: 2 × event 'purchse'" in caplog.text and "reward above 10" in caplog.text


def test_rewards_at_the_limits_count_and_those_beyond_are_set_aside(log, tmp_path, caplog):
    request = listed(1)
    write(log, request, *(answer(request, item, reward=reward) for item, reward in ((1, -1.0), (2, 10.0), (3, -1.5))))
    config = rotating.JoinConfig(smallest_reward=-1, largest_reward=10)
    (file,) = rotate(log.address, out=tmp_path, config=config, upto=START + HOUR)
    assert pq.read_table(file)["reward"].to_pylist() == [-1.0, 10.0, 0.0]
    assert "1 answers were set aside: 1 × reward below -1" in caplog.text


MOVER = """
import os, random, signal, sys
from localpolicy.serving.rotate import rotate
address, out, kills = sys.argv[1], sys.argv[2], int(sys.argv[3])
rng = random.Random(kills)
killed = 0
for number in range(10 * kills):
    child = os.fork()
    if child == 0:  # it ends at a random moment of its own processor time, as abruptly as by SIGKILL
        signal.setitimer(signal.ITIMER_PROF, rng.uniform(0.001, 0.08) if number % 2 else rng.uniform(0.02, 0.3))
        try:
            rotate(address, out=out, upto=2**42)
        except BaseException as error:
            print(error, file=sys.stderr)
            os._exit(1)
        os._exit(0)
    rng.random()
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGPROF), status
    killed += status != 0
    if killed >= kills:
        break
print(killed)
"""


def test_rotations_that_are_killed_under_load_lose_and_double_nothing(address, tmp_path):
    """The full trial: LPI_ROTATION_KILLS=20 LPI_ROTATED_LISTS=20000."""
    out, done, sent = tmp_path / "events", threading.Event(), {"requests": [], "feedback": []}
    logs = [Log(address) for _ in range(2)]

    def load(log: Log, number: int) -> None:
        step = 0
        while not done.is_set() or len(sent["requests"]) < LISTS:
            step += 1
            batch = [listed(number * 10**9 + step * 10 + n, time=START + step) for n in range(8)]
            for one, stored in [(one, log.append(one)) for one in batch]:
                assert stored.result(60)
                sent["requests"].append(one.id)
            answers = [answer(one, item, id=f"{one.id}-{item}") for one in batch for item in (1, 2)]
            for one, stored in [(one, log.append(one)) for one in answers]:
                assert stored.result(60)
                sent["feedback"].append(one.id)

    clients = [threading.Thread(target=load, args=(log, number)) for number, log in enumerate(logs)]
    for client in clients:
        client.start()
    try:
        command = [sys.executable, "-c", MOVER, address, str(out), str(KILLS)]
        moved = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        done.set()
        for client in clients:
            client.join(300)
    assert moved.returncode == 0, moved.stderr
    for log in logs:
        log.close()
    rotate(address, out=out, upto=2**42)
    found = everything(address, out)
    lost = {table: set(ids) - set(found[table]) for table, ids in sent.items()}
    doubled = {table: [id for id, times in found[table].items() if times > 1] for table in sent}
    print(
        f"{moved.stdout.strip()} kills, {sum(map(len, sent.values())):,} acknowledged, lost {lost}, doubled {doubled}"
    )
    assert int(moved.stdout) == KILLS and not any(lost.values()) and not any(doubled.values())
    events = [row for file in out.glob("*.parquet") for row in
              pq.read_table(file, columns=["request", "item_id", "event"]).to_pylist()]  # fmt: skip
    assert Counter(row["request"] for row in events) == Counter(dict.fromkeys(sent["requests"], 3))
    counted = {f"{row['request']}-{row['item_id']}" for row in events if row["event"] == "click"}
    fate = {row["id"]: row["fate"] for file in (out / FEEDBACK).glob("*.parquet") for row in
            pq.read_table(file, columns=["id", "fate"]).to_pylist()}  # fmt: skip
    assert counted == {id for id in fate if fate[id] == "used"} and set(fate.values()) <= {"used", "late"}
    assert not list(out.rglob("*.partial-*"))


# ---------------------------------------------------------------------- what is no log, and a disk that is full


@pytest.mark.parametrize("verb", [["rotate", "LOG", "--out", "OUT"], ["erase", "p1", "--log", "LOG"],
                                  ["audit", "LOG"]], ids=lambda verb: verb[0])  # fmt: skip
def test_a_mistyped_log_is_reported_and_not_made(tmp_path, verb):
    from typer.testing import CliRunner

    path = tmp_path / "lgo.db"
    words = [word.replace("LOG", str(path)).replace("OUT", str(tmp_path / "out")) for word in verb]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, LocalPolicyError) and "does not exist" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_another_database_is_no_log(tmp_path):
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE things (a)")
    other.close()
    before = (tmp_path / "other.db").read_bytes()
    with pytest.raises(DataError, match="holds no log"):
        rotate(tmp_path / "other.db", out=tmp_path)
    assert (tmp_path / "other.db").read_bytes() == before
    with pytest.raises(DataError, match="does not exist"):
        next(logged_requests(tmp_path / "none.db"))


@pytest.mark.parametrize("version", [5, 99])
def test_a_log_of_another_version_is_refused(log, version):
    database = Database(log.address)
    database.execute("UPDATE about SET value = ? WHERE name = 'version'", (str(version),))
    database.close()
    for create in (False, True):
        with pytest.raises(DataError, match=f"version {version}"):
            Database(log.address, create=create)


LIMITED = """
import resource, sys
from localpolicy.cli.main import main
import localpolicy.serving.rotate
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
main()
"""


def test_a_full_disk_ends_with_a_message_and_nothing_is_lost(tmp_path, monkeypatch):
    log = Log(tmp_path / "log.db")
    requests = [listed(number, history=[(item, "click") for item in range(40)]) for number in range(300)]
    write(log, *requests)
    log.close()
    command = [sys.executable, "-c", LIMITED, "rotate", str(tmp_path / "log.db"), "--out", str(tmp_path / "events")]
    result = subprocess.run([*command, "--now"], capture_output=True, text=True, check=False)
    assert result.returncode == 2 and re.search("could not be (read or )?written", result.stderr), result.stderr
    assert "Traceback" not in result.stderr

    def full(*given):
        raise OSError(errno.ENOSPC, "No space left on device")

    for module, name in ((pq.ParquetWriter, "write_table"), (Database, "drop_unused_filters")):
        monkeypatch.setattr(module, name, full)
        with pytest.raises(WriteError, match="No space left"):
            rotate(tmp_path / "log.db", out=tmp_path / "events", upto=2**42)
        monkeypatch.undo()
    rotate(tmp_path / "log.db", out=tmp_path / "events", upto=2**42)
    assert Counter(in_files(tmp_path / "events", REQUESTS)) == Counter(one.id for one in requests)


def test_a_full_disk_can_be_reported_by_another_process():
    error = pickle.loads(pickle.dumps(WriteError(Path("a/b"), "No space left on device")))
    assert isinstance(error, WriteError) and "a/b could not be written: No space left" in str(error)


# ---------------------------------------------------------------------- ids, and erasing what came late


def test_only_a_log_knows_its_own_ids(address):
    log, key = Log(address), b"another"
    mine, other = new_id(START, log.key), new_id(START, key)
    assert is_made_with(log.key, mine) and not is_made_with(log.key, other) and not is_made_with(log.key, new_id(START))
    assert not is_made_with(log.key, mine[:-1] + ("0" if mine[-1] != "0" else "1")) and not is_made_with(log.key, "é")
    log.close()
    again = Log(address)
    assert again.key == log.key, "several servers, and the next start, know the same lists"
    again.close()


def test_what_came_late_is_erased_with_its_person(log, tmp_path):
    mine, other = listed(1), listed(2)
    write(log, mine, other)
    rotate(log.address, out=tmp_path, upto=START + HOUR)
    write(log, answer(mine, 1, id="mine"), answer(other, 1, id="other"))
    found = erase("p1", log=log.address, files=[tmp_path])
    assert in_log(log.address, "feedback") == ["other"] and found["log"]["feedback"] == 1


def test_what_came_late_and_was_rotated_is_erased_with_its_person(log, tmp_path):
    mine, other = listed(1), listed(2)
    write(log, mine, other)
    rotate(log.address, out=tmp_path, upto=START + HOUR)
    write(log, answer(mine, 1, id="mine"), answer(other, 1, id="other"))
    rotate(log.address, out=tmp_path, upto=START + HOUR)
    assert sorted(in_files(tmp_path, FEEDBACK)) == ["mine", "other"] and in_log(log.address, "feedback") == []
    erase("p1", log=log.address, files=[tmp_path])
    assert in_files(tmp_path, FEEDBACK) == ["other"]


def test_other_files_are_not_erased_from(tmp_path):
    import pyarrow as pa

    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(DataError, match="no file of 'lpi rotate'"):
        erase("p1", files=[tmp_path])
    (tmp_path / "other.parquet").write_bytes(b"no Parquet")
    with pytest.raises(DataError, match="not readable as Parquet"):
        erase("p1", files=[tmp_path / "other.parquet"])
