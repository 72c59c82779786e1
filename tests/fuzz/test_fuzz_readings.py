"""Logs as strangers write them, read twice: by `prepare`, and by a few lines of Python that share nothing with it."""

from __future__ import annotations

import csv
import gzip
import io
import shutil
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from by_hand import Events, in_order, stored
from fuzzing import bounded_memory, examples, fair, lpi
from hypothesis import given
from hypothesis import strategies as st

from localpolicy.data.store import Prepared

START = datetime(2023, 3, 4, 5, 6, 7, tzinfo=UTC)
EVENTS = ("click", "purchase")
SCALES = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
LETTERS = st.text(alphabet="ab[]*?{}!-= é'", min_size=1, max_size=6)
NAMES = LETTERS.map(str.strip).filter(lambda name: name and not name.startswith("-"))
FOLDERS = st.sampled_from(["", "event=click", "item_id=7", "timestamp=2024-05-01", "[ab]", "*", "a b", "é"])
NOTATIONS = ("s", "ms", "us", "ns", "plain", "T", "zoned", "Z", "minutes")
ROWS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 6), st.sampled_from(EVENTS), st.integers(0, 10**6)),
    min_size=60, max_size=120,
)  # fmt: skip


def written(seconds: int, notation: str, zone: int) -> str:
    """One moment as a log may write it."""
    moment = START + timedelta(seconds=seconds)
    if notation in SCALES:
        return str(int(moment.timestamp()) * SCALES[notation])
    if notation == "zoned":
        return moment.astimezone(timezone(timedelta(minutes=15 * zone))).isoformat(sep=" ")
    text = moment.isoformat(sep="T" if notation in ("T", "Z") else " ")[:19]
    return {"Z": f"{text}Z", "minutes": text[:16]}.get(notation, text)


def by_hand(content: str, notation: str) -> Events:
    """Events of a text as Python's csv and datetime read it."""

    def milliseconds(text: str) -> int:
        if notation in SCALES:
            return int(text) * 1000 // SCALES[notation]
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)

    rows = csv.DictReader(io.StringIO(content))
    read = ((row["who"], row["what"], row["event"], milliseconds(row["when"])) for row in rows)
    return in_order(read, numbers=True, persons=True, events=EVENTS)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("readings")


@examples(0.15)
@given(
    rows=ROWS, name=NAMES, folder=FOLDERS, notation=st.sampled_from(NOTATIONS),
    zones=st.lists(st.integers(-48, 56), min_size=1),
    packed=st.booleans(), extra=st.sampled_from(["", "_row", "event ", "Who", "timestamp"]), odd=st.none() | st.data(),
)  # fmt: skip
def test_a_log_is_read_as_python_reads_it_or_its_odd_row_is_named(
    place, rows, name, folder, notation, zones, packed, extra, odd
):
    times = [written(seconds, notation, zones[number % len(zones)]) for number, (*_, seconds) in enumerate(rows)]
    at = None
    if odd is not None:
        numbers = notation in SCALES
        others = [other for other in NOTATIONS if other != notation and (other in SCALES or numbers)]
        others += [] if numbers else ["plain", "T"] if notation in ("zoned", "Z") else ["zoned", "Z"]
        at = odd.draw(st.integers(0, len(rows) - 1))
        times[at] = written(rows[at][3], odd.draw(st.sampled_from(others)), 8)
    header: dict[str, Any] = dict(zip(("who", "what", "event", "when"), zip(*rows, strict=True), strict=True))
    header["when"] = times
    if extra:
        header[extra] = range(len(rows))
    text = io.StringIO()
    csv.writer(text).writerows([list(header), *zip(*header.values(), strict=True)])
    shutil.rmtree(place, ignore_errors=True)
    path = place / "logs" / folder / f"{name}.csv{'.gz' if packed else ''}"
    path.parent.mkdir(parents=True)
    for decoy in ("a", "b", "ab"):
        (path.parent / f"{decoy}.csv").write_text("who,what,event,when\n" + "9,9,click,2020-01-01\n" * 60)
    content = text.getvalue()
    path.write_bytes(gzip.compress(content.encode()) if packed else content.encode())
    columns = "sequence_id=who,item_id=what,timestamp=when"
    with bounded_memory():
        outcome = lpi("prepare", "events", path, "--out", place / "new", "--threads", "1", "--columns", columns,
                      "--validation", "3", "--test", "3")  # fmt: skip
    enough = len({who for who, *_ in rows}) >= 9
    told = fair(outcome)
    assert told == (enough and at is None), (path.name, folder, notation, at, outcome.stderr, content)
    if told:
        assert stored(Prepared(place / "new")) == by_hand(content, notation)
