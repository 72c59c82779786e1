"""The log: durable before acknowledged, answers joined within their window, rotated once, a person erased."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.errors import LocalPolicyError, WriteError
from localpolicy.runtime import full_disk
from localpolicy.serving import rotate as rotating
from localpolicy.serving.database import Database
from localpolicy.serving.erase import erase
from localpolicy.serving.filters import Filter
from localpolicy.serving.join import JoinConfig, aggregate
from localpolicy.serving.log import Log, LogError, write_requests
from localpolicy.serving.records import Feedback, Request, Shown, new_id, time_of
from localpolicy.serving.rotate import rotate

HOUR = 3_600_000
START = 1_700_000_000_000


def listed(number: int = 0, *, time: int = START, **changes) -> Request:
    values = dict(
        id=new_id(time), time=time, person=f"p{number}", history=(), items=[1, 2, 3], propensities=[0.5, 0.25, 0.125],
        policy="abc", beta=None, mode="drawn", floor=0.0, item_filter=Filter(), deferred=False, share=1.0,
    )  # fmt: skip
    return Request(**{**values, **changes})


def answer(
    request: Request, item: int, event: str = "click", *, after: int = 1000, id: str = "", **changes
) -> Feedback:
    values = dict(id=id or new_id(START), request=request.id, item=item, event=event, reward=None,
                  time=request.time + after, late=False)  # fmt: skip
    return Feedback(**{**values, **changes})


@pytest.fixture
def log(tmp_path):
    made = Log(tmp_path / "log.db")
    yield made
    made.close()


def events(log: Log, out: Path, **settings) -> list[dict]:
    files = rotate(log.address, out=out, config=JoinConfig(**settings), upto=START + 10 * HOUR)
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def write(log: Log, *records) -> list[bool]:
    return [future.result(60) for future in [log.append(record) for record in records]]


def test_shown_items_become_rows_with_what_came_back(log, tmp_path):
    request = listed(beta=0.5, item_filter=Filter(exclude=(9,)), floor=0.1, mode="drawn", arm="candidate", stage="5")
    write(log, request, answer(request, 2), answer(request, 3, "purchase"))
    rows = events(log, tmp_path)
    assert [row["item_id"] for row in rows] == [1, 2, 3]
    assert [row["event"] for row in rows] == ["none", "click", "purchase"]
    assert [row["reward"] for row in rows] == [0.0, 0.2, 1.0]
    assert [row["propensity"] for row in rows] == [0.5, 0.25, 0.125]
    assert [row["place"] for row in rows] == [0, 1, 2]
    first = rows[0]
    assert (first["request"], first["policy"], first["beta"], first["floor"]) == (
        request.id,
        "abc at beta 0.5 with floor 0.1",
        0.5,
        0.1,
    )
    assert (first["filter"], first["arm"], first["stage"]) == (request.item_filter.digest, "candidate", "5")
    assert Filter.of(json.loads(first["filter_content"])) == request.item_filter
    assert Database(log.address).rows("SELECT content FROM filters") == [], "it left with the list that had it"


def test_built_is_not_seen(log, tmp_path):
    half, never, whole = listed(1), listed(2, deferred=True), listed(3, deferred=True)
    write(
        log, half, never, whole, Shown(half.id, 2, START + 5), Shown(half.id, 1, START + 9), Shown(whole.id, 3, START)
    )
    rows = events(log, tmp_path)
    found = {(row["sequence_id"], row["item_id"]) for row in rows}
    assert found == {("p1", 1), ("p1", 2), ("p3", 1), ("p3", 2), ("p3", 3)} and len(rows) == 5


def test_the_same_id_twice_is_one_answer(log, tmp_path):
    request = listed()
    once = answer(request, 1, id="f1")
    assert write(log, request, once, once, answer(request, 1, "purchase", id="f1")) == [True, True, False, False]
    assert [row["event"] for row in events(log, tmp_path)] == ["click", "none", "none"]


def test_answers_after_the_window_are_kept_but_not_counted(log, tmp_path):
    request = listed()
    write(log, request, answer(request, 1, after=HOUR + 1, late=True), answer(request, 2, after=HOUR))
    assert [row["event"] for row in events(log, tmp_path)] == ["none", "click", "none"]
    (kept,) = (tmp_path / "_feedback").glob("*.parquet")
    assert [(row["item"], row["fate"]) for row in pq.read_table(kept).to_pylist()] == [("2", "used"), ("1", "late")]


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [("max", ("purchase", 1.0)), ("sum", ("purchase", 1.4)), ("first", ("click", 0.2)), ("last", ("view", 0.2))],
)
def test_several_answers_to_one_item(aggregation, expected):
    found = aggregate([("click", 0.2), ("purchase", 1.0), ("view", 0.2)], JoinConfig(aggregation=aggregation))
    assert found == (expected[0], pytest.approx(expected[1]))


def test_a_stated_reward_replaces_the_default(log, tmp_path):
    request = listed()
    write(log, request, answer(request, 1, reward=7.5), answer(request, 2, "watch"))
    rows = events(log, tmp_path, default=-0.5, rewards="click=1,watch=3")
    assert [row["reward"] for row in rows] == [7.5, 3.0, -0.5]


def test_a_continued_history_is_written_once(log, tmp_path):
    """A history of everything shown and answered, and then more: only what is more becomes rows."""
    past = [(8, "click"), (9, "none")]
    first = listed(history=past)
    record = [*past, (1, "none"), (2, "click"), (3, "none"), (7, "purchase")]
    second = listed(history=record, time=START + 1000)
    stranger = listed(person=None, history=[(7, "click")], time=START + 2000)
    write(log, first, answer(first, 2), second, stranger)
    rows = events(log, tmp_path)
    mine = [row for row in rows if row["sequence_id"] == "p0"]
    assert [(row["item_id"], row["event"], row["past_event"]) for row in mine] == [
        (8, "context", "click"), (9, "context", "none"), (1, "none", None), (2, "click", None), (3, "none", None),
        (7, "context", "purchase"), *[(item, "none", None) for item in (1, 2, 3)],
    ]  # fmt: skip
    assert {row["context_id"] for row in mine} == {first.id}
    assert [row["place"] for row in mine] == [-2, -1, 0, 1, 2, -1, 0, 1, 2]
    assert [row["item_id"] for row in rows if row["sequence_id"] == stranger.id] == [7, 1, 2, 3]


@pytest.mark.parametrize(
    "history",
    [[(2, "click")], [(9, "none"), (1, "none"), (2, "click"), (3, "none")],
     [(8, "click"), (9, "none"), (1, "none"), (2, "none"), (3, "none")], []],
    ids=["clicks alone", "the latest alone", "a click that the client missed", "nothing"],
)  # fmt: skip
def test_another_history_begins_from_its_start(history, log, tmp_path):
    first = listed(history=[(8, "click"), (9, "none")])
    second = listed(history=history, time=START + 1000)
    write(log, first, answer(first, 2), second)
    rows = [row for row in events(log, tmp_path) if row["context_id"] == second.id]
    assert [(row["item_id"], row["past_event"]) for row in rows] == [*history, *[(item, None) for item in (1, 2, 3)]]


def test_a_rotated_file_needs_no_other(log, tmp_path):
    record: list[tuple[int, str]] = [(8, "click")]
    for number in range(3):
        at = START + number * HOUR
        write(log, listed(history=record, items=[1, 2], propensities=[0.5, 0.5], time=at))
        record = [*record, (1, "none"), (2, "none")]
        (file,) = rotate(log.address, out=tmp_path, upto=at + 1)
        rows = pq.read_table(file).to_pylist()
        assert [(row["item_id"], row["past_event"] or row["event"]) for row in rows] == record


def test_rotation_takes_each_request_once_and_leaves_open_windows(log, tmp_path):
    early, late = listed(1), listed(2, time=START + 5 * HOUR)
    write(log, early, late)
    (file,) = rotate(log.address, out=tmp_path, upto=START + HOUR)
    assert rotate(log.address, out=tmp_path, upto=START + HOUR) == []
    (second,) = rotate(log.address, out=tmp_path, upto=START + 6 * HOUR)
    assert [pq.read_table(one)["sequence_id"][0].as_py() for one in (file, second)] == ["p1", "p2"]
    now_empty = rotate(log.address, out=tmp_path)
    assert now_empty == []


@pytest.mark.parametrize("moment", ["before the file", "after the file"])
def test_a_rotation_that_was_killed_is_finished_with_the_same_borders(log, tmp_path, monkeypatch, moment):
    write(log, listed(1, history=[(5, "click")]), listed(2))

    def killed(*arguments, **settings):
        if moment == "after the file":
            write_file(*arguments, **settings)
        raise KeyboardInterrupt

    write_file = rotating._write
    monkeypatch.setattr(rotating, "_write", killed)
    with pytest.raises(KeyboardInterrupt):
        rotate(log.address, out=tmp_path, upto=START + HOUR)
    monkeypatch.undo()
    write(log, listed(3, time=START + 2 * HOUR))
    files = rotate(log.address, out=tmp_path, upto=START + 3 * HOUR)
    assert sorted(files) == sorted(tmp_path.glob("*.parquet")) and len(files) == 2
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert sorted((row["sequence_id"], row["item_id"]) for row in rows) == [
        ("p1", 1), ("p1", 2), ("p1", 3), ("p1", 5), ("p2", 1), ("p2", 2), ("p2", 3), ("p3", 1), ("p3", 2), ("p3", 3)
    ]  # fmt: skip


WRITER = """
import sys
from localpolicy.serving.log import Log
sys.path.insert(0, sys.argv[2])
from test_log import listed
log = Log(sys.argv[1])
while True:
    batch = [listed() for _ in range(20)]
    for record, done in [(one, log.append(one)) for one in batch]:
        done.result()
        print(record.id, flush=True)
