"""From a log to a verdict in one command: what is guessed, what is planned, what is left behind."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from html import unescape
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import yaml
from commands import invoked as lpi

import localpolicy as lp
from localpolicy.data.names import columns_meant
from localpolicy.data.reading import ROW
from localpolicy.data.store import Prepared
from localpolicy.errors import DataError, RunError
from localpolicy.judge.gate import Check, Gate, GateRules
from localpolicy.measure.row_order import sorted_by
from localpolicy.runs.run import Run
from localpolicy.study.event_words import guess_rewards
from localpolicy.study.go_plan import Plan, make_plan, plan, prepare_log
from localpolicy.study.go_time import Clock, held_out
from localpolicy.study.guess import Guess, guess
from localpolicy.study.titles import read_titles, title_column

SMALL = ("--set", "train.epochs=1", "--set", "model.width=8", "--set", "train.batch_size=64", "--device", "cpu")


def write_shop(path, sessions: int = 400) -> None:
    rng = np.random.default_rng(0)
    lines = ["visitor,product,action,when"]
    for session in range(sessions):
        first = int(rng.integers(30))
        for step, product in enumerate([first, first + 1, first + 2, first + 2]):
            action = ("view", "view", "add_to_cart", "purchase")[step]
            lines.append(f"v{session},p{product % 30},{action},2026-11-16T10:{session % 60:02d}:{step:02d}")
    path.write_text("\n".join(lines) + "\n")


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
def test_columns_are_told_by_their_names(names, expected):
    found = columns_meant(names)
    ours = ("sequence_id", "item_id", "event", "timestamp")
    assert " ".join(found.get(name, "-") for name in ours) == expected


def test_events_are_worth_what_their_names_say(tmp_path):
    known, unsure = guess_rewards({"view": 9, "addtocart": 3, "transaction": 1, "none": 5}, tmp_path)
    assert known == "view=0.2,addtocart=0.5,transaction=1,none=0" and unsure == ()
    known, unsure = guess_rewards({"view": 9, "zap": 2}, tmp_path)
    assert known == "view=0.2,zap=0.2" and "zap" in unsure[0]
    assert guess_rewards({"1": 3, "5": 9, "3.5": 2}, tmp_path) == (">=4=1,>=3=0.5,*=0", ())
    assert "If they are codes, name them" in guess_rewards({"0": 9, "1": 3, "2": 2}, tmp_path)[1][0]
    with pytest.raises(DataError, match="60 different values: it is not one"):
        guess_rewards({f"x{n}": 1 for n in range(60)}, tmp_path)


def test_what_cannot_be_guessed_is_asked_for(tmp_path):
    (tmp_path / "odd.csv").write_text("a,b,c\n1,2,view\n")
    with pytest.raises(DataError, match='no column looks like sequence_id or item_id .*columns=."sequence_id": "NAME"'):
        guess(tmp_path / "odd.csv")
    found = guess(tmp_path / "odd.csv", columns={"sequence_id": "a", "item_id": "b", "event": "c"})
    assert found.rewards == "view=0.2"
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


def test_a_likely_reward_beside_events_is_asked_about(tmp_path):
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


def test_a_missing_time_is_said_and_rows_sorted_by_item_are_found(tmp_path):
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
    """What guesses the dialect may take a ragged last line for one wide column."""
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


@pytest.mark.parametrize("content", ["", "[]", "42", "plan: 3", "prepare: {}"])
def test_notes_that_were_altered_are_told(tmp_path, content):
    write_shop(tmp_path / "log.csv", sessions=60)
    guessed = guess(tmp_path / "log.csv")
    data = prepare_log(tmp_path / "log.csv", tmp_path / "out", guessed, seed=0)
    noted = tmp_path / "out" / "go.yaml"
    noted.write_text(content)
    with pytest.raises(RunError, match="was altered|holds another log"):
        prepare_log(tmp_path / "log.csv", tmp_path / "out", guessed, seed=0)
    if content == "plan: 3":
        noted.write_text("plan: 3\nasked: {minutes: 1, seed: 0, changes: []}")
        with pytest.raises(RunError, match="its plan cannot be read"):
            plan(data, tmp_path / "out", clock=Clock(0.0, 1), seed=0)


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


def test_from_a_csv_to_a_verdict_and_again(tmp_path, monkeypatch):
    """All of it once; the second time nothing is trained; other wishes are refused."""
    monkeypatch.setattr(import_module("localpolicy.study.jobs"), "cores", lambda: 1)
    write_shop(tmp_path / "shop.csv")
    (tmp_path / "names.csv").write_text("item_id,title\n" + "".join(f"p{n},Chair {n}\n" for n in range(30)))
    out = tmp_path / "go"
    words = ("go", tmp_path / "shop.csv", "--out", out, "--titles", tmp_path / "names.csv", *SMALL)
    done = lpi(*words)
    verdict = json.loads((out / "verdict.json").read_text())
    assert done.exit_code == {"deploy": 0, "do not deploy": 3, "cannot tell": 4}[verdict["answer"]]
    assert "view=0.2" in done.stdout and verdict["answer"].upper() in done.stdout
    assert {check["name"] for check in verdict["checks"]} >= {
        "gain",
        "other events",
        "baselines",
        "reference fit",
        "coverage",
    }
    page = (out / "report.html").read_text()
    assert verdict["sentence"] in unescape(page)
    assert '<span class="item">Chair ' in page and "of 2026-11-16: 400 sequences" in page
    assert "trust in the critic" in page
    runs = {run.name: Run(run) for run in (out / "runs").iterdir()}
    assert set(runs) == {"mle-seed-101", "mle-seed-102", "improved"}
    parts = runs["improved"].manifest["made_of"]
    assert parts["logging"] == runs["mle-seed-101"].manifest["policy_sha256"], "judged against what it is made of"
    assert (out / "baselines" / "item-knn" / "manifest.json").exists()
    assert yaml.safe_load((out / "config.yaml").read_text())["model"]["width"] == 8
    commands = (out / "commands.sh").read_text()
    assert "lpi gate" in commands and "objective.logging=" in commands
    assert f"lpi prepare events {tmp_path}/shop.csv --columns sequence_id=visitor,item_id=product" in commands
    assert re.search(r"visitor +sequence_id +its name", done.stdout), "every column, and what it is used as"
    weights = {name: (run.folder / "policy.safetensors").stat().st_mtime_ns for name, run in runs.items()}
    assert lpi(*words).exit_code == done.exit_code
    again = {name: (run.folder / "policy.safetensors").stat().st_mtime_ns for name, run in runs.items()}
    assert again == weights
    with pytest.raises(RunError, match="was begun with"):
        lpi(*words, "--minutes", "3")
    write_shop(tmp_path / "shop.csv", sessions=300)
    with pytest.raises(RunError, match="holds another log"):
        lpi(*words)


def test_clicks_alone_are_never_a_verdict(tmp_path, monkeypatch):
    """Models are ranked, exit code 6: `lpi go && deploy` must not deploy one of two seeds."""
    monkeypatch.setattr(import_module("localpolicy.study.jobs"), "cores", lambda: 1)
    write_rows(tmp_path / "clicks.csv", "user,item,time", [(n % 97, n * 7 % 11, 10**9 + n) for n in range(500)])
    done = lpi("go", tmp_path / "clicks.csv", "--out", tmp_path / "go", "--yes", *SMALL)
    verdict = json.loads((tmp_path / "go" / "verdict.json").read_text())
    assert done.exit_code == 6 and verdict["answer"] == "nothing to decide" and verdict["deploy"] is False
    assert "NOTHING TO DECIDE" in done.stdout and "checks" not in verdict
    assert all(name in verdict["sentence"] for name in ("mle-seed-101", "item-kNN", "popularity"))
    commands = (tmp_path / "go" / "commands.sh").read_text()
    assert "lpi prepare" in commands and "lpi gate" not in commands and "lpi compare" in commands
    assert "Nothing to decide" in (tmp_path / "go" / "report.html").read_text()


def test_ones_own_lists_are_what_is_deployed(tmp_path, monkeypatch):
    """From Python, with frames: the gate asks whether to replace them, on the people they have lists for."""
    monkeypatch.setattr(import_module("localpolicy.study.jobs"), "cores", lambda: 1)
    write_shop(tmp_path / "shop.csv", sessions=300)
    log = pandas.read_csv(tmp_path / "shop.csv")
    people = sorted(set(log.visitor))[::2]
    own = pandas.DataFrame(
        [(who, f"p{n}", n) for who in people for n in range(1, 9)], columns=["visitor", "sku", "rank"]
    )
    shown = []
    small = tuple(word for word in SMALL if "=" in word)
    done = lp.go(log, out=tmp_path / "go", own=own, settings=small, device="cpu", shown=shown.append)
    assert done.verdict.deployed.name == "own lists.parquet" and "used as" in str(shown[0])
    assert any("lists for" in note for note in done.verdict.notes)
    assert {each.name for each in done.comparison.evaluations} >= {"own lists.parquet", "improved", "item-kNN"}
    assert "--against '" in (tmp_path / "go" / "commands.sh").read_text()
    assert done.to_dict()["answer"] in str(done).lower() and "<table" in done._repr_html_()


def test_a_deploy_names_what_falls_unasked():
    """Before: "no check speaks against it", beside a significant loss of an event that was not asked about."""
    value = Check("value", "yes", "", plain="its estimated reward is higher")
    lost = Check("other events", "not asked", "", high=-0.1, plain="it ranks view events lower")
    far = Check("divergence", "not asked", "", high=0.2, plain="it may move further")

    def said(*checks: Check) -> str:
        return Gate([value, *checks], SimpleNamespace(name="new"), SimpleNamespace(name="old"), GateRules()).sentence

    assert said(far).endswith("and no check speaks against it.")
    assert said(lost).endswith("and no check that was asked speaks against it, but it ranks view events lower.")
    lower = replace(lost, name="gain", plain="it ranks what people took lower")
    assert "but it ranks what people took lower." in said(lower) and "but" not in said(replace(lower, high=0.1))


def test_the_plan_fits_the_time(tmp_path, monkeypatch):
    write_shop(tmp_path / "shop.csv")
    lpi("prepare", "events", tmp_path / "shop.csv", "--out", tmp_path / "data", "--columns",
        "sequence_id=visitor,item_id=product,event=action,timestamp=when", "--rewards",
        "view=0.2,add_to_cart=0.5,purchase=1")  # fmt: skip
    data = Prepared(tmp_path / "data")
    place = import_module("localpolicy.study.go_plan")
    monkeypatch.setattr(place, "epoch_seconds", lambda data, config: (30.0, 1.0))
    monkeypatch.setattr(place, "cores", lambda: 2)

    def planned(minutes: float, spent: float = 0.0) -> Plan:
        clock = SimpleNamespace(minutes=minutes, total=60 * minutes, spent=spent, left=60 * minutes - spent)
        return make_plan(data, clock=clock, seed=0, device="cpu")

    plan, share = planned(10), place.TRAINING_SHARE
    assert plan.config.train.epochs == int(share * 600 / 60), "two estimates side by side, then the critic"
    assert plan.seconds == 60 * plan.config.train.epochs <= share * 600
    assert plan.improve == "lpi_rl" and plan.runs == 3 and plan.seeds == (101, 102)
    assert planned(10, spent=300).config.train.epochs == int(share * 300 / 60), "what was spent is gone"
    monkeypatch.setattr(place, "cores", lambda: 1)
    assert planned(10).config.train.epochs == int(share * 600 / 90)
    assert not any("cannot be kept" in note for note in plan.notes)
    short = planned(1.0)
    assert any("for about 1 epoch a run" in note and "too few to learn much" in note for note in short.notes)
    assert short.config.train.epochs == 3 and short.seconds == 60, "the clock ends them, and then it is known why"
    assert short.seeds == (101,) and short.runs == 2 and any("second estimate" in note for note in short.notes)
    monkeypatch.setattr(place, "epoch_seconds", lambda data, config: (30.0, 20.0))
    # Validations of the estimate and of the improvement with its β, all judged on the test split, and the page.
    least = (3 + 8 + 10 * 2.5 * len(data["test"]) / len(data["validation"])) * 20 + 0.1 * 60
    assert f"even the least takes about {math.ceil(least / 60)} minutes" in planned(1.0).notes[0], "said first"


def test_a_large_log_holds_out_what_the_minutes_allow():
    assert held_out(5_000, 1) is None and held_out(140_000, 15) is None, "a tenth"
    assert held_out(126_168, 1) == 1_000 and held_out(126_168, 5) == 5_000 and held_out(10**6, 0.1) == 1_000
    assert held_out(40, 15) == 4 and held_out(20, 15) == 3, "of few the number, since a tenth at random may be none"
    asked = Guess("events", {}, None, held_out=1_000).settings()
    assert asked == {"validation": 1_000, "test": 1_000}


def test_what_is_judged_fits_the_time_that_is_left(tmp_path, monkeypatch):
    """By one measurement of the policy that was trained: a busy machine is measured as it is."""
    write_shop(tmp_path / "shop.csv")
    small = tuple(word for word in SMALL if "=" in word)
    done = lp.go(tmp_path / "shop.csv", out=tmp_path / "go", settings=small, device="cpu", shown=lambda table: None)
    place, now = import_module("localpolicy.study.go_time"), [0.0]
    monkeypatch.setattr(place.time, "monotonic", lambda: now[0])

    def slow(policy, part, **options):
        now[0] += 0.5 * len(part)

    monkeypatch.setattr(place, "score", slow)
    monkeypatch.setattr(place, "FEWEST_JUDGED", 4)
    every, config = len(done.data["test"]), done.plan.config

    def fitting(minutes: float) -> int | None:
        now[0] = 0.0
        return place.affordable(done.data, config, done.chosen, [], place.Clock(0.0, minutes))

    left = 0.9 * 120 - 0.5 * every  # of two minutes, without the page's share and what the measurement took
    assert fitting(2) == int(left / (place.PASSES * 0.5)) < every, "as many sequences as the time allows"
    assert fitting(100) is None, "all of them"
    assert fitting(0.1) == 4, "and never none"
