"""What a log's columns and events mean, guessed from names and values."""

from __future__ import annotations

import numpy as np
import pytest

from localpolicy.data.column_names import columns_meant
from localpolicy.data.guess.event_words import guess_rewards
from localpolicy.data.guess.guess import guess
from localpolicy.data.guess.log_columns import read_titles, title_column
from localpolicy.data.log_schema import ROW
from localpolicy.errors import DataError
from localpolicy.judge.checks.order import sorted_by
from localpolicy.report.go import guess_table
from localpolicy.study.go_plan import prepare_log


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["session", "product", "what", "when"], "session product what when"),
        (["timestamp", "visitorid", "event", "itemid", "transactionid"], "visitorid itemid event timestamp"),
        (["userId", "movieId", "rating", "timestamp"], "userId movieId rating timestamp"),
        (["user_id", "session_id", "item_id", "behavior_type"], "session_id item_id behavior_type -"),
        (["seq_id", "item_id", "event"], "seq_id item_id event -"),
    ],
)
def test_columns_are_recognised_by_their_names(names, expected):
    found = columns_meant(names)
    ours = ("sequence_id", "item_id", "event", "timestamp")
    assert " ".join(found.get(name, "-") for name in ours) == expected


def test_rewards_of_events_follow_from_their_names(tmp_path):
    known, unsure = guess_rewards({"view": 9, "addtocart": 3, "transaction": 1, "none": 5}, tmp_path)
    assert known == "view=0.2,addtocart=0.5,transaction=1,none=0" and unsure == ()
    assert guess_rewards({"view": 9, "view ": 2}, tmp_path)[0] == "view=1", "a name as rewards that are given have it"
    known, unsure = guess_rewards({"view": 9, "zap": 2}, tmp_path)
    assert known == "view=0.2,zap=0.2" and "the reward of zap is a guess (0.2)" in unsure[0]
    known, unsure = guess_rewards({"none": 9, "zap": 2}, tmp_path)
    assert known == "none=0,zap=1" and "the reward of zap is a guess (1)" in unsure[0]
    assert guess_rewards({"1": 3, "5": 9, "3.5": 2}, tmp_path) == (">=4=1,>=3=0.5,*=0", ())
    assert "If they are codes, name them" in guess_rewards({"0": 9, "1": 3, "2": 2}, tmp_path)[1][0]
    with pytest.raises(DataError, match="60 different values: it is not one"):
        guess_rewards({f"x{n}": 1 for n in range(60)}, tmp_path)


def test_what_cannot_be_guessed_is_asked_for(tmp_path):
    (tmp_path / "odd.csv").write_text("a,b,c\n1,2,view\n")
    with pytest.raises(DataError, match='no column looks like sequence_id or item_id .*columns=."sequence_id": "NAME"'):
        guess(tmp_path / "odd.csv")
    found = guess(tmp_path / "odd.csv", columns={"sequence_id": "a", "item_id": "b", "event": "c"})
    assert found.rewards == "view=1", "the only event"
    named = guess(
        tmp_path / "odd.csv", columns={"sequence_id": "a+b", "item_id": "b", "event": "c"}, rename={"view": "buy"}
    )
    assert named.rewards == "buy=1" and named.settings()["rename"] == {"view": "buy"}
    with pytest.raises(DataError, match="has no column 'd'"):
        guess(tmp_path / "odd.csv", columns={"sequence_id": "a", "item_id": "d"})
    (tmp_path / "plain.csv").write_text("user,item\n1,2\n")
    plain = guess(tmp_path / "plain.csv")
    assert plain.event == "click" and "nothing to improve" in plain.unsure[0]
    (tmp_path / "random_all.csv").write_text(
        "timestamp,item_id,position,click,propensity_score\n2019-11-24,1,1,0,0.1\n"
    )
    assert guess(tmp_path / "random_all.csv").source == "openbandit"
    (tmp_path / "random_all.csv").rename(tmp_path / "mine.csv")
    renamed = guess(tmp_path / "mine.csv")
    assert renamed.source == "events" and dict(renamed.columns)["sequence_id"] == ROW
    assert dict(renamed.columns)["propensity"] == "propensity_score" and renamed.rename == {"0": "none", "1": "click"}


def write_rows(path, header: str, rows) -> None:
    path.write_text(header + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))


def roles(found) -> dict[str, str]:
    return {use.column: use.role for use in found.uses}