"""


def test_what_was_acknowledged_survives_a_kill(tmp_path):
    acknowledged: list[str] = []
    for _ in range(2):
        command = [sys.executable, "-c", WRITER, str(tmp_path / "log.db"), str(Path(__file__).parent)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        goal = len(acknowledged) + 150
        for line in process.stdout:
            acknowledged.append(line.strip())
            if len(acknowledged) == goal:
                os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    database = Database(tmp_path / "log.db")
    found = {id for (id,) in database.rows("SELECT id FROM requests")}
    whole = {id for id in acknowledged if len(id) == 32}
    assert len(whole) >= 300 and whole <= found
    assert database.rows("PRAGMA integrity_check") == [("ok",)] and database.rows("PRAGMA synchronous") == [(2,)]


def test_a_log_that_cannot_be_written_acknowledges_nothing(log):
    request = listed()
    assert write(log, request) == [True]
    twice = log.append(request)
    with pytest.raises(LogError, match="could not be written"):
        twice.result(60)
    assert write(log, listed()) == [True], "it goes on"


def test_records_share_transactions(log):
    futures = [log.append(listed(number)) for number in range(400)]
    assert all(future.result(60) for future in futures)
    assert log.records == 400 and log.transactions < 400


@pytest.mark.parametrize("count", [1, 2, 3, 7, 22])
def test_lists_of_one_group_are_written_whole(address, count):
    """One statement writes many: each row is its own record's, whatever their number; filters are written once."""
    records = [
        listed(number, history=((number, "click"),), items=[number, number + 1], propensities=[0.5, 1 / (2 + number)],
               beta=number / 2, floor=number / 100, deferred=number % 2 == 1, arm=f"a{number}", stage=f"s{number}",
               rollout=f"r{number}", item_filter=Filter(exclude=(number % 3,) if number % 3 else ()))
        for number in range(count)
    ]  # fmt: skip
    database = Database(address, create=True)
    with database.transaction():
        write_requests(database, records)
    columns = "id, person, history, items, propensities, beta, floor, filter, deferred, arm, stage, rollout"
    rows = {row[0]: row[1:] for row in database.rows(f"SELECT {columns} FROM requests")}
    assert rows == {
        one.id: (
            one.person, json.dumps(one.history, separators=(",", ":")), json.dumps(one.items, separators=(",", ":")),
            json.dumps(one.propensities, separators=(",", ":")), one.beta, one.floor, one.item_filter.digest,
            int(one.deferred), one.arm, one.stage, one.rollout,
        )
        for one in records
    }  # fmt: skip
    assert len(database.rows("SELECT * FROM filters")) == min(max(0, count - 1), 2)
    database.close()


