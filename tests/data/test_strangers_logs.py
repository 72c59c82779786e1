"""Logs as strangers export them: other languages, values with words in them, weeks, nested objects, other encodings."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import numpy as np
import pyarrow.parquet as pq
import pytest
from commands import invoked as lpi

from localpolicy.data.guess.guess import guess
from localpolicy.data.guess.plain_copy import plainly_written
from localpolicy.data.prepare import prepare
from localpolicy.errors import DataError

START = datetime(2024, 1, 3, 8)
ROWS = 600


def german(rng, n):
    """A web shop's order lines: semicolons, decimal commas with points at thousands, dates with the day first."""
    when = START + timedelta(hours=2 * (n // 3))
    price = f"{1000 + n % 30:,}".replace(",", ".")
    return (f"B{n // 3}", f"{when:%d.%m.%Y %H:%M}", 1000 + (n // 3) % 97, f"A-{n % 30}", n % 3 + 1, f"{n % 30},50",
            f"{price},50 €")  # fmt: skip


def weeks(rng, n):
    """A panel by ISO weeks."""
    year, week, _ = (START + timedelta(hours=3 * n)).isocalendar()
    return f"K{rng.integers(80)}", f"{year}-W{week:02d}", f"I{n % 30}", 2 + n % 30 / 4, n % 2 + 1


def streams(rng, n):
    """Plays of songs with the milliseconds of each."""
    when = START + timedelta(minutes=3 * n)
    return f"{when:%Y-%m-%dT%H:%M:%SZ}", f"user{n % 61}", "ios", rng.integers(240_000), f"Song {n % 30}", "Band"


def exported(rng, n):
    """A shop system's export: signs of money, UTC offsets, names of columns in words, the number of an order."""
    when = START + timedelta(hours=n // 2)
    return (
        f"c{n // 2 % 90}@x.org",
        f"SKU{n % 30}",
        f"£{3 + n % 30}.49",
        n % 2 + 1,
        f"{when:%Y-%m-%d %H:%M:%S} +0100",
        "#1",
    )


def starred(rng, n):
    """Ratings in stars, on days with the names of months."""
    stars = rng.integers(1, 11)
    when = START + timedelta(hours=n)
    return f"r{rng.integers(90)}", f"Film {n % 30}", "★" * (stars // 2) + "½" * (stars % 2), f"{when:%d %b %Y}"


def worded(rng, n):
    """Ratings as sentences of a form."""
    return (
        f"r{rng.integers(90)}",
        f"Film {n % 30}",
        f"{rng.integers(1, 11) / 2:g} stars",
        f"{START + timedelta(n):%B %d, %Y}",
    )


def searched(rng, n):
    """Results of searches and clicks, with places and without propensities."""
    when = START + timedelta(minutes=n // 5)
    return f"q{n // 5}", f"u{n // 5 % 60}", (n % 5) * 6 + rng.integers(6), n % 5, int(rng.random() < 0.2), when


def ordered(rng, n):
    """A restaurant's orders, with the day and the clock in columns of their own."""
    when = START + timedelta(hours=2 * (n // 3))
    return 16_000 + n // 3, f"{when:%d/%m/%Y}", f"{when:%H:%M}", f"Dish {n % 30}", 1 + n % 2, 3 + n % 30 / 4


LOGS = {
    "Bestellnr;Bestelldatum;Kundennr;Artikelnr;Menge;Einzelpreis;Gesamtpreis": (
        german, "Kundennr Artikelnr Bestelldatum reward=Gesamtpreis", "till", "2024-01-03T08:00"),
    "card,week,item_code,spend,units": (weeks, "card item_code week reward=spend", "till", "2024-01-01T00:00"),
    "ts,username,platform,ms_played,master_metadata_track_name,master_metadata_album_artist_name": (
        streams, "username master_metadata_track_name ts reward=ms_played", "how much", "2024-01-03T08:00"),
    "Customer Email,Lineitem sku,Lineitem price,Lineitem quantity,Created at,Name": (
        exported, "Customer Email,Lineitem sku,Created at,reward=Lineitem price", "till", "2024-01-03T07:00"),
    "user,movie,rating,watched_on": (starred, "user movie watched_on event=rating", "ratings", "2024-01-03T00:00"),
    "reviewer,film_title,stars,reviewed_on": (
        worded, "reviewer film_title reviewed_on event=stars", "ratings", "2024-01-03T00:00"),
    "search_id,user,doc,position,clicked,shown_at": (
        searched, "user doc shown_at event=clicked", "what was shown", "2024-01-03T08:00"),
    "Order Number,Order Date,Order Time,Item Name,Quantity,Product Price": (
        ordered, "Order Number,Item Name,timestamp,reward=Product Price", "till", "2024-01-03T08:00"),
}  # fmt: skip


@pytest.mark.parametrize("header", LOGS)
def test_a_strangers_log_is_read_without_help(tmp_path, header):
    row, expected, kind, first = LOGS[header]
    rng, mark = np.random.default_rng(0), ";" if ";" in header else ","
    lines = [[str(value) for value in row(rng, n)] for n in range(ROWS)]
    lines = [[f'"{cell}"' if mark in cell else cell for cell in line] for line in lines]
    (tmp_path / "log.csv").write_text("\n".join([header, *(mark.join(line) for line in lines)]) + "\n")
    path, _ = plainly_written(tmp_path / "log.csv", tmp_path / "out")
    found = guess(path)
    who, what, when, worth = expected.split("," if "," in expected else " ")
    roles = {use.role: use.column for use in found.uses if use.role}
    assert (roles["sequence_id"], roles["item_id"], roles["timestamp"]) == (who, what, when)
    ours, theirs = worth.split("=")
    assert roles[ours] == theirs and kind in found.meaning[0]
    data = prepare(path, source="events", out=tmp_path / "data", **found.settings())
    assert data.manifest["dates"]["first"].startswith(first)
    assert sum(split.events for split in data.splits.values()) == ROWS
    if row is german:
        assert pq.read_table(path)["Gesamtpreis"][1].as_py() == "1001.50", "no price of 1.00150"
    if row in (starred, worded):
        assert found.rewards == ">=4=1,>=3=0.5,*=0", "numbers, and not ten names of events"
    if row is searched:
        assert {"request": "search_id", "place": "position"}.items() <= roles.items() and "propensity" not in roles


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (["1,037.00", "2.50", "12"], ["1037.00", "2.50", "12"]),
        (["1.037,00", "2,50", "12"], ["1037.00", "2.50", "12"]),
        (["4,500", "3"], ["4.500", "3"]), (["1,037", "870", "2,500", "12,400"], ["1037", "870", "2500", "12400"]),
        (["1,037", "0,250", "2,500", "12,400"], ["1.037", "0.250", "2.500", "12.400"]),
        (["$1,299", "$870", "$2,500", "$12,400"], ["1299", "870", "2500", "12400"]),
        (["4,5", "3", "2,25"], ["4.5", "3", "2.25"]),
        (["€ 9,90", "€ 12", "€ 1.200,00"], ["9.90", "12", "1200.00"]),
        (["9.90 EUR", "12 EUR", "0.10 EUR"], ["9.90", "12", "0.10"]), (["4/5", "3.5/5", "1/5"], ["4", "3.5", "1"]),
        (["★★★★★", "★½", "½"], ["5.0", "1.5", "0.5"]), (["3 Sterne", "1 Stern", "2,5 Sterne"], ["3", "1", "2.5"]),
        (["x", "", "X"], ["1", "0", "1"]),
        (["Jan 3, 2024", "Dec 31, 2023", ""], ["2024-01-03 00:00:00", "2023-12-31 00:00:00", None]),
        (["2024-W01", "2023-W52", "2020-W53"], ["2024-01-01", "2023-12-25", "2020-12-28"]),
    ],
)  # fmt: skip
def test_values_are_read_as_they_are_meant(tmp_path, written, read):
    """Before: each of these was a text that "nothing here needs", or a name of an event."""
    rows = "".join(f"{n};{value}\n" for n, value in enumerate(written))
    (tmp_path / "log.csv").write_text(f"n;x\n{rows}")
    copy, notes = plainly_written(tmp_path / "log.csv", tmp_path / "out")
    assert [note.split()[0] for note in notes] == ["x"] and pq.read_table(copy)["x"].to_pylist() == read


@pytest.mark.parametrize(
    "kept",
    [["1,5", "five"], ["3/5", "8/10"], ["★★", "none"], ["March", "May"], ["W01", "W02"], ["$5", "6"], ["a,b", "c,d"]],
)
def test_values_of_no_one_kind_are_left_alone(tmp_path, kept):
    rows = "".join(f"{n};{value}\n" for n, value in enumerate(kept))
    (tmp_path / "log.csv").write_text(f"n;x\n{rows}")
    assert plainly_written(tmp_path / "log.csv", tmp_path / "out") == (tmp_path / "log.csv", ())


def test_a_file_of_another_encoding_is_read_with_a_note(tmp_path):
    """Before: "is not UTF-8 text". A damaged file of UTF-8 is no Windows-1252."""
    text = "Kunde;Artikel;Größe\n" + "".join(f"{n % 30};Öl {n % 7};M\n" for n in range(90))
    (tmp_path / "log.csv").write_text(text, encoding="cp1252")
    path, notes = plainly_written(tmp_path / "log.csv", tmp_path / "out")
    assert path.read_text(encoding="utf-8") == text and "Windows-1252" in notes[0]
    assert guess(path).items == 7
    for broken in (text.encode()[:-5] + b"\xff\n", b"a;b\n\x81\n"):
        (tmp_path / "log.csv").write_bytes(broken)
        with pytest.raises(DataError, match="UTF-8"):
            guess(plainly_written(tmp_path / "log.csv", tmp_path / "out")[0])


def test_nested_objects_are_columns_of_their_own(tmp_path):
    """Before: a whole object was the item, so an item whose price had changed was another one."""
    rows = [
        {"event_name": ("view", "buy")[n % 9 == 0], "at": 1_700_000_000 + n, "user": {"id": f"u{n % 40}"},
         "product": {"id": f"p{n % 7}", "price": {"amount": n}}} for n in range(400)
    ]  # fmt: skip
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path, _ = plainly_written(tmp_path / "log.jsonl", tmp_path / "out")
    found = guess(path)
    assert found.items == 7 and found.columns["item_id"] == "product.id" and found.columns["sequence_id"] == "user.id"
    assert "product.price.amount" in pq.read_schema(path).names


def test_marks_of_what_was_chosen_are_answers(tmp_path):
    """Before: "the same value everywhere", and the price of what was shown was the reward of a till."""
    rows = "".join(f"R{n // 20},{'ABCDE'[n % 5]},{n % 7},{'x' * (n % 5 == n // 5 % 3)}\n" for n in range(800))
    (tmp_path / "log.csv").write_text(f"respondent,option,price,selected\n{rows}")
    found = guess(plainly_written(tmp_path / "log.csv", tmp_path / "out")[0])
    assert found.rewards == "none=0,selected=1" and "what was shown" in found.meaning[0]


def test_a_dry_run_shows_the_reading_and_stops(tmp_path):
    rows = "".join(f"{n % 97},{n * 7 % 11},{n % 5}.50,{10**9 + n}\n" for n in range(500))
    (tmp_path / "log.csv").write_text(f"user,item,price,time\n{rows}")
    done = lpi("go", tmp_path / "log.csv", "--out", tmp_path / "go", "--dry-run")
    shown = " ".join(done.stdout.split())
    assert done.exit_code == 0 and "till" in shown and "named like a reward" in shown
    assert not (tmp_path / "go" / "data").exists() and not (tmp_path / "go" / "runs").exists()