def watched(seed: int = 0, count: int = 400):
    """Random rows: a person, a film, how much of it was seen, when in milliseconds."""
    rng = np.random.default_rng(seed)
    return [
        (int(rng.integers(90)), int(rng.integers(30)), round(float(rng.uniform(0, 1.5)), 3), 1_700_000_000_000 + n)
        for n in range(count)
    ]


def test_watch_ratios_and_times_in_milliseconds_are_used(tmp_path):
    log = tmp_path / "watch.csv"
    write_rows(log, "user_id,video_id,watch_ratio,time_ms", watched())
    found = guess(log)
    assert roles(found) == {
        "user_id": "sequence_id", "video_id": "item_id", "watch_ratio": "reward", "time_ms": "timestamp"
    }  # fmt: skip
    assert found.event == "interaction" and found.rewards is None, "no made-up reward beside the log's own"
    data = prepare_log(log, tmp_path / "out", found, seed=0)
    assert data.manifest["rewards"] == {}, "each row has its own"
    assert len(np.unique(data["train"].arrays["reward"])) > 50
    assert data.manifest["dates"]["first"].startswith("2023-11-14")
    said = guess(log, columns={"reward": "watch_ratio"})
    assert said.rewards is None and dict(said.columns)["reward"] == "watch_ratio"


def test_a_likely_reward_next_to_events_is_asked_about(tmp_path):
    rows = [(n % 20, n % 7, ("view", "buy")[n % 2], 3.5 + n % 11, 5, f"{n}") for n in range(200)]
    write_rows(tmp_path / "shop.csv", "user,item,event,price,shop,comment", rows)
    found = guess(tmp_path / "shop.csv")
    assert roles(found) == {
        "user": "sequence_id", "item": "item_id", "event": "event", "price": "", "shop": "", "comment": ""
    }  # fmt: skip
    why = {use.column: use.why for use in found.uses}
    assert "--columns reward=price" in why["price"] and "same value everywhere" in why["shop"]
    assert why["comment"].startswith("ignored: ")
    assert any("price could be a reward" in note for note in found.unsure)


def test_shown_with_and_without_an_answer_is_an_impression_log(tmp_path):
    write_rows(tmp_path / "shown.csv", "user,item,clicked", [(n % 97, n % 7, n % 3 == 0) for n in range(400)])
    found = guess(tmp_path / "shown.csv")
    assert found.rename == {"False": "none", "True": "click"} and found.rewards == "none=0,click=1"
    assert prepare_log(tmp_path / "shown.csv", tmp_path / "out", found, seed=0).kind == "impressions"


def test_a_score_is_a_rankers_and_many_numbers_are_no_events(tmp_path):
    rows = [(n % 20, n % 7, n * 37 % 101, n * 17 % 97 / 10) for n in range(300)]
    write_rows(tmp_path / "log.csv", "user,item,score,rating", rows)
    found = guess(tmp_path / "log.csv")
    assert roles(found)["score"] == "" and roles(found)["rating"] == "reward"
    assert "ranker's score" in next(use.why for use in found.uses if use.column == "score")


def test_probabilities_are_propensities_where_they_can_be(tmp_path):
    rows = [(n % 97, n % 7, ("none", "buy")[n % 5 == 0], (1 + n % 4) / 10, n % 3 / 2) for n in range(400)]
    write_rows(tmp_path / "log.csv", "user,item,answer,probability,prob", rows)
    found = guess(tmp_path / "log.csv")
    assert roles(found) | {"user": "", "item": ""} == {
        "user": "", "item": "", "answer": "event", "probability": "propensity", "prob": ""
    }  # fmt: skip
    write_rows(tmp_path / "log.csv", "user,item,answer,probability", [(*row[:3], row[4]) for row in rows])
    found = guess(tmp_path / "log.csv")
    assert roles(found)["probability"] == "" and "no probabilities" in found.uses[-1].why
    wrong = [(*row[:3], 1.7 if number == 7 else row[3]) for number, row in enumerate(rows)]
    write_rows(tmp_path / "log.csv", "user,item,answer,probability", wrong)
    assert roles(guess(tmp_path / "log.csv"))["probability"] == "propensity", "prepare names the row that is wrong"
    (tmp_path / "short.csv").write_text(
        "user,item,clicked,prop,t\n" + "1,2,0,0.25,1700000000\n1,3,1,0.5,1700000060\n" * 5
    )
    short = guess(tmp_path / "short.csv").columns
    assert short["propensity"] == "prop" and short["timestamp"] == "t"