def test_in_an_event_loop_who_gave_up_harms_nobody(log):
    async def ask() -> list:
        answers = [log.append(listed(number)) for number in range(5)]
        answers[2].cancel()
        return await asyncio.gather(*answers, return_exceptions=True)

    found = asyncio.run(ask())
    assert [one for one in found if one is True] == [True] * 4 and isinstance(found[2], asyncio.CancelledError)
    assert write(log, listed()) == [True], "its loop is closed, the log goes on"


def test_in_an_event_loop_nothing_is_acknowledged_before_it_is_committed(log):
    """A group that is rolled back is an error for each of it, and none of it is in the log."""
    request = listed()
    assert write(log, request) == [True]

    async def ask() -> list:
        return await asyncio.gather(*(log.append(one) for one in (request, request)), return_exceptions=True)

    assert [type(one) for one in asyncio.run(ask())] == [LogError, LogError]
    other = Database(log.address)
    assert other.rows("SELECT COUNT(*) FROM requests") == [(1,)]
    other.close()


def test_ids_tell_their_time():
    assert time_of(new_id(START)) == START and len({new_id(START) for _ in range(1000)}) == 1000
    assert time_of("nonsense") is None and time_of("z" * 32) is None


def test_a_file_that_is_no_log_is_refused(tmp_path):
    (tmp_path / "text").write_text("this is not a database, but long enough to be read as one" * 20)
    with pytest.raises(LocalPolicyError, match="cannot be opened as a log, which a service writes"):
        Log(tmp_path / "text")


