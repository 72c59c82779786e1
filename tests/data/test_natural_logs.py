"""Logs as people have them, with the columns and the values of public ones: what each is taken for."""

from __future__ import annotations

import gzip
import json
import re
import sys
import zipfile
from dataclasses import replace
from datetime import datetime, timedelta
from xml.sax.saxutils import escape

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from localpolicy.data.guess.guess import guess
from localpolicy.data.guess.plain_copy import plainly_written
from localpolicy.data.prepare import prepare
from localpolicy.errors import ConfigError, DataError
from localpolicy.judge.checks.order import sorted_by
from localpolicy.study.go_plan import prepare_log

START = datetime(2000, 11, 1)


def grocery(rng, n):
    """Households, receipts, products, how many and for how much; one row of fuel by the litre."""
    rows = {
        "household_id": rng.integers(60, size=n), "store_id": rng.integers(5, size=n),
        "basket_id": 31_000_000 + np.arange(n) // 4, "product_id": rng.integers(40, size=n),
        "quantity": rng.integers(1, 4, size=n), "sales_value": rng.uniform(0.5, 9, size=n).round(2),
        "retail_disc": rng.uniform(0, 1, size=n).round(2), "week": 1 + np.arange(n) // 40,
        "transaction_timestamp": [str(START + timedelta(hours=i)) for i in range(n)],
    }  # fmt: skip
    rows["quantity"][7] = 10_506
    return rows


