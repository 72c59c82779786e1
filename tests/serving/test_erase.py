"""Nothing of an erased person is left: not in free pages of the log, nor in what a data set keeps aside."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from test_log import HOUR, START, answer, listed, write

from localpolicy.data.prepare import prepare
from localpolicy.data.store import LOG, Prepared
from localpolicy.errors import DataError, LocalPolicyError
from localpolicy.runtime.files import read_json, sha256
from localpolicy.serving import database as databases
from localpolicy.serving import erase as erasing
from localpolicy.serving.database import Database
from localpolicy.serving.erase import erase
from localpolicy.serving.filters import Filter
from localpolicy.serving.log import Log, erased_name
from localpolicy.serving.records import Shown
from localpolicy.serving.rotate import rotate

SHARES = {"test": 0.2, "validation": 0.2}


def told(number: int) -> list[str]:
    """Words that nobody else's rows hold."""
    return [f"person-{number:03d}", f"past-{number:03d}", f"hidden-{number:03d}", f"answer-{number:03d}"]


def visit(log: Log, number: int) -> None:
    person, past, hidden, id = told(number)
    request = listed(person=person, history=[(past, "click")], items=["a"], propensities=[1.0],
                     item_filter=Filter(exclude=(hidden,)))  # fmt: skip
    write(log, request, answer(request, "a", id=id), Shown(request.id, 1, START + 5))


def on_disk(address: str, words: list[str]) -> set[tuple[str, str]]:
    """Pairs (word, file) of these words and the files whose bytes contain them."""
    files = list(Path(address).parent.glob("log.db*"))
    if address.startswith("postgresql"):
        database = Database(address)
        database.execute("CHECKPOINT")
        folder = database.rows("SHOW data_directory")[0][0]
        database.close()
        files = [file for file in Path(folder, "base").rglob("*") if file.is_file()]  # its journal ages by itself
    return {(file.name, word) for file in files for word in words if word.encode() in file.read_bytes()}


def test_nothing_is_left_in_the_bytes_of_a_log_that_is_written_meanwhile(address):
    log = Log(address)
    for number in range(20):
        visit(log, number)
    assert {word for _, word in on_disk(address, told(19))} == set(told(19))
    erase("person-019", log=address)  # the last one: what lies behind it does not move over it
    assert on_disk(address, told(19)) == set()
    assert {word for _, word in on_disk(address, told(18))} == set(told(18))
    visit(log, 20)
    log.close()


def test_postgresql_quotes_nobody_in_its_statistics(postgres_log):
    log, database = Log(postgres_log), Database(postgres_log)
    for number in range(4):
        visit(log, number)
    database.execute("ANALYZE")
    quoted = "SELECT COUNT(*) FROM pg_stats WHERE schemaname = 'public' AND histogram_bounds::text LIKE ?"
    assert database.rows(quoted, ("%person-003%",)) != [(0,)]
    erase("person-003", log=postgres_log)
    assert database.rows(quoted, ("%person-003%",)) == [(0,)] != database.rows(quoted, ("%person-002%",))
    database.close()
    log.close()


def test_who_reads_the_log_keeps_the_bytes_and_a_message_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(databases, "PATIENCE", 0.1)
    log = Log(tmp_path / "log.db")
    for number in range(3):
        visit(log, number)
    reader = Database(tmp_path / "log.db")
    reader.execute("BEGIN")
    assert len(reader.rows("SELECT person FROM requests")) == 3
    with pytest.raises(LocalPolicyError, match="still in .*log.db-wal, since another process reads"):
        erase("person-001", log=tmp_path / "log.db")
    reader.execute("COMMIT")
    erase("person-001", log=tmp_path / "log.db")
    assert on_disk(str(tmp_path / "log.db"), told(1)) == set()
    reader.close()
    log.close()


@pytest.fixture
def rotated(tmp_path) -> Path:
    """Two lists of each of 40 persons, and one of a person who is dropped from data sets for that."""
    log = Log(tmp_path / "log.db")
    for number in range(81):
        request = listed(person="rare" if number == 80 else f"p#{number % 40}", time=START + 1000 * number)
        write(log, request, answer(request, 2))
    log.close()
    return rotate(tmp_path / "log.db", out=tmp_path / "events", upto=START + HOUR)[0]


def persons(folder: Path) -> set[str]:
    return set(pq.read_table(folder / LOG)["sequence_id"].to_pylist())