def test_a_full_disk_is_called_one_where_sqlite_calls_it_an_error(tmp_path, monkeypatch):
    """SQLite without room for a page of its index answers "disk I/O error"."""
    (tmp_path / "log.db").write_text("what cannot be opened, for whatever reason" * 20)
    monkeypatch.setattr(full_disk.shutil, "disk_usage", lambda path: SimpleNamespace(free=4096))
    with pytest.raises(WriteError, match="the disk is full"):
        Log(tmp_path / "log.db")


# ---------------------------------------------------------------------- from the log to a data set


@pytest.fixture
def rotated(log, tmp_path):
    for number in range(40):
        for step in range(2):
            request = listed(
                number, time=START + 1000 * (2 * number + step), history=[(4, "click")] if step == 0 else []
            )
            write(log, request, answer(request, 2, "purchase" if number % 2 else "click"))
    (file,) = rotate(log.address, out=tmp_path / "events", upto=START + HOUR)
    return file


def test_prepare_reads_the_rotated_log(rotated, tmp_path):
    data = prepare("events", [rotated.parent], out=tmp_path / "data", test=0.2, validation=0.2)
    assert data.kind == "impressions" and data.manifest["policies"] == ["abc"]
    assert data.manifest["counts"]["events"] == {"click": 40, "context": 40, "none": 160, "purchase": 40}
    train = data["train"]
    first = slice(*train.offsets[:2])
    ids = data.catalogue["item_id"].to_numpy()
    assert ids[train.arrays["item"][first]].tolist() == [4, 1, 2, 3, 1, 2, 3]
    assert train.arrays["place"][first].tolist() == [-1, 0, 1, 2, 0, 1, 2]
    assert train.arrays["anew"][first].tolist() == [0, 0, 0, 0, 1, 0, 0], "the second list was asked for without any"
    assert data.events[train.arrays["past_event"][0]] == "click"
    assert train.arrays["above"][first].tolist() == [0, 0, 1, 2, 0, 1, 2]
    np.testing.assert_allclose(train.arrays["propensity"][first][1:], [0.5, 0.25, 0.125] * 2)