def test_a_missing_time_is_noted_and_rows_sorted_by_item_are_found(tmp_path):
    rows = [row[:3] for row in watched()]
    write_rows(tmp_path / "any.csv", "user_id,video_id,watch_ratio", rows)
    found = guess(tmp_path / "any.csv")
    assert any("order of the file is taken for time." in note for note in found.unsure)
    write_rows(tmp_path / "sorted.csv", "user_id,video_id,watch_ratio", sorted(rows))
    found = guess(tmp_path / "sorted.csv")
    assert any("sorted by video_id" in note and "Do not trust sequence models" in note for note in found.unsure)
    assert sorted_by(prepare_log(tmp_path / "sorted.csv", tmp_path / "sorted", found, seed=0)) == "video_id"
    write_rows(tmp_path / "by_film.csv", "user_id,video_id,watch_ratio", sorted(rows, key=lambda row: -row[1]))
    found = guess(tmp_path / "by_film.csv")
    assert any("sorted by video_id" in note for note in found.unsure), "down too, and for all people at once"
    assert sorted_by(prepare_log(tmp_path / "by_film.csv", tmp_path / "by_film", found, seed=0)) == "video_id"
    write_rows(tmp_path / "rated.csv", "user_id,video_id,watch_ratio", sorted(rows, key=lambda row: (row[0], row[2])))
    found = guess(tmp_path / "rated.csv")
    assert any("sorted by watch_ratio" in note for note in found.unsure)
    assert sorted_by(prepare_log(tmp_path / "rated.csv", tmp_path / "rated", found, seed=0)) == "watch_ratio"


def test_a_visit_that_ends_with_its_purchase_is_in_the_order_of_time(tmp_path):
    """Before: "the rows of a sequence seem sorted by action", since every step of one kind to another is the same."""
    rng = np.random.default_rng(0)
    rows = [(visit, rng.integers(20), what) for visit in range(90) for what in ("view", "view", "buy")]
    write_rows(tmp_path / "log.csv", "visit,item,action", rows)
    found = guess(tmp_path / "log.csv")
    assert not any("seem sorted" in note for note in found.unsure)
    assert sorted_by(prepare_log(tmp_path / "log.csv", tmp_path / "out", found, seed=0)) is None


def test_episodes_one_after_another_are_in_the_order_of_time(tmp_path):
    """Ids that rise within each person, from a start of its own: a series, not a file that was sorted."""
    rows = [(visit, visit * 7 % 60 + step, 1 + (visit + step) % 5) for visit in range(90) for step in range(4)]
    write_rows(tmp_path / "log.csv", "user,item,rating", rows)
    found = guess(tmp_path / "log.csv")
    assert not any("seem sorted" in note for note in found.unsure)
    assert sorted_by(prepare_log(tmp_path / "log.csv", tmp_path / "out", found, seed=0)) is None


def test_a_log_is_cut_into_columns_as_prepare_does(tmp_path):
    """DuckDB's guess of the dialect may take a ragged last line for one wide column."""
    means = {"sequence_id": "visit", "item_id": "sku", "event": "what"}
    rows = "".join(f"{n},{n % 3},{('view', 'buy')[n % 2]}\n" for n in range(50))
    (tmp_path / "log.csv").write_text("visit,sku,what\n" + rows)
    assert guess(tmp_path / "log.csv", columns=means).rewards == "buy=1,view=0.2"
    both = guess(tmp_path / "log.csv", columns={**means, "event": "what+sku"})
    assert "buy+0=1" in both.rewards.split(",") and "view+2=0.2" in both.rewards.split(",")
    (tmp_path / "log.csv").write_text("visit,sku,what\n" + rows + "50,")
    with pytest.raises(DataError, match="line 52 .*Expected Number of Columns: 3"):
        guess(tmp_path / "log.csv", columns=means)
    with pytest.raises(DataError, match="is a folder: expected a CSV"):
        guess(tmp_path)


