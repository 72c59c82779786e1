"""The original files, as a user downloads them: their formats are made here, and counted without our code."""

from __future__ import annotations

import gzip
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from raw_logs import lot, random_log, stored, write_csv, write_parquet

from localpolicy.data.prepare import prepare
from localpolicy.data.published_counts import COUNTED, PAPER, README, UNVERIFIED, compare
from localpolicy.data.readers import READERS, netflix
from localpolicy.errors import DataError


def yoochoose(folder: Path) -> tuple[list[dict], list[dict]]:
    rows = random_log(sequences=150, events=700, step=1234)
    stamp = lambda row: datetime.fromtimestamp(row["timestamp"] / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"  # noqa: E731
    clicks = [row for row in rows if row["event"] == "click"]
    buys = [row for row in rows if row["event"] == "purchase"]
    folder.mkdir()
    lines = [f"{r['sequence_id']},{stamp(r)},{r['item_id']},{'S' if i % 3 else 0}\n" for i, r in enumerate(clicks)]
    (folder / "yoochoose-clicks.dat").write_text("".join(lines))
    lines = [f"{r['sequence_id']},{stamp(r)},{r['item_id']},12462,1\n" for r in buys]
    (folder / "yoochoose-buys.dat").write_text("".join(lines))
    return clicks, buys


def test_yoochoose_has_its_counts(tmp_path: Path) -> None:
    clicks, buys = yoochoose(tmp_path / "raw")
    data = prepare("yoochoose", [tmp_path / "raw"], out=tmp_path / "data")
    per_session = Counter(row["sequence_id"] for row in clicks)
    kept = {session for session, count in per_session.items() if count > 2}
    assert set(stored(data)) == kept
    assert data.manifest["counts"]["events"] == {
        "click": sum(row["sequence_id"] in kept for row in clicks),
        "purchase": sum(row["sequence_id"] in kept for row in buys),
    }
    times = sorted(row["timestamp"] for row in [*clicks, *buys] if row["sequence_id"] in kept)
    assert sorted(event[2] for events in stored(data).values() for event in events) == times


def test_yoochoose_says_what_differs_and_why(tmp_path: Path) -> None:
    yoochoose(tmp_path / "raw")
    data = prepare("yoochoose", [tmp_path / "raw"], out=tmp_path / "data")
    reader = READERS["yoochoose"]
    report = compare(data.manifest, reader.editions, reader.preset)
    assert {row["what"]: row["expected"] for row in report["counts"]}["items"] == 48_255
    assert not any(row["agrees"] for row in report["counts"])
    assert "700 usable rows and the original 34,154,697" in report["reason"]
    manifest = {
        **data.manifest,
        "rows": {"all": 34_154_697},
        "settings": {**data.manifest["settings"], "min_clicks": 1},
    }
    assert "min_clicks=1" in compare(manifest, reader.editions, reader.preset)["reason"]
    counts = {"sequences": 4_431_931, "items": 48_255, "events": {"click": 24_599_999, "purchase": 1_150_753}}
    published = compare({**manifest, "counts": counts}, reader.editions, reader.preset)
    assert all(row["agrees"] for row in published["counts"])
    assert published["reason"] == ""


def test_every_published_count_says_where_it_stands(tmp_path: Path) -> None:
    sources = {c.source for reader in READERS.values() for edition in reader.editions for c in edition.counts}
    assert sources == {PAPER, README, COUNTED, UNVERIFIED, "the sum of its lineage's item counts"}
    (tmp_path / "ratings.dat").write_text("".join(f"{user}::7::3::900000000\n" for user in range(99)))
    data = prepare("movielens", [tmp_path], out=tmp_path / "data")
    edition = next(edition for edition in READERS["movielens"].editions if edition.name.endswith("32M"))
    notes = {row["what"]: row["note"] for row in compare(data.manifest, [edition], {})["counts"]}
    assert notes == {"sequences": "its README", "items": "published, not verified", "events": "its README"}


def test_an_event_that_a_whole_file_holds_can_be_dropped(tmp_path: Path) -> None:
    clicks, _ = yoochoose(tmp_path / "raw")
    with (tmp_path / "raw" / "yoochoose-buys.dat").open("a") as buys:
        buys.write(",,,,\n")  # nobody asks what is in a row that is dropped
    data = prepare("yoochoose", [tmp_path / "raw"], out=tmp_path / "data", drop_events=("purchase",), min_clicks=0)
    assert data.manifest["rows"] == data.manifest["counts"]["events"] == {"click": len(clicks)}
    assert data.manifest["bad_rows"] == {}


def test_yoochoose_needs_both_files(tmp_path: Path) -> None:
    yoochoose(tmp_path / "raw")
    (tmp_path / "raw" / "yoochoose-buys.dat").unlink()
    with pytest.raises(DataError, match=r"no yoochoose-buys\.dat"):
        prepare("yoochoose", [tmp_path / "raw"], out=tmp_path / "data")


def test_retailrocket_has_its_counts(tmp_path: Path) -> None:
    names = {"click": "view", "purchase": "addtocart"}
    log = random_log(sequences=150, items=120, events=700)
    rows = [
        {
            "timestamp": r["timestamp"],
            "visitorid": r["sequence_id"],
            "event": names[r["event"]],
            "itemid": r["item_id"],
            "transactionid": "",
        }
        for r in log
    ]
    sold = [{**row, "event": "transaction", "transactionid": 7000 + n} for n, row in enumerate(rows[:60])]
    write_csv(tmp_path / "raw" / "events.csv", [*rows, *sold])
    (tmp_path / "raw" / "item_properties_part1.csv").write_text("timestamp,itemid,property,value\n")
    data = prepare("retailrocket", [tmp_path / "raw"], out=tmp_path / "data")
    visits = Counter(row["visitorid"] for row in rows)
    kept = [row for row in rows if visits[row["visitorid"]] > 2]
    popular = Counter(row["itemid"] for row in kept)
    kept = [row for row in kept if popular[row["itemid"]] > 2]  # one pass: shortened sequences stay
    assert data.manifest["counts"]["sequences"] == len({row["visitorid"] for row in kept})
    assert data.manifest["counts"]["items"] == len({row["itemid"] for row in kept})
    found = Counter("click" if row["event"] == "view" else "purchase" for row in kept)
    assert data.manifest["counts"]["events"] == found
    assert min(len(events) for events in stored(data).values()) < 3


def ratings(seed: int = 0, users: int = 80, movies: int = 40) -> list[tuple[int, int, int, str]]:
    rng = np.random.default_rng(seed)
    chosen = {(int(rng.integers(users)), int(rng.zipf(1.4) % movies) + 1) for _ in range(1500)}
    return [
        (user, movie, int(rng.integers(1, 6)), f"2005-{rng.integers(1, 13):02d}-{rng.integers(1, 29):02d}")
        for user, movie in sorted(chosen)
    ]


@pytest.mark.parametrize("layout", ["combined", "mv"])
def test_netflix_has_its_counts(tmp_path: Path, layout: str, messages: Callable[[str], list[str]]) -> None:
    log = ratings()
    blocks: dict[int, list[str]] = defaultdict(list)
    for user, movie, rating, date in log:
        blocks[movie].append(f"{user},{rating},{date}\n")
    files = {movie: f"{movie}:\n" + "".join(lines) for movie, lines in sorted(blocks.items())}
    if layout == "mv":
        for movie, text in files.items():
            (tmp_path / f"mv_{movie:07d}.txt").write_text(text)
    else:
        parts = list(files.values())
        (tmp_path / "combined_data_1.txt").write_text("".join(parts[:10]))
        (tmp_path / "combined_data_2.txt").write_text("".join(parts[10:]))
        (tmp_path / "movie_titles.csv").write_text("1,2003,Dinosaur Planet\n")
    data = prepare("netflix", [tmp_path], out=tmp_path / "data", most_recent=12)
    by_user: dict[int, list[tuple]] = defaultdict(list)
    for user, movie, rating, date in log:
        time = int(datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp()) * 1000
        reward = {1: 0.0, 2: 0.0, 3: 0.5, 4: 1.0, 5: 1.0}[rating]
        by_user[user].append((time, lot(user, movie, time), movie, str(rating), reward))
    expected = {
        user: [(m, r, t, w) for t, _, m, r, w in sorted(rows)[-12:]] for user, rows in by_user.items() if len(rows) >= 5
    }
    assert stored(data) == expected
    assert any("too few for 20,000" in line for line in messages("localpolicy.data.splits"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1:\n5,3,2005-01-01\nno comma\n", r"combined_data_1\.txt, line 3: .* found 'no comma'\. Fix"),
        ("1:\n5,3,2005-01-01\n5,3\n\n2:\n6,3,2005-02-30\n", r"line 3: .* found '5,3' \(2 bad lines in all\)\. Fix"),
        ("5,3,2005-01-01\n", "expected 'movie:' on the first line"),
        ("1:\n5,3,soon\n", "expected 'user,rating,date' lines"),
        ("1:\n,3,2005-01-01\n", "expected 'user,rating,date' lines"),
        ("1:\n2:\n", "holds no ratings"),
    ],
)
def test_netflix_names_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "combined_data_1.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        prepare("netflix", [tmp_path], out=tmp_path / "data")


def test_netflix_passes_over_bad_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is as it would be without them, whichever movie they stand under and however pieces fall."""
    lines: dict[int, list[str]] = defaultdict(list)
    for user, movie, rating, day in ratings():
        lines[movie].append(f"{user},{rating},{day}")
    text = [line for movie, block in sorted(lines.items()) for line in (f"{movie}:", *block)]
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "combined_data_1.txt").write_text("\n".join(text) + "\n")
    good = prepare("netflix", [tmp_path / "good"], out=tmp_path / "clean")
    for number, bad in enumerate(["7", "7,9999,2005-01-01", "x,3,2005-01-01", "7,3,2005-02-30", "7,3,2005-01-01,1"]):
        text.insert(1 + 53 * number, bad)
    (tmp_path / "combined_data_1.txt").write_text("\n".join(text) + "\n")
    (tmp_path / "good" / "combined_data_1.txt").unlink()
    monkeypatch.setattr(netflix, "ROWS_PER_GROUP", 100)
    data = prepare("netflix", [tmp_path], out=tmp_path / "data", skip_bad_rows=True)
    assert data.manifest["bad_rows"] == {"the line cannot be cut into columns": 5}
    assert data.digest == good.digest


@pytest.mark.parametrize("name", ["u.data", "ratings.dat", "ratings.csv", "ratings.csv.gz"])
def test_movielens_has_its_counts(tmp_path: Path, name: str) -> None:
    whole = name in ("u.data", "ratings.dat")
    rows = [
        (user + 1, movie, rating if whole else rating - 0.5 * (user % 2), 800_000_000 + user * 1000 + movie)
        for user, movie, rating, _ in ratings()
    ]
    mark = {"u.data": "\t", "ratings.dat": "::"}.get(name, ",")
    text = "".join(mark.join(map(str, row)) + "\n" for row in rows)
    text = text if whole else "userId,movieId,rating,timestamp\n" + text
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    data = prepare("movielens", [tmp_path], out=tmp_path / "data")
    assert data.manifest["counts"]["events"] == Counter(f"{row[2]:g}" for row in rows)
    assert data.manifest["counts"]["sequences"] == len({row[0] for row in rows})
    assert {(s, item, time) for s, events in stored(data).items() for item, _, time, _ in events} == {
        (u, m, t * 1000) for u, m, _, t in rows
    }


def test_openbandit_has_its_counts(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for policy in ("random", "bts"):
        rows = [
            {
                "": n,
                "timestamp": f"2019-11-24 00:{n // 60:02d}:{n % 60:02d}.{n:06d}+00:00",
                "item_id": int(rng.integers(34)),
                "position": 1,
                "click": int(rng.random() < 0.1),
                "propensity_score": 1 / 34,
                "user-item_affinity_0": 0.0,
            }
            for n in range(200)
        ]
        write_csv(tmp_path / "obd" / policy / "men" / "men.csv", rows)
    data = prepare("openbandit", [tmp_path / "obd"], out=tmp_path / "data")
    assert data.kind == "impressions"
    assert data.manifest["policies"] == ["bts", "random"]
    assert data.manifest["counts"]["sequences"] == 400
    assert np.diff(data["train"].offsets).max() == 1
    assert np.allclose(data["train"].arrays["propensity"], 1 / 34)
    write_csv(tmp_path / "obd" / "bts" / "women" / "women.csv", rows)
    with pytest.raises(DataError, match="campaigns men, women"):
        prepare("openbandit", [tmp_path / "obd"], out=tmp_path / "other")


def test_a_source_that_is_elsewhere_is_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / "log.parquet", random_log())
    with pytest.raises(DataError, match=r"no events\.csv or events\.csv\.gz in"):
        prepare("retailrocket", [tmp_path], out=tmp_path / "data")
