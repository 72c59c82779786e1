"""`lpi improve`: from files to a layer, with the verdict as exit code."""

from __future__ import annotations

import json

import pytest
from commands import lpi

import localpolicy as lp


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranker") / "log"
    small = [word for one in ("items=300", "people=400", "candidates=20", "places=5") for word in ("--set", one)]
    done = lpi("simulate", "ranker", "--out", folder, "--sequences", 3000, "--seed", 1, *small)
    assert done.returncode == 0, done.stderr
    return folder


def test_improve_makes_a_layer_from_a_log(log, tmp_path):
    words = ["--outcomes", log / "outcomes.parquet", "--items", log / "items.parquet", "--critics", "logistic"]
    done = lpi("improve", log / "requests.parquet", *words, "--out", tmp_path / "run", "--json", tmp_path / "j.json")
    content = json.loads((tmp_path / "j.json").read_text())
    assert done.returncode == content["exit_code"] == 0, done.stderr
    assert content["verdict"] == "deploy"
    assert content["gain"]["low"] > 0
    assert lp.Layer(tmp_path / "run").beta == content["beta"]
    again = lpi("improve", log / "requests.parquet", "--out", tmp_path / "run")
    assert again.returncode == 2 and "not empty" in again.stderr


@pytest.mark.parametrize(("words", "says"), [
    (["--columns", "request=session"], "no column 'session' for 'request'"),
    (["--critics", "forest"], "no critic 'forest'"),
    (["--events", "buy"], "no answer 'buy'"),
    (["--temperature", "0"], "temperature: expected a number greater than 0"),
])  # fmt: skip
def test_improve_refuses_mistakes_with_a_remedy(log, tmp_path, words, says):
    done = lpi("improve", log / "requests.parquet", "--outcomes", log / "outcomes.parquet", "--out", tmp_path / "run",
               *words)  # fmt: skip
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "run").exists()


def test_what_a_draw_would_cost_is_planned(log, tmp_path):
    words = ["explore", "plan", log / "requests.parquet", "--outcomes", log / "outcomes.parquet"]
    done = lpi(
        *words,
        "--temperatures",
        "0.1,0.2",
        "--shares",
        "1,0.2",
        "--pins",
        "0",
        "--gain",
        "0.1",
        "--json",
        tmp_path / "plan.json",
    )
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "plan.json").read_text())
    assert [(one["temperature"], one["share"]) for one in content["draws"]] == [
        (0.1, 1.0), (0.1, 0.2), (0.2, 1.0), (0.2, 0.2),
    ]  # fmt: skip
    assert "lists for +10%" in done.stdout and f"{content['ab_test']:,} lists" in done.stdout
    wrong = lpi(*words, "--pins", "9")
    assert wrong.returncode == 2 and "nothing to draw in lists of 5" in wrong.stderr


def test_a_log_without_a_draw_gets_the_cost_of_one(tmp_path):
    small = [word for one in ("items=300", "people=400", "candidates=20", "places=5", "temperature=0")
             for word in ("--set", one)]  # fmt: skip
    assert lpi("simulate", "ranker", "--out", tmp_path / "log", "--sequences", 500, *small).returncode == 0
    done = lpi("improve", tmp_path / "log" / "requests.parquet", "--outcomes", tmp_path / "log" / "outcomes.parquet",
               "--critics", "logistic", "--out", tmp_path / "run")  # fmt: skip
    assert done.returncode == 4 and "lpi explore plan" in done.stdout + done.stderr