def test_items_are_called_by_their_titles(tmp_path):
    """From a file of items, or a column of the log; an id is text, whatever type it has."""
    (tmp_path / "movies.csv").write_text('movieId,title,genres\n1,Toy Story,x\n7,"Usual Suspects, The",y\n')
    assert read_titles(tmp_path / "movies.csv") == {"1": "Toy Story", "7": "Usual Suspects, The"}
    (tmp_path / "log.csv").write_text("session,sku,product_name\n1,a,Chair\n1,a,Chair\n2,b,\n")
    assert read_titles(tmp_path / "log.csv") == {"a": "Chair"}
    (tmp_path / "odd.csv").write_text("key,title\n1,Chair\n")
    assert read_titles(tmp_path / "odd.csv", item="key") == {"1": "Chair"}
    with pytest.raises(DataError, match="expected a column of item ids .* its columns are key, title"):
        read_titles(tmp_path / "odd.csv")
    assert title_column(["user", "item", "rating"]) is None


def test_titles_are_found_by_the_ids_that_a_log_has(tmp_path):
    (tmp_path / "titles.csv").write_text("item_id,title\n14.0,a film\n007,a spy\n1.5,half\n")
    titles = read_titles(tmp_path / "titles.csv")
    assert (titles["14"], titles["14.0"], titles["007"], titles["1.5"]) == ("a film", "a film", "a spy", "half")
    assert "7" not in titles and "1" not in titles


@pytest.mark.parametrize(
    ("header", "shown", "clicked"),
    [
        ("user,item,click,ts", "0", "1"),
        ("user,item,event,ts", "none", "click"),
        ("user,item,event,ts", "shown", "clic"),
    ],
)
def test_the_only_paid_event_has_reward_1_in_any_notation(header, shown, clicked, tmp_path):
    rows = [f"{n % 100},{n % 7},{clicked if n % 3 == 0 else shown},{1_700_000_000 + n}" for n in range(300)]
    (tmp_path / "log.csv").write_text("\n".join([header, *rows]) + "\n")
    found = guess(tmp_path / "log.csv")
    data = prepare_log(tmp_path / "log.csv", tmp_path / "out", found, seed=0)
    assert sorted(data.manifest["rewards"].values()) == [0.0, 1.0] and data.manifest["rewards"]["none"] == 0.0
    assert data.kind == "impressions" and data.manifest["counts"]["events"]["none"] == 200
    assert all(theirs != ours for theirs, ours in found.rename.items()), "what keeps its name is not renamed"
    assert ("Renamed" in guess_table(found, tmp_path / "log.csv", None).note) == (shown != "none")


def timed(path, header, times, *, order):
    """Visits of five rows each, in order or shuffled; the time is the third column."""
    rows = [f"{n // 5},{n % 7},{time},{n % 3}" for n, time in enumerate(times)]
    path.write_text("\n".join([header, *(rows[n] for n in order)]) + "\n")
    return guess(path)


@pytest.mark.parametrize("name", ["Zeit (s)", "Uhrzeit", "fecha_hora", "Heure", "Bestellzeit", "data ora", "wann_x"])
def test_epoch_seconds_are_the_time_whatever_they_are_called(name, tmp_path):
    found = timed(tmp_path / "log.csv", f"user,item,{name},what", range(1_700_000_000, 1_700_000_300), order=range(300))
    assert found.columns["timestamp"] == name
    assert not any("no time column" in note for note in found.unsure)
    assert any("taken for the time" in note for note in found.unsure) == (name == "wann_x"), "its name says nothing"


def test_numbers_that_may_be_times_are_asked_about_with_the_option_to_paste(tmp_path):
    mixed = np.random.default_rng(0).permutation(300)
    found = timed(tmp_path / "log.csv", "user,item,wann (x),what", range(1_700_000_000, 1_700_000_300), order=mixed)
    assert "timestamp" not in found.columns
    option = "--columns 'timestamp=wann (x)'"
    assert any(f"wann (x) may hold times: say so, such as {option}" in note for note in found.unsure)
    assert option in {use.column: use.why for use in found.uses}["wann (x)"]
    assert any("no time column" in note and "--columns timestamp=NAME" in note for note in found.unsure)
    given = guess(tmp_path / "log.csv", columns={"timestamp": "wann (x)"})
    assert given.columns["timestamp"] == "wann (x)"
    ids = timed(tmp_path / "ids.csv", "user,item,order_id,what", range(1_700_000_000, 1_700_000_300), order=range(300))
    assert "timestamp" not in ids.columns and not any("may hold times" in note for note in ids.unsure)
    backwards = timed(
        tmp_path / "back.csv", "user,item,wann,what", range(1_700_000_000, 1_700_000_300), order=range(299, -1, -1)
    )
    assert backwards.columns["timestamp"] == "wann", "the newest row first"
