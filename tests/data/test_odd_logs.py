"""Logs in unexpected shapes: every column is used, asked about or noted as ignored; nothing is misread."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import localpolicy as lp
from localpolicy.cli.go import go as go_verb
from localpolicy.cli.options import complete
from localpolicy.data.guess.guess import guess
from localpolicy.data.guess.log_columns import column_names
from localpolicy.data.guess.plain_copy import plainly_written
from localpolicy.data.log_schema import ROW
from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, DataError, as_keywords
from localpolicy.judge.checks.order import order_check, tied_share
from localpolicy.report.go import guess_table
from localpolicy.study.go import _written as written_frame
from localpolicy.study.go_plan import prepare_log


def written(path, header: str, rows, mark: str = ","):
    path.write_text(header + "\n" + "".join(mark.join(map(str, row)) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("header", "events", "rewards"),
    [
        ("Kunde,Artikel,Ereignis,Zeitpunkt", ("Ansicht", "Einkaufswagen", "Kauf"), (0.2, 0.5, 1.0)),
        ("utilisateur,produit,événement,horodatage", ("vue", "panier", "achat"), (0.2, 0.5, 1.0)),
        ("gebruiker,artikel,gebeurtenis,tijdstip", ("bekeken", "winkelwagen", "aankoop"), (0.2, 0.5, 1.0)),
        ("사용자,상품,이벤트,시간", ("조회", "장바구니", "구매"), (0.2, 0.5, 1.0)),
        ("usuario,produto,evento,data", ("clique", "carrinho", "compra"), (0.2, 0.5, 1.0)),
        (
            "user_pseudo_id,item_id,event_name,event_timestamp",
            ("view_item", "add_to_cart", "purchase"),
            (0.2, 0.5, 1.0),
        ),
        ("ユーザー,商品,行動,時刻", ("閲覧", "カート", "購入"), (0.2, 0.5, 1.0)),
        ("пользователь,товар,событие,время", ("просмотр", "корзина", "покупка"), (0.2, 0.5, 1.0)),
    ],
)
def test_column_names_of_other_languages_are_recognised(tmp_path, header, events, rewards):
    log = written(tmp_path / "log.csv", header, [(n % 9, n % 5, events[n % 3], 1_700_000_000 + n) for n in range(90)])
    found = guess(log)
    assert set(found.columns) >= {"sequence_id", "event", "timestamp"} and not found.unsure
    assert [use.role for use in found.uses] == ["sequence_id", "item_id", "event", "timestamp"]
    assert found.rewards is not None
    assert {part.split("=")[0]: float(part.split("=")[1]) for part in found.rewards.split(",")} == dict(
        zip(events, rewards, strict=True)
    )


def test_click_and_buy_of_each_row_are_one_event(tmp_path):
    """The best paid event counts. Before, is_buy was ignored: nothing here needs it."""
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
    assert any("all are taken for equal, so nothing can be decided" in note for note in guess(log).unsure)


@pytest.mark.parametrize(
    ("times", "said", "ms"),
    [
        (("31.12.2024", "01.02.2025"), "day first", 1_735_603_200_000),
        (("12/31/2024 23:59", "01/02/2025 7:05"), "month first", 1_735_689_540_000),
        (("05.06.2024 10:00:01", "06.07.2024 10:00:00"), "day first", 1_717_581_601_000),
    ],
)
def test_times_are_read_as_people_write_them(tmp_path, times, said, ms):
    """`go` and `prepare` read them by one rule; before, `prepare` refused what `go` read."""
    rows = [(n, n % 5, "view", times[n > 0]) for n in range(90)]
    log = written(tmp_path / "log.csv", "sequence_id,item_id,event,when", rows)
    found = guess(log)
    assert any(said in note for note in found.unsure) and dict(found.columns)["timestamp"] == "when"
    alone = lp.prepare(log, out=tmp_path / "alone", columns={"timestamp": "when"}, rewards={"view": 1})
    for data in (alone, prepare_log(log, tmp_path / "out", found, seed=0)):
        assert min(int(part.arrays["time"].min()) for part in data.splits.values()) == ms
    unknown = written(tmp_path / "unknown.csv", "user_id,item_id,when", [(1, 2, "05/06/2024")])
    for read in (guess, lambda log: lp.prepare(log, out=tmp_path / "no", event="view", rewards={"view": 1},
                                               columns={"sequence_id": "user_id", "timestamp": "when"})):  # fmt: skip
        with pytest.raises(DataError, match="05/06/2024 begin with the day or with the month.*Say dayfirst=True"):
            read(unknown)


def test_timestamps_with_a_zone_are_read_as_they_are(tmp_path):
    times = pa.array([1_700_000_000_000 + n for n in range(60)]).cast(pa.timestamp("ms", "Europe/Berlin"))
    pq.write_table(pa.table({"user": range(60), "item": range(60), "when": times}), tmp_path / "log.parquet")
    found = guess(tmp_path / "log.parquet")
    assert dict(found.columns)["timestamp"] == "when" and not any("first" in note for note in found.unsure)


def test_decimal_commas_are_converted(tmp_path):
    log = written(tmp_path / "log.csv", "user_id;item_id;rating", [(1, 2, "4,5"), (1, 3, "3")], ";")
    copy, notes = plainly_written(log, tmp_path / "out")
    assert pq.read_table(copy)["rating"].to_pylist() == ["4.5", "3"] and "decimal commas" in notes[0]
    assert guess(copy).rewards == ">=3.6=1,>=2.7=0.5,*=0"


LISTS = [(f"q{n // 5}", f"u{n // 10}", n * 7 % 11, n % 5, 0.1 + n % 5 / 10, ("shown", "click")[n % 4 == 0], n // 5)
         for n in range(400)]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "propensity", "place", "together"),
    [
        ("request,user,item,slot,pscore,action,ts", "pscore", "slot", "request"),
        ("impression_id,user,item,pos,p,action,ts", "p", "pos", "impression_id"),
        ("slate_id,user,item,rank_shown,logging_prob,action,ts", "logging_prob", "rank_shown", "slate_id"),
    ],
)
def test_lists_and_propensities_under_other_names(tmp_path, names, propensity, place, together):
    """Before, places and requests under these names were ignored, and 'shown' was something that people did."""
    log = written(tmp_path / "log.csv", names, LISTS)
    found = guess(log)
    used = {use.column: use.role for use in found.uses}
    assert (used[propensity], used[place], used[together]) == ("propensity", "place", "request")
    assert found.rename == {"shown": "none"} and any("shown is read as 'none'" in note for note in found.unsure)
    assert any("do not stand above it" in note for note in found.unsure)
    data = prepare_log(log, tmp_path / "out", found, seed=0)
    assert data.kind == "impressions" and set(data.manifest["counts"]["events"]) == {"click", "none"}
    assert int(data["train"].arrays["above"].max()) == 4, "lists of five"
    assert np.isfinite(data["train"].arrays["propensity"]).all()


def test_rows_of_one_moment_are_a_list_else_places_are_ignored_with_a_note(tmp_path):
    rows = [(who, item, place, p, event, 1_700_000_000 + n) for _, who, item, place, p, event, n in LISTS]
    found = guess(written(tmp_path / "log.csv", "user,item,pos,prob,action,ts", rows))
    assert dict(found.columns)["request"] == "user+ts" and any("read as one list" in note for note in found.unsure)
    rows = [(*row[:5], 1_700_000_000 + n) for n, row in enumerate(rows)]
    found = guess(written(tmp_path / "log.csv", "user,item,pos,prob,action,ts", rows))
    assert "request" not in found.columns and any("pos is ignored" in note for note in found.unsure)
    rows = [(*row[:2], n, *row[3:]) for n, row in enumerate(LISTS)]
    found = guess(written(tmp_path / "log.csv", "user_id,item_id,rank,score,event", [row[1:6] for row in rows]))
    assert {use.column: use.role for use in found.uses}["rank"] == "", "no list, and no propensity"


@pytest.mark.parametrize("word", ["shown", "impression", "view_impression", "no_click", "показ"])
def test_a_word_for_shown_is_no_action(tmp_path, word):
    rows = [(n % 50, n * 7 % 11, (word, "buy")[n % 5 == 0], 1_700_000_000 + n) for n in range(300)]
    log = written(tmp_path / "log.csv", "user,item,event,ts", rows)
    found = guess(log)
    assert found.rename == {word: "none"} and found.kind is None
    assert prepare_log(log, tmp_path / "out", found, seed=0).kind == "impressions"
    said = guess(log, rewards=f"{word}=0.1,buy=1")
    assert said.rename == {} and said.rewards == f"{word}=0.1,buy=1", "what you say is worth something is an action"


def test_rows_of_showing_before_rows_of_answers_are_left_out(tmp_path):
    """An answer there is a second row of what was shown, not a second showing."""
    rows = []
    for n in range(300):
        rows.append((n % 100, n, "impression", 1_700_000_000 + 2 * n))
        rows += [(n % 100, n, "click", 1_700_000_001 + 2 * n)] if n % 3 == 0 else []
    log = written(tmp_path / "log.csv", "user,item,event,ts", rows)
    found = guess(log)
    assert found.kind == "interactions" and any("one row for each shown item" in note for note in found.unsure)
    data = prepare_log(log, tmp_path / "out", found, seed=0)
    assert data.kind == "interactions" and set(data.manifest["counts"]["events"]) == {"click"}


def test_ids_without_a_known_name_are_guessed_or_refused(tmp_path):
    rows = [(n % 9, n % 5, 1 + n % 10, 1_700_000_000 + n) for n in range(90)]
    found = guess(written(tmp_path / "log.csv", "user,gizmo_id,rating,ts", rows))
    assert dict(found.columns)["item_id"] == "gizmo_id" and any("only id left" in note for note in found.unsure)
    with pytest.raises(DataError, match="no column looks like item_id"):
        guess(written(tmp_path / "log.csv", "user,gizmo_id,other_id,ts", rows))
    rows = [(n % 5, n % 3 == 0, 0.2, 1_700_000_000 + n) for n in range(90)]
    found = guess(written(tmp_path / "log.csv", "ad,clicked,propensity,ts", rows))
    assert dict(found.columns)["sequence_id"] == ROW and any("decision of its own" in note for note in found.unsure)
    found = guess(written(tmp_path / "log.csv", "request,item,slot,p,event", [(*row[:1], *row[2:6]) for row in LISTS]))
    assert dict(found.columns)["sequence_id"] == "request" and dict(found.columns)["place"] == "slot"


def test_rewards_that_are_given_make_a_column_of_rewards_idle(tmp_path):
    """Before, a bad value in a column that nobody reads stopped the reading."""
    rows = [(n % 50, n * 7 % 11, ("view", "buy")[n % 2], "n/a" if n == 7 else n) for n in range(300)]
    log = written(tmp_path / "log.csv", "user,item,event,reward", rows)
    found = guess(log, rewards="view=0.2,buy=1")
    assert {use.column: use.role for use in found.uses}["reward"] == ""
    data = prepare_log(log, tmp_path / "out", found, seed=0)
    assert data.manifest["rewards"] == {"buy": 1.0, "view": 0.2}
    with pytest.raises(DataError, match="reward is not a number"):
        prepare_log(log, tmp_path / "stated", guess(log), seed=0)


def test_yes_and_no_and_scores_that_people_gave(tmp_path):
    rows = [(n % 50, n * 7 % 11, ("No", "Yes")[n % 3 == 0], 1_700_000_000 + n) for n in range(300)]
    found = guess(written(tmp_path / "log.csv", "listener,song,liked,ts", rows))
    assert found.rename == {"No": "none", "Yes": "liked"} and found.rewards == "none=0,liked=1"
    rows = [(n % 50, n * 7 % 11, 1 + n % 10, 1_700_000_000 + n) for n in range(300)]
    found = guess(written(tmp_path / "log.csv", "Kundennummer;Artikelnummer;Score;ts", rows, ";"))
    assert found.rewards == ">=8=1,>=6=0.5,*=0" and dict(found.columns)["event"] == "Score"


def test_what_cannot_be_read_says_what_to_do(tmp_path):
    rows = [(n % 9, n % 5, "2024-01-31", "10:00:01") for n in range(90)]
    with pytest.raises(DataError, match="time holds the time of day alone. Join date and time"):
        guess(written(tmp_path / "log.csv", "user,item,date,time", rows))
    (tmp_path / "log.jsonl").write_text('{"user": 1, "item": 2}\n')
    (tmp_path / "log.txt").write_text('{"user": 1, "item": 2}\n')
    with pytest.raises(DataError, match=r"is JSON.*ends in .jsonl"):
        lp.prepare(tmp_path / "log.txt", out=tmp_path / "data")
    rows = [(1, n % 5, ("view", "buy")[n % 2], 1_700_000_000 + n) for n in range(90)]
    with pytest.raises(DataError, match=r"1 sequences \(each user is one\): too few"):
        lp.go(written(tmp_path / "one.csv", "user,item,event,ts", rows), out=tmp_path / "go", shown=lambda table: None)


def test_an_empty_event_is_asked_about(tmp_path):
    rows = [(n % 9, n % 5, ("", "buy")[n % 2], n) for n in range(90)]
    with pytest.raises(DataError, match=r"event, is empty in 45 of 90 rows.*write 'none' there"):
        guess(written(tmp_path / "log.csv", "user,item,event,ts", rows))


def test_a_plain_log_stays_as_it_is(tmp_path):
    log = written(
        tmp_path / "log.csv", "user_id,item_id,ts,note", [(1, 2, "2024-12-31 10:00:00", "3-4"), (1, 3, "", "a")]
    )
    assert plainly_written(log, tmp_path / "out") == (log, ())
    assert not (tmp_path / "out").exists()


def test_a_missing_header_and_many_columns_give_short_messages(tmp_path):
    with pytest.raises(DataError, match="has the file no header"):
        guess(written(tmp_path / "bare.csv", "1,2,5,1700000000", [(1, 3, 4, 1_700_000_001)]))
    (tmp_path / "spaces.txt").write_text(" 00004 19970101  2   29.33\n 00004 19970118  2   29.73\n")
    with pytest.raises(DataError, match="do spaces part its fields"):
        guess(tmp_path / "spaces.txt")
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


def test_bad_rows_are_skipped_where_asked(tmp_path):
    """The error named an option that `go` did not have."""
    rows = [(n % 50, n * 7 % 11, ("view", "buy")[n % 2], "soon" if n == 7 else 1_700_000_000 + n) for n in range(300)]
    log = written(tmp_path / "log.csv", "user,item,event,ts", [*rows, (1, 2)])
    with pytest.raises(DataError, match="skip such lines with skip_bad_rows=True"):
        lp.go(log, out=tmp_path / "no", shown=lambda table: None)
    found = guess(log, skip_bad_rows=True)
    data = prepare_log(log, tmp_path / "out", found, seed=0)
    assert sum(data.manifest["bad_rows"].values()) == 2 and sum(data.manifest["counts"]["events"].values()) == 299


def test_a_guess_that_asks_leaves_the_folder_to_the_answer(tmp_path, monkeypatch):
    log = written(tmp_path / "log.csv", "who;what;worth", [("a", "x", "1,5"), ("b", "y", "2,5")], ";")

    def asks(*given, **options):
        raise DataError("say which it is")

    monkeypatch.setattr("localpolicy.study.go.guess", asks)
    for _ in range(2):  # the second time the copy of the log exists
        with pytest.raises(DataError, match="say which it is"):
            lp.go(log, out=tmp_path / "go")
    assert list((tmp_path / "go").iterdir())


def test_go_has_every_option_that_its_messages_name(tmp_path):
    """Before: "--duplicates exact drops them", and `lpi go` had no such option."""
    sources = Path(lp.__file__).parent / "data"
    named = {flag for path in sources.rglob("*.py") for flag in re.findall(r"--([a-z][a-z-]+)", path.read_text())}
    never = {"append", "prepared", "no-keep-log", "engine", "item-columns", "event"}  # go has nothing of these
    have = {name.replace("_", "-") for name in inspect.signature(complete(go_verb)).parameters}
    assert named - never <= have | {"set"}
    rows = [(n // 4, n % 7, ("view", "buy")[n % 3 == 0], 1_700_000_000 + n) for n in range(240) for _ in range(2)]
    log = written(tmp_path / "log.csv", "user,item,event,ts", rows)
    found = replace(guess(log), preparing={"duplicates": "exact"})
    assert prepare_log(log, tmp_path / "out", found, seed=0).manifest["counts"]["events"] == {"buy": 80, "view": 160}
    with pytest.raises(ConfigError, match="duplicate: no such key .*did you mean 'duplicates'"):
        lp.go(log, out=tmp_path / "none", duplicate="exact")
    with pytest.raises(ConfigError, match="duplicates"):
        lp.go(log, out=tmp_path / "none", duplicates="all")
    assert as_keywords("cut by --session-gap 30m.") == 'cut by session_gap="30m".'


def test_a_column_of_times_is_one_whatever_its_name(tmp_path):
    """Before: "nothing here needs it", and the order of the file stood for time."""
    rows = [(n % 9, n % 5, ("view", "buy")[n % 2], f"2024-01-{1 + n % 28:02d} 10:00:{n % 60:02d}") for n in range(90)]
    log = written(tmp_path / "log.csv", "user,item,event,stempel", rows)
    assert {use.column: use.role for use in guess(log).uses}["stempel"] == "timestamp"
    twice = written(tmp_path / "twice.csv", "user,item,event,stempel,geboren", [(*row, row[3]) for row in rows])
    found = guess(twice)
    assert "timestamp" not in found.columns
    assert any("stempel and geboren hold times: say which" in note for note in found.unsure)


def test_empty_rewards_are_asked_about(tmp_path):
    """Before: 1,400 bad rows, to be skipped; of a revenue they are what earned nothing."""
    rows = [(n % 30, n % 5, "" if n % 3 else 9.5 + n % 7, 1_700_000_000 + n) for n in range(90)]
    log = written(tmp_path / "log.csv", "user,item,revenue,ts", rows)
    with pytest.raises(
        DataError, match="revenue, the reward, is empty in 60 of 90 rows. Where a row earned nothing, write 0"
    ):
        guess(log)
    assert guess(log, skip_bad_rows=True).columns["reward"] == "revenue"


def test_signs_of_money_are_read_as_numbers(tmp_path):
    """Before: "nothing here needs it", and then "nothing to decide"."""
    rows = [(n % 30, n % 5, f"${n % 7}.50", f"{n % 9} %", 1_700_000_000 + n) for n in range(90)]
    log = written(tmp_path / "log.csv", "user,item,revenue,progress,ts", rows)
    copy, notes = plainly_written(log, tmp_path / "out")
    assert [note.split()[0] for note in notes] == ["revenue", "progress"]
    assert pq.read_table(copy)["revenue"].to_pylist()[:2] == ["0.50", "1.50"]
    assert pq.read_table(copy)["progress"].to_pylist()[:2] == ["0", "1"]
    assert guess(copy).columns["reward"] == "revenue"
    mixed = written(tmp_path / "mixed.csv", "user,item,tag", [(1, 2, "$5"), (1, 3, "five")])
    assert plainly_written(mixed, tmp_path / "out") == (mixed, ())


def test_an_answer_is_called_what_its_column_says(tmp_path):
    """Before: purchases were clicks, in every table of the page."""
    for name, called in (("purchased", "purchased"), ("is_clicked", "click"), ("label", "click")):
        log = written(tmp_path / f"{name}.csv", f"user,item,{name}", [(n % 30, n % 5, n % 2) for n in range(90)])
        found = guess(log)
        assert found.rewards == f"none=0,{called}=1" and found.rename == {"0": "none", "1": called}


def test_the_row_numbers_of_a_filtered_frame_are_no_column(tmp_path):
    """Times as an index are the rows' times, with a name or without."""
    frame = pandas.DataFrame({"user": [1, 2, 3], "item": [4, 5, 6]}, index=[0, 7, 9])
    assert column_names(written_frame(frame, tmp_path, "log")) == ("user", "item")
    frame.index = pandas.to_datetime(["2024-01-01", "2024-01-02", "2024-01-03"])
    assert column_names(written_frame(frame, tmp_path, "log")) == ("timestamp", "user", "item")


