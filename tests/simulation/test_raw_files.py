"""Raw files: they parse as the originals do, look like them, and are whole or absent."""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter
from datetime import date, datetime
from pathlib import Path

import numpy as np
import pytest

from localpolicy.errors import ConfigError
from localpolicy.runtime.files import sha256
from localpolicy.simulation import raw, raw_netflix, simulate

RAW = ("yoochoose", "retailrocket", "netflix")


def read(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def films(folder: Path) -> dict[int, list[list[str]]]:
    """The lines of each film, over all four files; a film that begins twice is an error."""
    found: dict[int, list[list[str]]] = {}
    for number in range(1, 5):
        for line in (folder / f"combined_data_{number}.txt").read_text().splitlines():
            if line.endswith(":"):
                lines = found[int(line[:-1])] = [] if int(line[:-1]) not in found else pytest.fail(line)
            else:
                lines.append(line.split(","))
    return found


def test_yoochoose_has_its_format_and_counts(tmp_path: Path) -> None:
    sessions = 20_000
    result = simulate("yoochoose", tmp_path / "out", sequences=sessions)
    clicks, buys = (read(tmp_path / "out" / f"yoochoose-{kind}.dat") for kind in ("clicks", "buys"))
    assert result.rows == {"clicks": len(clicks), "buys": len(buys)}
    stamp = re.compile(r"2014-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
    assert all(len(row) == 4 and stamp.fullmatch(row[1]) for row in clicks)
    assert all(len(row) == 5 and stamp.fullmatch(row[1]) for row in buys)
    assert {row[3] for row in clicks} == {*map(str, range(13)), "S"}
    assert all(int(price) > 0 and int(quantity) > 0 for *_, price, quantity in buys)

    lengths = Counter(row[0] for row in clicks)
    assert len(lengths) / sessions > 0.99
    assert len(clicks) / len(lengths) == pytest.approx(3.6, abs=0.15)
    buyers = {row[0] for row in buys}
    assert buyers <= set(lengths)
    assert len(buyers) / sessions == pytest.approx(0.055, abs=0.01)
    # What is bought was clicked in that session, and is paid after the last click.
    assert {(row[0], row[2]) for row in buys} <= {(row[0], row[2]) for row in clicks}
    last = {session: datetime.fromisoformat(time) for session, time, *_ in clicks}
    assert all(datetime.fromisoformat(time) > last[session] for session, time, *_ in buys)


def test_retailrocket_has_its_format_and_counts(tmp_path: Path) -> None:
    visitors = 40_000
    result = simulate("retailrocket", tmp_path / "out", sequences=visitors)
    header, *rows = read(tmp_path / "out" / "events.csv")
    assert header == ["timestamp", "visitorid", "event", "itemid", "transactionid"]
    events = Counter(row[2] for row in rows)
    assert dict(events) == result.rows
    assert set(events) == {"view", "addtocart", "transaction"}
    assert all((row[2] == "transaction") == (row[4] != "") for row in rows)
    paid = [row[4] for row in rows if row[4]]
    assert len(set(paid)) == len(paid)
    assert events["addtocart"] / events["view"] == pytest.approx(0.026, abs=0.006)
    assert events["transaction"] / events["addtocart"] == pytest.approx(0.32, abs=0.06)
    assert all(1_430_000_000_000 < int(row[0]) < 1_450_000_000_000 for row in rows)

    views = Counter(row[1] for row in rows if row[2] == "view")
    lengths = np.array(list(views.values()))
    assert (lengths == 1).mean() == pytest.approx(0.71, abs=0.02)
    assert (lengths > 2).mean() == pytest.approx(0.14, abs=0.02)
    # A cart follows the view of the same item by the same visitor.
    for before, row in itertools.pairwise(rows):
        if row[2] != "view":
            assert (before[1], before[3]) == (row[1], row[3])
            assert int(before[0]) < int(row[0])


def test_netflix_has_its_format_and_counts(tmp_path: Path) -> None:
    users = 3000
    result = simulate("netflix", tmp_path / "out", sequences=users, items=2000)
    found = films(tmp_path / "out")
    rows = [(film, *row) for film, lines in found.items() for row in lines]
    assert len(rows) == result.rows["ratings"]
    assert list(found) == sorted(found)
    assert set(found) <= set(range(1, 2001))
    assert not (tmp_path / "out" / "spool").exists()
    ratings = np.array([int(row[2]) for row in rows])
    assert set(ratings) == {1, 2, 3, 4, 5}
    assert ratings.mean() == pytest.approx(3.6, abs=0.2)
    assert all(date(1999, 10, 1) < date.fromisoformat(row[3]) < date(2006, 1, 1) for row in rows[::50])
    assert len({row[:2] for row in rows}) == len(rows)
    lengths = np.array(list(Counter(row[1] for row in rows).values()))
    assert len(lengths) == users
    assert lengths.mean() > 1.3 * np.median(lengths)


def test_netflix_buckets_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by a chunk of users and a bucket of films: many of each give the same kind of files."""
    monkeypatch.setattr(raw_netflix, "CHUNK", 50)
    monkeypatch.setattr(raw_netflix, "ROWS_PER_BUCKET", 1000)
    result = simulate("netflix", tmp_path / "out", sequences=300, items=40)
    found = films(tmp_path / "out")
    assert list(found) == sorted(found) == list(range(1, 41))
    assert sum(map(len, found.values())) == result.rows["ratings"]


@pytest.mark.parametrize("world", RAW)
def test_equal_seeds_give_equal_bytes(world: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "CHUNK", 128)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        simulate(world, tmp_path / name, sequences=300, items=500, seed=seed)
    one, same, other = ([sha256(file) for file in sorted((tmp_path / name).glob("[!.]*"))] for name in "abc")
    assert one == same
    assert not set(one) & set(other)


def test_chunks_of_visits_are_bounded_and_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "CHUNK", 100)
    told: list[int] = []
    options = {"sequences": 450, "items": 500, "changes": ["purchase_base=0"]}
    simulate("retailrocket", tmp_path / "out", **options, progress=told.append)
    assert told == [100, 100, 100, 100, 50]
    rows = read(tmp_path / "out" / "events.csv")[1:]
    paid = [int(row[4]) for row in rows if row[4]]
    assert paid == list(range(len(paid)))
    visitors = {int(row[1]) for row in rows}
    assert max(visitors) > 440
    assert len(visitors) > 440


@pytest.mark.parametrize("world", RAW)
def test_an_interrupted_writing_leaves_nothing(world: str, tmp_path: Path) -> None:
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(world, tmp_path / "out", sequences=100, items=500, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_raw_worlds_have_dials_and_no_other_forms(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="raw files alone"):
        simulate("netflix", tmp_path / "out", prepared=True)
    with pytest.raises(ConfigError, match="did you mean 'median_length'"):
        simulate("netflix", tmp_path / "out", changes=["median_lenght=3"])
    with pytest.raises(ConfigError, match="greater than 0"):
        simulate("yoochoose", tmp_path / "out", changes=["temperature=0"])
    with pytest.raises(ConfigError, match="at least as many items"):
        simulate("netflix", tmp_path / "out", items=10)
