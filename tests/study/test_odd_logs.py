"""Logs in shapes that nobody built for: every column is used, asked about or said to be ignored; nothing is misread."""

from __future__ import annotations

import json

import pytest

import localpolicy as lp
from localpolicy.data.store import Prepared
from localpolicy.errors import DataError
from localpolicy.report.go import guess_table
from localpolicy.study.go import prepare_log
from localpolicy.study.guess import guess
from localpolicy.study.odd import plainly_written


def written(path, header: str, rows, mark: str = ","):
    path.write_text(header + "\n" + "".join(mark.join(map(str, row)) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("header", "events", "rewards"),
    [
        ("Kunde,Artikel,Ereignis,Zeitpunkt", ("Ansicht", "Einkaufswagen", "Kauf"), (0.2, 0.5, 1.0)),
        ("utilisateur,produit,événement,horodatage", ("vue", "panier", "achat"), (0.2, 0.5, 1.0)),
        ("ユーザー,商品,行動,時刻", ("閲覧", "カート", "購入"), (0.2, 0.5, 1.0)),
        ("пользователь,товар,событие,время", ("просмотр", "корзина", "покупка"), (0.2, 0.5, 1.0)),
    ],
)
def test_other_languages(tmp_path, header, events, rewards):
    log = written(tmp_path / "log.csv", header, [(n % 9, n % 5, events[n % 3], 1_700_000_000 + n) for n in range(90)])
    found = guess(log)
    assert set(found.columns) == {"sequence_id", "item_id", "event", "timestamp"} and not found.unsure
    assert found.rewards is not None
    assert {part.split("=")[0]: float(part.split("=")[1]) for part in found.rewards.split(",")} == dict(
        zip(events, rewards, strict=True)
    )


def test_click_and_buy_of_each_row_are_one_event(tmp_path):
    """The dearest counts. Before, is_buy was ignored: nothing here needs it."""
    rows = [(n % 50, n % 5, int(n % 3 > 0), int(n % 3 > 1), 1_700_000_000 + n) for n in range(300)]
    log = written(tmp_path / "log.csv", "user_id,item_id,is_click,is_buy,ts", rows)
    found = guess(log)
    assert {use.column: use.role for use in found.uses}["is_buy"] == "event"
    assert found.rewards == "none=0,click=0.2,buy=1"
    data = prepare_log(log, tmp_path / "out", found, seed=0)
    assert data.kind == "impressions" and data.manifest["counts"]["events"] == {"buy": 100, "click": 100, "none": 100}


def test_words_that_may_be_events_are_asked_about(tmp_path):
    log = written(tmp_path / "log.csv", "user_id,item_id,thumb,ts",
                  [(n % 9, n % 5, ("up", "down")[n % 2], 1_700_000_000 + n) for n in range(90)])  # fmt: skip
    found = guess(log)
    assert any("thumb holds" in note and "event=thumb" in note for note in found.unsure)
    log = written(tmp_path / "stars.csv", "user_id,item_id,stars,ts",
                  [(n % 9, n % 5, "★" * (1 + n % 3), 1_700_000_000 + n) for n in range(90)])  # fmt: skip
    assert any("all are taken for the same, so nothing can be decided" in note for note in guess(log).unsure)


@pytest.mark.parametrize(
    ("times", "said", "first"),
    [
        (("31.12.2024", "01.02.2025"), "day first", "2024-12-31 00:00:00"),
        (("12/31/2024 23:59", "01/02/2025 7:05"), "month first", "2024-12-31 23:59:00"),
        (("05.06.2024 10:00:01", "06.05.2024 10:00:00"), "day first", "2024-06-05 10:00:01"),
    ],
)
def test_times_as_people_write_them(tmp_path, times, said, first):
    log = written(
        tmp_path / "log.csv", "user_id;item_id;rating;when", [(1, 2, "4,5", times[0]), (1, 3, "3", times[1])], ";"
    )
    copy, notes = plainly_written(log, tmp_path / "out")
    assert any(said in note for note in notes) and any("decimal commas" in note for note in notes)
    with pytest.raises(DataError, match="is 05/06/2024 the day or the month first"):
        plainly_written(written(tmp_path / "unknown.csv", "user_id,item_id,when", [(1, 2, "05/06/2024")]), tmp_path)
    import pyarrow.parquet as pq

    table = pq.read_table(copy)
    assert table["when"][0].as_py() == first and table["rating"].to_pylist() == ["4.5", "3"]
    assert guess(copy).rewards == ">=3.6=1,>=2.7=0.5,*=0"


def test_a_plain_log_stays_as_it_is(tmp_path):
    log = written(
        tmp_path / "log.csv", "user_id,item_id,ts,note", [(1, 2, "2024-12-31 10:00:00", "3-4"), (1, 3, "", "a")]
    )
    assert plainly_written(log, tmp_path / "out") == (log, ())
    assert not (tmp_path / "out").exists()


def test_a_file_without_a_header_and_many_columns_are_told_shortly(tmp_path):
    with pytest.raises(DataError, match="has the file no header"):
        guess(written(tmp_path / "bare.csv", "1,2,5,1700000000", [(1, 3, 4, 1_700_000_001)]))
    names = ["user_id", "item_id", "event", "ts", *(f"f{n}" for n in range(56))]
    rows = [[n % 9, n % 5, ("view", "buy")[n % 2], 1_700_000_000 + n, *([n * 0.5] * 56)] for n in range(60)]
    found = guess(written(tmp_path / "wide.csv", ",".join(names), rows))
    shown = str(guess_table(found, tmp_path / "wide.csv", None))
    assert "f0 to f55 (56 columns)" in shown and "f17" not in shown


def test_dates_and_commas_through_go(tmp_path):
    """From a semicolon file with German dates to an answer; the copy and the commands say how it was read."""
    rows = [
        (
            f"k{n % 60}",
            f"a{n * 7 % 11}",
            f"{1 + n % 9 / 2:.1f}".replace(".", ","),
            f"{1 + n % 28:02}.{1 + n % 12:02}.2024",
        )
        for n in range(900)
    ]
    log = written(tmp_path / "log.csv", "Kunde;Artikel;rating;Datum", rows, ";")
    small = ("train.epochs=1", "model.width=8", "train.batch_size=64")
    done = lp.go(log, out=tmp_path / "go", settings=small, device="cpu", shown=lambda table: None)
    assert done.answer in ("do not deploy", "cannot tell") and isinstance(done.data, Prepared)
    read = json.loads((tmp_path / "go" / "verdict.json").read_text())["read"]
    assert any("day first" in note for note in read) and any("decimal commas" in note for note in read)
    assert "plainly written.parquet" in (tmp_path / "go" / "commands.sh").read_text()


def test_a_guess_that_asks_leaves_the_folder_to_the_answer(tmp_path, monkeypatch):
    log = written(tmp_path / "log.csv", "who,what,when", [("a", "x", "31.12.2024"), ("b", "y", "30.12.2024")])

    def asks(*given, **options):
        raise DataError("say which it is")

    monkeypatch.setattr("localpolicy.report.go.guess", asks)
    for _ in range(2):  # the second time the copy of the log lies there
        with pytest.raises(DataError, match="say which it is"):
            lp.go(log, out=tmp_path / "go")
    assert list((tmp_path / "go").iterdir())