def test_numbers_that_are_no_times_are_refused(tmp_path):
    """A step from 1 on, or times that overflowed: the order holds, and 1970 is no date of the log."""
    rows = [(n % 9, n % 5, ("view", "buy")[n % 2], n) for n in range(90)]
    found = guess(written(tmp_path / "log.csv", "user,item,event,time", rows))
    assert any("numbers of time are no times between 1979 and 2103" in note for note in found.unsure)


def test_days_alone_are_no_order_of_time(tmp_path):
    """Of one day's rows the purchases come last: where most rows are ties, a model of sequences learns that order."""
    rows = [(n // 8, n * 7 % 23, ("view", "buy")[n % 2], f"2024-01-{1 + n % 8 // 4:02d}") for n in range(480)]
    found = guess(written(tmp_path / "log.csv", "user,item,event,date", rows))
    assert any("holds days without the time of day" in note for note in found.unsure)
    data = prepare_log(tmp_path / "log.csv", tmp_path / "out", found, seed=0)
    assert tied_share(data) == pytest.approx(6 / 7), "of seven steps, one is to another day"
    check = order_check(data)
    assert check is not None and check.outcome == "cannot tell" and check.because.startswith("86% of the rows")
    timed = written(tmp_path / "timed.csv", "user,item,event,date", [(*row[:3], f"{row[3]}T10:00:{n % 8:02d}")
                                                                     for n, row in enumerate(rows)])  # fmt: skip
    assert not guess(timed).unsure
    assert order_check(prepare_log(timed, tmp_path / "timed", guess(timed), seed=0)) is None
    # Ratings have one kind of action: within a day they lie in an order that nobody can learn, and may be judged.
    rated = written(tmp_path / "rated.csv", "user,item,rating,date", [(*row[:2], 1 + n % 5, row[3])
                                                                      for n, row in enumerate(rows)])  # fmt: skip
    data = prepare_log(rated, tmp_path / "rated", guess(rated), seed=0)
    assert tied_share(data) > 0.8 and order_check(data) is None


def test_what_a_request_brought_has_the_time_of_its_list(tmp_path):
    """A service's log, two requests of each of sixty people: neither context nor places are ties."""
    shown = ((1, "context", -1, ""), (2, "click", 0, 0.5), (3, "none", 1, 0.5))
    rows = [(n // 2, 1_700_000_000 + n, f"r{n}", *row) for n in range(120) for row in shown]
    path = written(tmp_path / "log.csv", "sequence_id,timestamp,request,item_id,event,place,propensity", rows)
    data = lp.prepare(path, out=tmp_path / "out", rewards="click=1,none=0", keep_log=False)
    assert "above" in data["train"].arrays and "context" in data.events
    assert tied_share(data) == 0 and order_check(data) is None


def test_what_is_no_log_of_rows_is_refused(tmp_path):
    """Before: an impression's id was the item, of which every row had its own; no rows were a crash."""
    shown = written(tmp_path / "mind.csv", "impression_id,user_id,time,impressions",
                    [(n, n % 30, 1_700_000_000 + n, "N10-1 N11-0") for n in range(90)])  # fmt: skip
    with pytest.raises(DataError, match="no column looks like item_id"):
        guess(shown)
    pq.write_table(pa.table({"user": [1, 2], "shown": [[1, 2], [3]], "time": [1, 2]}), tmp_path / "lists.parquet")
    with pytest.raises(DataError, match="Is it in shown, which holds lists. Write one row for each item"):
        guess(tmp_path / "lists.parquet")
    with pytest.raises(DataError, match="holds no rows"):
        guess(written(tmp_path / "empty.csv", "user,item,event", []))


def test_a_case_that_is_the_sequence_is_not_called_ignored(tmp_path):
    """Before: in a log of chosen rows alone, the column of cases was the sequence, and also "ignored"."""
    rows = [(n, ("car", "train", "air")[n % 3], n % 7) for n in range(300)]
    found = guess(written(tmp_path / "chosen.csv", "case,alt,cost", rows))
    assert found.columns["sequence_id"] == "case"
    assert "ignored" not in {use.column: use.why for use in found.uses}["case"]