def test_a_data_set_keeps_no_row_of_a_person_that_its_filters_dropped(rotated, tmp_path):
    data = prepare("events", [rotated], out=tmp_path / "data", min_events=4, **SHARES)
    assert len(data) == 40 and "rare" in persons(data.path)
    found = erase("rare", data=[data.path])
    assert "rare" not in persons(data.path) and len(persons(data.path)) == 40
    assert found["data"][str(data.path)]["sequences"] == 0
    after = Prepared(data.path)
    after.verify()
    assert after.digest == data.digest, "what runs learn from is the same"


def test_an_id_may_end_like_a_session(rotated, tmp_path):
    whole = prepare("events", [rotated], out=tmp_path / "data" / "whole", **SHARES)
    parts = prepare("events", [rotated], out=tmp_path / "data" / "parts", session_gap=5, **SHARES)
    assert (len(whole), len(parts)) == (41, 81)
    erase("p", data=[tmp_path / "data"])
    assert [len(Prepared(data.path)) for data in (whole, parts)] == [41, 81], "nobody is called that"
    found = erase("p#7", data=[tmp_path / "data"])
    assert [entry["sequences"] for entry in found["data"].values()] == [2, 1], "in a folder of data sets: parts, whole"
    assert "p#7" not in persons(whole.path) | persons(parts.path)


def test_erase_refuses_folders_that_hold_nothing_of_the_kind(tmp_path):
    (tmp_path / "evnets").mkdir()
    with pytest.raises(DataError, match="holds no Parquet file"):
        erase("p1", files=[tmp_path / "evnets"])
    with pytest.raises(LocalPolicyError, match="evnets"):
        erase("p1", data=[tmp_path / "evnets"])


def test_late_answers_need_the_files_that_say_whose_they_are(rotated, tmp_path, caplog):
    lists = pq.read_table(rotated)["request"].to_pylist()
    log = Log(tmp_path / "log.db")
    write(log, answer(listed(id=lists[0]), 1))
    log.close()
    erase("p#0", log=tmp_path / "log.db")
    assert "1 late answers in the log are to lists that were rotated" in caplog.text
    caplog.clear()
    found = erase("p#0", log=tmp_path / "log.db", files=[tmp_path / "events"])
    assert found["log"]["feedback"] == 1 and not caplog.text


@pytest.mark.parametrize("cut", ["_erase_log", "_erase_file", "_record", "_record_files"])
def test_a_call_that_was_cut_short_is_finished_by_another(rotated, tmp_path, monkeypatch, cut):
    """A late answer's list is named by the files alone; what a file became must be known by its digest."""
    table = pq.read_table(rotated)
    files = [file for file in (tmp_path / "events").rglob("*.parquet") if erasing._requests_of(file, "p#0")]
    mine = table.filter(pc.equal(table["sequence_id"], "p#0"))["request"].to_pylist()
    log = Log(tmp_path / "log.db")
    write(log, answer(listed(id=mine[0]), 1))
    log.close()

    def full(*given: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(erasing, cut, full)
    with pytest.raises((OSError, LocalPolicyError)):
        erase("p#0", log=tmp_path / "log.db", files=[tmp_path / "events"])
    monkeypatch.undo()
    erase("p#0", log=tmp_path / "log.db", files=[tmp_path / "events"])
    assert "p#0" not in pq.read_table(rotated)["sequence_id"].to_pylist()
    for file in files:
        found = [entry for entry in read_json(file.parent / erasing.RECORD) if entry["file"] == file.name]
        assert [entry["after"] for entry in found] == [sha256(file)]
    database = Database(tmp_path / "log.db")
    assert database.rows("SELECT COUNT(*) FROM feedback") == [(0,)]
    assert {name for (name,) in database.rows("SELECT * FROM erased")} == set(map(erased_name, mine))
    assert database.rows("SELECT sha256, rows FROM rotations") == [(sha256(rotated), len(table) - len(mine))]
    database.close()


def test_what_comes_back_for_an_erased_person_is_not_stored(address, tmp_path):
    log = Log(address)
    requests = [listed(person=person, items=["a"], propensities=[1.0]) for person in ("rotated", "open", "other")]
    write(log, requests[0], requests[2])
    rotate(address, out=tmp_path / "events", upto=START + HOUR)
    write(log, requests[1])
    for person in ("rotated", "open"):
        erase(person, log=address, files=[tmp_path / "events"])
    assert write(log, *(answer(request, "a", id=request.id) for request in requests)) == [False, False, True]
    log.close()
    database = Database(address)
    assert database.rows("SELECT request FROM feedback") == [(requests[2].id,)]
    assert not {request.id for request in requests} & {digest for (digest,) in database.rows("SELECT * FROM erased")}
    database.close()