def test_a_list_appended_to_stays_a_list(rotated, tmp_path):
    data = prepare("events", [rotated], out=tmp_path / "data", test=0.2, validation=0.2)
    table = pq.read_table(rotated)
    later = pc.add(table["timestamp"].cast("int64"), 10 * HOUR).cast(table.schema.field("timestamp").type)
    more = table.set_column(3, "timestamp", later)
    more = more.set_column(7, "request", pc.binary_join_element_wise(table["request"], "x", ""))
    pq.write_table(more, tmp_path / "more.parquet")
    twice = prepare("events", [tmp_path / "more.parquet"], out=tmp_path / "twice", append=data.path)
    assert len(twice) == len(data)
    for split in data.splits:
        for name in ("above", "place"):
            assert sorted(twice[split].arrays[name]) == sorted([*data[split].arrays[name]] * 2)


def test_a_person_is_erased_everywhere(log, rotated, tmp_path):
    prepare("events", [rotated], out=tmp_path / "data", test=0.2, validation=0.2)
    before = Prepared(tmp_path / "data")
    digest, sequences, items = before.digest, len(before), before.n_items
    kept = listed(4, time=START + 2 * HOUR)
    gone = listed(5, time=START + 2 * HOUR)
    write(log, kept, gone, answer(gone, 1), answer(kept, 1), Shown(gone.id, 1, START))
    found = erase("p5", log=log.address, files=[rotated.parent], data=[tmp_path / "data"])
    assert found["log"] == {"requests": 1, "feedback": 1, "shown": 1}
    assert set(pq.read_table(rotated)["sequence_id"].to_pylist()) == {f"p{n}" for n in range(40)} - {"p5"}
    after = Prepared(tmp_path / "data")
    after.verify()
    assert (len(after), after.n_items) == (sequences - 1, items)
    assert after.manifest["erasures"][0]["before"] == digest != after.digest
    assert after.digests == {digest, after.digest}, "runs trained before the erasure still know their data"
    assert "p5" not in {one.as_py() for split in after.splits for one in after.sequence_ids(split)}
    database = Database(log.address)
    assert database.rows("SELECT id FROM requests") == [(kept.id,)]
    (record,) = database.rows("SELECT content FROM erasures")
    assert '"p5"' not in record[0]
    changed = found["files"][str(rotated)]
    assert len(found["files"]) == 3, "the events, and the lists and answers as they were made"
    assert database.rows("SELECT sha256 FROM rotations") == [(changed["after"],)]
    again = erase("p5", log=log.address, files=[rotated], data=[tmp_path / "data"])
    assert not again["files"] and not again["data"] and not any(again["log"].values())
    with pytest.raises(LocalPolicyError, match="part of .* already"):
        prepare("events", [rotated], out=tmp_path / "more", append=tmp_path / "data")


def test_an_erasure_that_was_cut_short_is_finished_by_the_next(log, rotated, tmp_path):
    """Files that changed without their data set are known by it all the same: no day is appended twice."""
    prepare("events", [rotated], out=tmp_path / "data", test=0.2, validation=0.2)
    with pytest.raises(LocalPolicyError, match="mistyped"):
        erase("p5", files=[rotated.parent], data=[tmp_path / "data", tmp_path / "mistyped"])
    assert "p5" in pq.read_table(rotated)["sequence_id"].to_pylist(), "a wrong name is told before anything is changed"
    # The second finds the file changed, and no row to erase; the third finds it changed twice.
    for cut_short, finished in (("p5", "p5"), ("p6", "p5"), ("p7 p8", "p5")):
        for person in cut_short.split():
            erase(person, files=[rotated.parent])
        erase(finished, files=[rotated.parent], data=[tmp_path / "data"])
        with pytest.raises(LocalPolicyError, match="part of .* already"):
            prepare("events", [rotated], out=tmp_path / "more", append=tmp_path / "data")
    assert len(Prepared(tmp_path / "data")) == 39