def tafeng(rng, n):
    """A Taiwanese shop: dates with the year last, AMOUNT is how many, the day is above 12 in later rows alone."""
    return {
        "TRANSACTION_DT": [f"{d.month}/{d.day}/{d.year}" for d in (START + timedelta(days=i // 20) for i in range(n))],
        "CUSTOMER_ID": [f"{1_069 + c:08d}" for c in rng.integers(50, size=n)],
        "AGE_GROUP": rng.choice(["K", "E", "B"], size=n), "PIN_CODE": rng.choice(["115", "221"], size=n),
        "PRODUCT_SUBCLASS": 110_000 + rng.integers(9, size=n), "PRODUCT_ID": 4_710_000_000 + rng.integers(30, size=n),
        "AMOUNT": rng.integers(1, 5, size=n), "SALES_PRICE": rng.integers(10, 90, size=n),
    }  # fmt: skip


def invoices(rng, n):
    """A wholesaler's invoices with customers, unit prices and the day first."""
    return {
        "InvoiceNo": 536_365 + np.arange(n) // 5, "StockCode": [f"{85_000 + c}A" for c in rng.integers(30, size=n)],
        "Description": ["a mug"] * n, "Quantity": rng.integers(1, 9, size=n),
        "InvoiceDate": [f"{d:%d/%m/%Y %H:%M}" for d in (START + timedelta(hours=5 * i) for i in range(n))],
        "UnitPrice": rng.uniform(1, 5, size=n).round(2), "CustomerID": 17_000 + rng.integers(50, size=n),
        "Country": ["Germany"] * n,
    }  # fmt: skip


def receipts(rng, n):
    """A till without customers."""
    return {"receipt_id": np.arange(n) // 4, "sku": rng.integers(30, size=n), "qty": rng.integers(1, 5, size=n)}


def films(rng, n):
    """Ratings of films."""
    return {
        "userId": rng.integers(60, size=n), "movieId": rng.integers(40, size=n),
        "rating": rng.integers(1, 11, size=n) / 2, "timestamp": 1_100_000_000 + 60 * np.arange(n),
    }  # fmt: skip


def listened(rng, n):
    """Plays of artists, counted."""
    return {"user": rng.integers(60, size=n), "artist": rng.integers(40, size=n), "plays": rng.integers(1, 900, size=n)}


def clicks(rng, n):
    """What visitors did in a shop, a line each."""
    return {
        "ts": [f"{START + timedelta(minutes=i):%Y-%m-%dT%H:%M:%SZ}" for i in range(n)],
        "visitor": [f"v{c}" for c in rng.integers(60, size=n)], "sku": [f"{c:03d}" for c in rng.integers(30, size=n)],
        "action": rng.choice(["view", "cart", "purchase"], size=n, p=[0.8, 0.15, 0.05]),
    }  # fmt: skip


def travel(rng, n):
    """Choices among ways to travel, a row for each alternative."""
    cases = n // 4
    chosen = rng.integers(4, size=cases)
    return {
        "case": np.repeat(np.arange(cases), 4), "alternative": ["air", "train", "bus", "car"] * cases,
        "travel_cost": rng.integers(20, 90, size=4 * cases),
        "chosen": (np.tile(np.arange(4), cases) == np.repeat(chosen, 4)).astype(int),
    }  # fmt: skip


def news(rng, n):
    """Lists that were drawn, with the probability of each place."""
    lists = n // 5
    return {
        "request_id": np.repeat(np.arange(lists), 5), "user_id": np.repeat(rng.integers(60, size=lists), 5),
        "article_id": np.concatenate([rng.permutation(30)[:5] for _ in range(lists)]),
        "position": np.tile(np.arange(1, 6), lists), "propensity": np.tile(1 / (30.0 - np.arange(5)), lists),
        "clicked": rng.integers(2, size=5 * lists), "ts": 1_600_000_000 + np.repeat(np.arange(lists), 5),
    }  # fmt: skip


def coat(rng, n):
    """Ratings, with a column that says which were given to random items."""
    users = rng.integers(90, size=n)
    return {"user_id": users, "item_id": rng.integers(40, size=n), "rating": rng.integers(1, 6, size=n),
            "split": np.where(users % 5 == 0, "test", "train")}  # fmt: skip


def orders(rng, n):
    """Orders of a grocery's app: no prices, and a flag of what was bought before."""
    return {
        "order_id": np.arange(n) // 5, "user_id": np.repeat(rng.integers(60, size=n // 5), 5),
        "order_dow": rng.integers(7, size=n), "product_id": rng.integers(40, size=n),
        "add_to_cart_order": np.tile(np.arange(1, 6), n // 5), "reordered": rng.integers(2, size=n),
    }  # fmt: skip


def plays(rng, n):
    """Plays of tracks, under the names of a music data base."""
    return {
        "userid": [f"user_{c:06d}" for c in rng.integers(60, size=n)],
        "timestamp": [f"{START + timedelta(minutes=i):%Y-%m-%dT%H:%M:%SZ}" for i in range(n)],
        "musicbrainz-artist-id": rng.integers(20, size=n), "musicbrainz-track-id": rng.integers(40, size=n),
    }  # fmt: skip


def reviews(rng, n):
    """Reviews of beers in several respects, by profiles."""
    return {
        "review_profilename": [f"p{c}" for c in rng.integers(60, size=n)], "beer_beerid": rng.integers(40, size=n),
        "review_time": 1_200_000_000 + 60 * np.arange(n), "review_overall": rng.integers(2, 11, size=n) / 2,
        "beer_abv": rng.uniform(3, 9, size=n).round(1),
    }  # fmt: skip


def served(rng, n):
    """Lists of a recommender's own log, under names of its own."""
    lists = n // 4
    return {
        "recommendation": [f"r{c}" for c in np.repeat(np.arange(lists), 4)],
        "visitor": np.repeat(rng.integers(60, size=lists), 4),
        "shown_item": [f"A{c}" for _ in range(lists) for c in rng.permutation(30)[:4]],
        "rank": np.tile(np.arange(1, 5), lists), "p": np.tile(1 / (30.0 - np.arange(4)), lists),
        "outcome": rng.choice(["none", "click", "buy"], size=n, p=[0.8, 0.15, 0.05]),
        "at": [f"{START + timedelta(minutes=i // 4)}" for i in range(n)],
    }  # fmt: skip


def pizzas(rng, n):
    """A till with the day and the clock apart, names for ids, and a kind that each item has."""
    item = rng.integers(30, size=n)
    when = [START + timedelta(minutes=7 * (i // 3)) for i in range(n)]
    return {
        "rownames": np.arange(n), "id": [f"2015-{i // 3:06d}" for i in range(n)],
        "date": [f"{t:%Y-%m-%d}" for t in when], "time": [f"{t:%H:%M:%S}" for t in when],
        "name": [f"pizza {c}" for c in item],
        "type": np.array(["classic", "veggie", "chicken"])[item % 3], "price": 9 + item / 4,
    }  # fmt: skip


def atomic(rng, n):
    """Ratings in a file whose names of columns state their types, as RecBole writes them."""
    return {f"{name}:{'token' if name.endswith('id') else 'float'}": values for name, values in {
        "user_id": rng.integers(60, size=n), "item_id": rng.integers(40, size=n),
        "rating": rng.integers(1, 6, size=n), "timestamp": 881_250_000 + 60 * np.arange(n),
    }.items()}  # fmt: skip


def ketchup(rng, n):
    """A panel's choices in a wide table: what was bought, with columns of each alternative."""
    brands = ["heinz41", "heinz32", "heinz28", "hunts32"]
    shown = {f"{what}.{brand}": rng.integers(2, size=n) for what in ("disp", "feat") for brand in brands}
    prices = {f"price.{brand}": rng.uniform(2, 6, size=n).round(1) for brand in brands}
    return {"rownames": np.arange(n), "id": np.arange(n) // 10, **shown, **prices, "choice": rng.choice(brands, size=n)}


def cars(rng, n):
    """Choices among cars, a session each, of which some miss one: no column is named like an item or a case."""
    sizes = [4, 4, 4, 3] * (n // 15)
    case = np.repeat(np.arange(len(sizes)), sizes)
    return {
        "record_id": case, "session_id": case, "consumer_id": case,
        "car": [car for size in sizes for car in ("American", "Japanese", "European", "Korean")[:size]],
        "purchase": [int(place == taken) for size in sizes for taken in [rng.integers(size)] for place in range(size)],
        "gender": rng.integers(2, size=len(sizes))[case], "price": rng.integers(10, 90, size=n),
    }  # fmt: skip


def choices(rng, cases, shown):
    """Which of the alternatives of each case was chosen, as 0 and 1."""
    return (np.tile(np.arange(shown), cases) == np.repeat(rng.integers(shown, size=cases), shown)).astype(int)


def suppliers(rng, n):
    """Choices among suppliers, several by each of some people."""
    cases = n // 4
    return {
        "choice": np.where(choices(rng, cases, 4), "TRUE", "FALSE"), "id": np.repeat(np.arange(cases) // 2, 4),
        "alt": np.tile(np.arange(1, 5), cases), "pf": rng.integers(10, size=n), "chid": np.repeat(np.arange(cases), 4),
    }  # fmt: skip


def itineraries(rng, n):
    """Choices among flights, one by each person, in which durations and prices are of the alternatives."""
    cases = n // 5
    return {
        "individual": np.repeat(np.arange(cases), 5),
        "alternative": np.concatenate([rng.permutation(40)[:5] for _ in range(cases)]),
        "choice": choices(rng, cases, 5),
        "totalPrice": rng.integers(90, 900, size=n), "time": rng.uniform(1, 9, size=n).round(2),
    }  # fmt: skip


def commuters(rng, n):
    """Choices among ways to work, by persons of households, with much that is known of them."""
    cases = n // 6
    each = {f"{name}dum": np.repeat(rng.integers(2, size=cases), 6) for name in ("veh", "fem", "lic")}
    return {
        "casenum": np.repeat(np.arange(cases), 6), "altnum": np.tile(np.arange(1, 7), cases),
        "chose": choices(rng, cases, 6), "hhid": np.repeat(np.arange(cases) // 2, 6), "perid": 1 + np.arange(n) % 2,
        **each,
    }  # fmt: skip


def scored(rng, n):
    """Ratings called a score, in halves."""
    return {
        "user": rng.integers(60, size=n),
        "movie": rng.integers(40, size=n),
        "score": rng.integers(1, 9, size=n) / 2,
    }


LOGS = {
    "pizzas.csv": (pizzas, "id name timestamp reward=price", "till"),
    "suppliers.csv": (suppliers, "id alt - event=choice", "shown"),
    "itineraries.csv": (itineraries, "individual alternative - event=choice", "shown"),
    "commuters.csv": (commuters, "hhid altnum - event=chose", "shown"),
    "scored.csv": (scored, "user movie - event=score", "ratings"),
    "orders.csv": (orders, "user_id product_id - event=-", "till"),
    "plays.csv": (plays, "userid musicbrainz-track-id timestamp event=-", "actions"),
    "reviews.csv": (reviews, "review_profilename beer_beerid review_time reward=review_overall", "ratings"),
    "served.jsonl.gz": (served, "visitor shown_item at event=outcome", "shown"),
    "grocery.csv": (grocery, "household_id product_id transaction_timestamp reward=sales_value", "till"),
    "tafeng.csv": (tafeng, "CUSTOMER_ID PRODUCT_ID TRANSACTION_DT reward=SALES_PRICE", "till"),
    "invoices.xlsx": (invoices, "CustomerID StockCode InvoiceDate reward=UnitPrice", "till"),
    "receipts.csv": (receipts, "receipt_id sku - reward=qty", "till"),
    "films.csv": (films, "userId movieId timestamp event=rating", "ratings"),
    "listened.csv": (listened, "user artist - reward=plays", "used"),
    "clicks.jsonl.gz": (clicks, "visitor sku ts event=action", "actions"),
    "travel.csv": (travel, "case alternative - event=chosen", "shown"),
    "news.parquet": (news, "user_id article_id ts event=clicked", "shown"),
    "atomic.csv": (atomic, "user_id:token item_id:token timestamp:float event=rating:float", "ratings"),
    "ketchup.csv": (ketchup, "id choice - event=-", "actions"),
    "cars.csv": (cars, "session_id car - event=purchase", "shown"),
    "coat.csv": (coat, "user_id item_id - event=rating", "ratings"),
}


def write(folder, name, rows):
    """The rows in the format that the name says; a workbook is made as Excel makes one."""
    path, table = folder / name, pa.table(rows)
    if name.endswith(".parquet"):
        pq.write_table(table, path)
    elif name.endswith(".jsonl.gz"):
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()))
    elif name.endswith(".xlsx"):
        write_workbook(path, [table.column_names, *(list(row.values()) for row in table.to_pylist())])
    else:
        lines = [",".join(table.column_names), *(",".join(map(str, row.values())) for row in table.to_pylist())]
        path.write_text("\n".join(lines) + "\n")
    return path


OPEN = "http://schemas.openxmlformats.org"
KINDS = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"


def links(kind, target):
    """A part that names another."""
    one = f'<Relationship Id="r1" Type="{OPEN}/officeDocument/2006/relationships/{kind}" Target="{target}"/>'
    return f'<Relationships xmlns="{OPEN}/package/2006/relationships">{one}</Relationships>'


def write_workbook(path, rows):
    """The least that is a workbook: one sheet, with numbers and texts in its cells."""

    def cell(value):
        if isinstance(value, int | float):
            return f"<c><v>{value}</v></c>"
        return f'<c t="inlineStr"><is><t>{escape(str(value))}</t></is></c>'

    body = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in rows)
    space = f'xmlns="{OPEN}/spreadsheetml/2006/main"'
    sheet = '<sheet name="log" sheetId="1" r:id="r1"/>'
    r = f'xmlns:r="{OPEN}/officeDocument/2006/relationships"'
    book = f'<Override PartName="/xl/workbook.xml" ContentType="{KINDS}"/>'
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{OPEN}/package/2006/content-types">{book}</Types>',
        "_rels/.rels": links("officeDocument", "xl/workbook.xml"),
        "xl/workbook.xml": f"<workbook {space} {r}><sheets>{sheet}</sheets></workbook>",
        "xl/_rels/workbook.xml.rels": links("worksheet", "worksheets/sheet1.xml"),
        "xl/worksheets/sheet1.xml": f"<worksheet {space}><sheetData>{body}</sheetData></worksheet>",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in parts.items():
            packed.writestr(name, content)


@pytest.mark.parametrize("name", LOGS)
def test_a_log_is_read_as_a_person_would(tmp_path, name):
    if name.endswith(".xlsx"):
        pytest.importorskip("python_calamine")
    made, expected, kind = LOGS[name]
    path, notes = plainly_written(write(tmp_path, name, made(np.random.default_rng(0), 600)), tmp_path / "out")
    found = guess(path)
    roles = {use.role: use.column for use in found.uses if use.role}
    who, what, when, worth = expected.split()
    ours, theirs = worth.split("=")
    assert roles["sequence_id"] == who and roles["item_id"] == what
    assert roles.get("timestamp", "-") == when and roles.get(ours, "-") == theirs
    assert kind in found.meaning[0] and who in found.meaning[1] and what in found.meaning[2]
    data = prepare_log(path, tmp_path / "out", found, seed=0)
    assert data.manifest["counts"]["events"] and sum(split.events for split in data.splits.values()) == 600
    why = {use.column: use.why for use in found.uses}
    if name == "orders.csv":
        assert found.rewards == "purchase=1" and "first time" in why["reordered"], "no answer to what was shown"
        assert len(found.unsure) == 3 and not any("what people did" in each for each in (*why.values(), *found.unsure))
    if name == "served.jsonl.gz":
        assert {"request": "recommendation", "place": "rank", "propensity": "p"}.items() <= roles.items()
    if name in ("plays.csv", "reviews.csv", "served.jsonl.gz"):
        assert any(what in each and "by its name's end" in each for each in found.unsure), "said, with what changes it"
    if name == "grocery.csv":
        assert "an amount before a count (quantity)" in why["sales_value"] and "past" in why["household_id"]
        assert "--columns sequence_id=basket_id" in why["basket_id"]
    if name == "tafeng.csv":
        assert data.manifest["dates"]["first"].startswith("2000-11-01") and any(
            "month first" in n for n in found.unsure
        )
    if name == "invoices.xlsx":
        assert data.manifest["dates"]["last"].startswith("2001-03-05"), "the day first"
    if name == "ketchup.csv":
        assert any("names one of the alternatives" in note for note in found.unsure)
        assert all("one alternative" in why[f"{what}.hunts32"] for what in ("disp", "feat", "price"))
        assert not any("price." in note or "disp." in note for note in found.unsure), "they are no reward and no event"
    if name == "cars.csv":
        assert any("one list" in note for note in notes) and found.columns["request"] == "session_id"
        assert found.full_lists and data.manifest["counts"]["events"] == {"none": 440, "purchase": 160}
    if name == "travel.csv":
        assert any("one list" in note for note in notes) and found.columns["request"] == "case"
        assert data.kind == "impressions" and data.manifest["counts"]["events"]["none"] == 450
    if name in ("suppliers.csv", "itineraries.csv", "commuters.csv"):
        lists = {"suppliers.csv": ("chid", 4), "itineraries.csv": ("individual", 5), "commuters.csv": ("casenum", 6)}
        request, shown = lists[name]
        assert found.columns["request"] == request and data.kind == "impressions"
        assert data.manifest["counts"]["events"]["none"] == 600 - 600 // shown, "one of each list was chosen"
        sorted_rows = [note for note in found.unsure if "sorted by" in note]
        assert sorted_rows == [] and sorted_by(data) is None, "alternatives stand in one order in each list"
    if name == "itineraries.csv":
        assert "differs within a list" in why["time"] and "the order of the file" not in found.meaning[1]
    if name == "pizzas.csv":
        assert data.manifest["dates"]["last"].startswith("2000-11-01T23:13") and "each name has one" in why["type"]
        assert any("date and time are read together" in note for note in notes)
    if name == "coat.csv":
        assert roles["split"] == "split" and len(data["test"]) == 18, "every fifth of 90 people"


def test_sessions_that_end_in_one_purchase_are_no_choices_among_alternatives(tmp_path):
    rng = np.random.default_rng(0)
    kinds = [f"k{kind}" for _ in range(150) for kind in rng.permutation(40)[:4]]
    visits = {"session_id": np.repeat(np.arange(150), 4), "kind": kinds, "purchase": np.tile([0, 0, 0, 1], 150)}
    log = write(tmp_path, "visits.csv", visits)
    assert plainly_written(log, tmp_path / "out") == (log, ())


def test_a_log_of_steps_without_items_says_how_the_steps_become_items(tmp_path):
    steps = {
        "user_id": np.repeat(np.arange(100), 6), "event": ["main", "catalog", "cart"] * 200,
        "timestamp": [str(START + timedelta(minutes=i)) for i in range(600)],
    }  # fmt: skip
    log = write(tmp_path, "steps.csv", steps)
    with pytest.raises(DataError, match=r"not with which item.*event"):
        guess(log)
    assert guess(log, columns={"item_id": "event"}).columns["item_id"] == "event"


def test_prices_of_alternatives_are_no_reward_of_the_row(tmp_path):
    rows = [f"{n % 60},{'abc'[n % 3]},{n % 5}.5,{n % 7}.1,{n % 4}.2" for n in range(300)]
    (tmp_path / "panel.csv").write_text("household,brand,price.a,price.b,price.c\n" + "\n".join(rows) + "\n")
    found = guess(tmp_path / "panel.csv", columns={"sequence_id": "household", "item_id": "brand"})
    assert found.event == "click" and not any(use.role == "reward" for use in found.uses)
    assert any("price.a, price.b, price.c are ignored" in note for note in found.unsure)


def test_an_id_with_one_name_each_is_an_item_and_the_person_is_asked_for(tmp_path):
    rows = [f"{n % 7},film {n % 7},{n % 5}" for n in range(70)]
    (tmp_path / "log.csv").write_text("id,name,rating\n" + "\n".join(rows) + "\n")
    with pytest.raises(DataError, match="no column looks like sequence_id"):
        guess(tmp_path / "log.csv")


def test_several_columns_of_few_values_are_named_in_one_note(tmp_path):
    rows = [f"{n % 30},{n % 7},{'ny'[n % 2]},{'ab'[n % 2]}" for n in range(90)]
    (tmp_path / "log.csv").write_text("user,item,resp,mode\n" + "\n".join(rows) + "\n")
    found = guess(tmp_path / "log.csv")
    (note,) = (each for each in found.unsure if "few values" in each)
    assert note.startswith("resp, mode hold few values")


def test_ambiguous_days_and_months_are_asked_for_and_noted(tmp_path):
    rows = [f"{n % 90},{n % 7},0{1 + n % 9}/0{1 + n % 4}/2001" for n in range(200)]
    (tmp_path / "log.csv").write_text("user,item,date\n" + "\n".join(rows) + "\n")
    with pytest.raises(DataError, match="dayfirst"):
        guess(tmp_path / "log.csv")
    last = {}
    for dates in ("day first", "month first"):
        found = replace(guess(tmp_path / "log.csv", dates=dates), preparing={dates.replace(" ", ""): True})
        last[dates] = prepare_log(tmp_path / "log.csv", tmp_path / dates, found, seed=0).manifest["dates"]["last"][:10]
    assert last == {"day first": "2001-04-09", "month first": "2001-09-04"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["train", "holdout"], "its values are holdout, train"),
        (["train", "test"], "90 user_id are in more than one split"),
    ],
)
def test_an_unusable_split_is_ignored_with_a_note(tmp_path, values, said):
    rows = [f"{n % 90},{n % 7},{1 + n % 5},{values[n // 90 % 2]}" for n in range(360)]
    (tmp_path / "log.csv").write_text("user_id,item_id,rating,split\n" + "\n".join(rows) + "\n")
    found = guess(tmp_path / "log.csv")
    (use,) = (use for use in found.uses if use.column == "split")
    assert use.role == "" and said in use.why and "split" not in found.settings()
    data = prepare_log(tmp_path / "log.csv", tmp_path / "out", found, seed=0)
    assert len(data["train"]) < 90 and sum(split.events for split in data.splits.values()) == 360


@pytest.mark.parametrize("name", ["log.xlsx", "log.jsonl", "log.jsonl.gz", "log.json"])
@pytest.mark.parametrize("harm", ["cut", "flipped", "empty", "other"])
def test_a_broken_file_is_an_error_that_names_it(tmp_path, name, harm):
    """Cut short, altered, empty, or not what its name says."""
    if name.endswith(".xlsx"):
        pytest.importorskip("python_calamine")
    whole = tmp_path / name
    if name.endswith(".xlsx"):
        write_workbook(whole, [["user", "item"], *([n, n % 7] for n in range(400))])
    else:
        lines = "".join(f'{{"user": {n}, "item": {n % 7}}}\n' for n in range(400)).encode()
        whole.write_bytes(gzip.compress(lines) if name.endswith(".gz") else lines)
    content = whole.read_bytes()
    middle = len(content) // 2
    broken = {
        "cut": content[: middle + 3], "flipped": content[:middle] + bytes(64) + content[middle + 64 :], "empty": b"",
        "other": b"user,item\n1,2\n",
    }  # fmt: skip
    whole.write_bytes(broken[harm])
    with pytest.raises(DataError, match=re.escape(name)):
        prepare(whole, out=tmp_path / "data", columns={"sequence_id": "user", "item_id": "item"}, event="click")


def test_a_workbook_without_its_reader_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    write_workbook(tmp_path / "log.xlsx", [["user", "item"], [1, 2]])
    with pytest.raises(ConfigError, match=r"pip install 'localpolicy\[excel\]'"):
        plainly_written(tmp_path / "log.xlsx", tmp_path / "out")
