"""From a log to a verdict in one command: what is guessed, what is planned, what is left behind."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from html import unescape
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import yaml
from commands import invoked as lpi
from page_tree import parse, specs, unexplained

import localpolicy as lp
from localpolicy.cli.evaluate import EXIT
from localpolicy.data.guess.guess import Guess, guess
from localpolicy.data.store import Prepared
from localpolicy.errors import DataError, LocalPolicyError, RunError
from localpolicy.judge.claims import Claim, check
from localpolicy.judge.rules import GateRules
from localpolicy.judge.verdict import WORTH, Gate, next_step
from localpolicy.measure.estimate import Interval, Measurement
from localpolicy.report.go import trust_in_critic, write_go
from localpolicy.runs.run import Run
from localpolicy.study.go import GoResult
from localpolicy.study.go_commands import Asked
from localpolicy.study.go_plan import Plan, held_out, judged_within, make_plan, plan, prepare_log
from localpolicy.study.speed import Speed, probe_seconds

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


@pytest.mark.parametrize("content", ["", "[]", "42", "plan: 3", "prepare: {}"])
def test_notes_that_were_altered_are_refused(tmp_path, content):
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
            plan(data, tmp_path / "out", minutes=1, seed=0)


def test_go_leads_from_a_csv_to_a_verdict_and_again(tmp_path, monkeypatch):
    """Everything once; the second time nothing is trained; other wishes are refused."""
    monkeypatch.setattr(import_module("localpolicy.runtime.processes"), "cores", lambda: 1)
    write_shop(tmp_path / "shop.csv")
    (tmp_path / "names.csv").write_text("item_id,title\n" + "".join(f"p{n},Chair {n}\n" for n in range(30)))
    out = tmp_path / "go"
    words = ("go", tmp_path / "shop.csv", "--out", out, "--titles", tmp_path / "names.csv", *SMALL)
    done = lpi(*words)
    verdict = json.loads((out / "verdict.json").read_text())
    assert done.exit_code == EXIT[verdict["answer"]]
    assert "view=0.2" in done.stdout and verdict["answer"].upper() in done.stdout
    assert {check["figure"] for check in verdict["checks"]} >= {
        "gain",
        "other events",
        "baselines",
        "reference fit",
        "coverage",
    }
    assert verdict["metric"] == "reward-weighted.nDCG@20"
    assert f"Decided by: {verdict['decided_by']}." in " ".join(done.stdout.split())
    page = (out / "report.html").read_text()
    assert f"<dt>decided by</dt><dd>{verdict['decided_by']}</dd>" in page
    assert verdict["reason"] in unescape(page) and verdict["sentence"].partition(":")[0] in unescape(page)
    assert '<span class="item">Chair ' in page and "of 2026-11-16: 400 sequences" in page
    assert "trust in the critic" in page
    assert verdict["moved"] == {"more": [], "less": [], "share_of_contexts": 0.0}, "the policy stays at the imitation"
    assert "What improved would change" not in done.stdout and "What would change" not in page
    assert ">—</td>" in page and unexplained(out / "report.html") == []
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


def test_what_needs_no_training_is_refused_before_it(tmp_path):
    """One item: there is nothing to choose. Before: three networks, and "the two rank all 0 answers" equally."""
    rows = "".join(f"{n % 97},7,yesterday\n" for n in range(500))
    (tmp_path / "one.csv").write_text(f"user,item,t\n{rows}")
    with pytest.raises(DataError, match="one item: every row's item is the same.*columns=.*item_id"):
        lp.go(tmp_path / "one.csv", out=tmp_path / "go")
    assert not (tmp_path / "go" / "runs").exists() and not (tmp_path / "go" / "data").exists()


def test_choices_of_one_row_each_are_refused_with_what_is_known(tmp_path):
    """Before: networks for minutes, and a tie of all models, since nothing comes before any row."""
    counts = {"car": 60, "bus": 30, "train": 10}
    rows = [f"{name},{name}" for name, count in counts.items() for _ in range(count)]
    rows = "".join(f"{n},{row.partition(',')[2]}\n" for n, row in enumerate(rows))
    (tmp_path / "log.csv").write_text(f"respondent,alternative\n{rows}")
    shares = ", ".join(f"{name} {count / sum(counts.values()):.1%}" for name, count in counts.items())
    with pytest.raises(DataError, match=f"one row for each respondent.*shares of the items: {shares}") as refused:
        lp.go(tmp_path / "log.csv", out=tmp_path / "go")
    assert "reward" in str(refused.value) and not (tmp_path / "go" / "data").exists()
    rated = "".join(f"{line},{n % 5 + 1}\n" for n, line in enumerate(rows.splitlines()))
    (tmp_path / "log.csv").write_text(f"respondent,alternative,rating\n{rated}")
    assert guess(tmp_path / "log.csv").shares == "", "ratings differ: item means can be known"


def test_lists_of_all_items_are_refused_before_training(tmp_path):
    """Before: two networks learned the order of the alternatives, and the advice was to train for longer."""
    rows = "".join(f"{n // 3},{n % 3},{int(n % 3 == (n // 3) ** 2 % 3)}\n" for n in range(600))
    (tmp_path / "log.csv").write_text(f"case,alternative,choice\n{rows}")
    with pytest.raises(DataError, match="nearly all of its 3 items, and states no propensities"):
        lp.go(tmp_path / "log.csv", out=tmp_path / "go")
    assert not (tmp_path / "go" / "runs").exists() and not (tmp_path / "go" / "data").exists()


def test_a_verdict_needs_no_pictures(tmp_path, monkeypatch):
    """Without the extra `report` there is no page. Before: exit code 2 after all was trained, and no verdict."""
    monkeypatch.setattr(import_module("localpolicy.runtime.processes"), "cores", lambda: 1)
    monkeypatch.setattr(import_module("localpolicy.report.go"), "can_draw", lambda: False)
    rows = "".join(f"{n % 97},{n * 7 % 11},yesterday\n" for n in range(500))
    (tmp_path / "log.csv").write_text(f"user,item,t\n{rows}")
    done = lpi("go", tmp_path / "log.csv", "--out", tmp_path / "go", "--yes", *SMALL)
    assert done.exit_code == 6 and json.loads((tmp_path / "go" / "verdict.json").read_text())["deploy"] is False
    assert "pip install 'localpolicy[report]'" in done.stderr and "report:" not in done.stderr
    assert not (tmp_path / "go" / "report.html").exists()
    both = " ".join(f"{done.stdout} {done.stderr}".split())
    assert both.count("t is named like a time, and its values are none") == 1, "a note is given once"


def test_clicks_alone_are_never_a_verdict(tmp_path, monkeypatch):
    """Models are ranked, exit code 6: `lpi go && deploy` must not deploy one of two seeds."""
    monkeypatch.setattr(import_module("localpolicy.runtime.processes"), "cores", lambda: 1)
    rows = "".join(f"{n % 97},{n * 7 % 11},{10**9 + n}\n" for n in range(500))
    (tmp_path / "clicks.csv").write_text(f"user,item,time\n{rows}")
    done = lpi("go", tmp_path / "clicks.csv", "--out", tmp_path / "go", "--yes", *SMALL)
    verdict = json.loads((tmp_path / "go" / "verdict.json").read_text())
    assert done.exit_code == 6 and verdict["answer"] == "nothing to decide" and verdict["deploy"] is False
    assert "the policy judged" not in done.stderr
    assert "known before any training: the answer will be 'nothing to decide'" in done.stderr
    first, second = (tmp_path / "go" / "runs" / f"mle-seed-{seed}" for seed in (101, 102))
    assert [run.name for run in first.parent.iterdir()] == [first.name], "one is ranked, and none is decided on"
    lpi(
        "train", tmp_path / "go" / "data", "--config", tmp_path / "go" / "config.yaml", "--seed", "102", "--out", second
    )
    both = lp.gate(first, against=second, device="cpu")
    why = both.question.why
    assert why.index("all events are worth the same") < why.index("two seeds of one recipe"), "both hold"
    assert both.to_dict()["decided_by"] == "nothing"
    assert "NOTHING TO DECIDE" in done.stdout and "checks" not in verdict
    (header,) = (line for line in done.stdout.splitlines() if "HR@5" in line and "policy" in line)
    assert "HR@10" in header and "HR@20" not in header and "nDCG@20" in header, "HR@20 of 11 items is 1"
    assert "HR@20: 1 whatever is ranked first, since there are 11 items" in " ".join(done.stdout.split())
    figures = [model["nDCG@20"]["mean"] for model in verdict["ranked"]]
    assert figures == sorted(figures, reverse=True) and verdict["ranked"][0]["HR@5"]["n"] > 0
    listed = [f"{model['policy']} {figure:.4f}" for model, figure in zip(verdict["ranked"], figures, strict=True)]
    assert len(listed) == 6 and ", ".join(listed) in verdict["sentence"]
    assert all(name in verdict["sentence"] for name in ("mle-seed-101", "item-kNN", "popularity"))
    commands = (tmp_path / "go" / "commands.sh").read_text()
    assert "lpi prepare" in commands and "lpi gate" not in commands and "lpi compare" in commands
    page = unescape((tmp_path / "go" / "report.html").read_text())
    assert "Nothing to decide" in page and f"<b>Next:</b> {WORTH}" in page
    assert " ".join(WORTH.split()) in " ".join(done.stdout.split()) and next_step(both) == WORTH, "one next step"
    assert "differs from the log" not in page, "both are estimates of it"


def test_choices_of_one_list_each_are_judged_without_histories(tmp_path, monkeypatch):
    """Each person chose once. Before: two networks, and then exit code 2, since no position has a history."""
    monkeypatch.setattr(import_module("localpolicy.runtime.processes"), "cores", lambda: 1)
    rows = "".join(f"{n // 3},{(n // 3 + n) % 7},{int(n % 3 == (n // 3) ** 2 % 3)}\n" for n in range(600))
    (tmp_path / "log.csv").write_text(f"individual,alternative,choice\n{rows}")
    done = lpi("go", tmp_path / "log.csv", "--out", tmp_path / "go", "--yes", *SMALL)
    assert done.exit_code in (3, 4, 6) and "one list" in " ".join(done.stdout.split())
    assert yaml.safe_load((tmp_path / "go" / "config.yaml").read_text())["train"]["min_history"] == 0


def test_ones_own_lists_are_what_is_deployed(tmp_path, monkeypatch):
    """From Python, with frames: the gate asks whether to replace them, on the people they have lists for."""
    monkeypatch.setattr(import_module("localpolicy.runtime.processes"), "cores", lambda: 1)
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
    """Before: "no check speaks against it", with a significant loss of an event that was not asked about."""
    value = check("value", "yes", "", plain="its estimated reward is higher")
    lost = check("other events", "not asked", "", high=-0.1, plain="it ranks view events lower")
    far = check("divergence", "not asked", "", high=0.2, plain="it may move further")

    def said(*checks: Claim) -> str:
        return Gate([value, *checks], SimpleNamespace(name="new"), SimpleNamespace(name="old"), GateRules()).sentence

    assert said(far).endswith("its estimated reward is higher, and every check that was asked passed.")
    assert said(lost).endswith("and every check that was asked passed. But it ranks view events lower (not asked).")
    lower = replace(lost, figure="gain", plain="it ranks what people took lower")
    assert "But it ranks what people took lower (not asked)." in said(lower)
    assert "not asked" not in said(replace(lower, high=0.1))
    assert said(lower, lost).endswith("it ranks what people took lower, and it ranks view events lower (not asked).")


@pytest.mark.parametrize(
    ("improvement", "said"),
    [
        ({"beta": 0.3, "chosen_by": "spread", "said": None}, "β = 0.3, set to the spread of the critic's advantages."),
        (
            {"beta": 0.3, "chosen_by": "value by logged propensities", "said": None},
            "β = 0.3, chosen by the estimated reward, from logged propensities.",
        ),
        ({"beta": 0.3, "chosen_by": "spread", "said": "It stays."}, "It stays."),
    ],
)
def test_how_beta_was_found_is_a_sentence(improvement, said):
    """Before: "β = 0.3, by spread", "by value by logged propensities"."""
    run = SimpleNamespace(manifest={"improvement": improvement})
    assert GoResult(None, None, None, run, None, None).said == said
    assert GoResult(None, None, None, SimpleNamespace(manifest={}), None, None).said is None


def test_trust_in_a_critic_worse_than_plain_means_says_so():
    good = trust_in_critic({"slope": 1.0, "critic_error": {"critic": 0.1, "plain": 0.2}})
    assert (good.value, good.name) == ("1.00", "trust in the critic") and "times" not in good.meaning
    bad = trust_in_critic({"slope": 1.0, "critic_error": {"critic": 0.5, "plain": 0.1}})
    assert "worse than plain means" in bad.name and "5.00 times" in bad.meaning


def test_the_plan_fits_the_time(tmp_path, monkeypatch):
    write_shop(tmp_path / "shop.csv")
    lpi("prepare", "events", tmp_path / "shop.csv", "--out", tmp_path / "data", "--columns",
        "sequence_id=visitor,item_id=product,event=action,timestamp=when", "--rewards",
        "view=0.2,add_to_cart=0.5,purchase=1")  # fmt: skip
    data = Prepared(tmp_path / "data")
    place = import_module("localpolicy.study.go_plan")
    validation, test = len(data["validation"]), len(data["test"])
    steps = {"batch": 0}

    def speed(seconds: float, scoring: float):
        """So that an epoch takes so long, of which the pass over the validation split so long."""

        def measured(data, config):
            steps["batch"] = math.ceil(len(data["train"]) / config.train.batch_size)
            return Speed((seconds - scoring) / steps["batch"], scoring / validation)

        monkeypatch.setattr(place, "speed_of", measured)

    speed(30.0, 1.0)
    monkeypatch.setattr(place, "cores", lambda: 2)
    events = sum(split.events for split in data.splits.values())

    def planned(minutes: float) -> Plan:
        return make_plan(data, minutes=minutes, seed=0, device="cpu")

    def allowed(stages: int) -> float:
        """Seconds for training: what reading, fitting, probing, choosing and judging leave of ten minutes."""
        left = 600 * 0.9 - place.STARTING - events / place.READ_EVENTS - place.fitting_seconds(data)
        step, each = (30.0 - 1.0) / steps["batch"], 1.0 / validation
        left -= probe_seconds(data, plan.config, step, each)
        left -= (stages * place.OF_AN_ESTIMATE + place.OF_THE_IMPROVEMENT) * 1.0
        return max(left - place.PASSES * place.ALL_OF_IT * test / validation, place.TRAINING_SHARE * left)

    plan = planned(10)
    budget = allowed(1)
    epochs = plan.config.train.epochs
    assert epochs in place.LADDER and epochs <= budget / 60 < 1.7 * epochs, (
        "two estimates side by side, then the critic"
    )
    assert plan.seconds == pytest.approx(60 * epochs) and plan.judged is None
    assert plan.improve == "lpi_rl" and plan.runs == 3 and plan.seeds == (101, 102)
    assert not any("cannot be kept" in note for note in plan.notes)
    assert planned(10) == plan, "no clock has a say"
    order = check("order", "cannot tell", "its rows are sorted by item", plain="no order of time")
    with monkeypatch.context() as patch:
        patch.setattr(place, "order_check", lambda data: order)
        assert "known before any training" in planned(10).notes[0] and "sorted by item" in planned(10).notes[0]
    for stage in ("fitting_seconds", "probe_seconds"):
        with monkeypatch.context() as patch:
            patch.setattr(place, stage, lambda *counted: 300.0)
            assert planned(10).config.train.epochs < epochs, "no stage is free"
    speed(30.5, 1.0)
    assert planned(10).config == plan.config, "nor a little noise in the speed"
    monkeypatch.setattr(place, "cores", lambda: 1)
    alone = planned(10).config.train.epochs
    assert alone <= allowed(2) / 90 < 1.7 * alone
    short = planned(1.0)
    assert any("for about 1 epoch a run" in note and "too few to learn much" in note for note in short.notes)
    assert short.config.train.epochs == 3, "the fewest that teach anything"
    assert short.seeds == (101,) and short.runs == 2 and any("second estimate" in note for note in short.notes)
    least = re.search(r"even the least takes about (\d+) minutes", short.notes[0])
    assert least and int(least[1]) >= 3 * 2 * 30 / 60, "three epochs of two runs, said first"
    with monkeypatch.context() as patch:  # a wide catalogue: a sample of it, if all of it would cost epochs
        patch.setattr(place, "WIDE", data.n_items)
        patch.setattr(place, "LEAST_SAMPLE", 3)
        sampled = planned(10)
        assert sampled.config.train.sampled == 3 and any(f"3 of {data.n_items} items" in n for n in sampled.notes)
        assert planned(10**4).config.train.sampled is None, "there is time for all"
        patch.setattr(place, "WIDE", data.n_items + 1)
        assert planned(10).config.train.sampled is None
    speed(30.0, 20.0)
    few = planned(2.0)
    assert few.judged in (None, place.FEWEST_JUDGED) and (few.judged is None) == (test <= place.FEWEST_JUDGED)
    assert judged_within(50.0, 1.0, 10**6) == place.FEWEST_JUDGED, "never fewer"
    assert judged_within(500.0, 1.0, 10**6) == 500 and judged_within(500.0, 1.0, 400) is None, "all of them"


def test_a_speed_is_measured_once_and_kept(tmp_path, monkeypatch):
    """The same shape of work has the speed that was measured first; what was altered in its file is measured again."""
    write_shop(tmp_path / "shop.csv", sessions=60)
    data = prepare_log(tmp_path / "shop.csv", tmp_path / "out", guess(tmp_path / "shop.csv"), seed=0)
    place = import_module("localpolicy.study.speed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = make_plan(data, minutes=1, seed=0, device="cpu").config
    kept = json.loads((tmp_path / "cache" / "localpolicy" / "speed.json").read_text())
    assert list(kept) == [place.shape_of(data, config)] and all(seconds > 0 for seconds in place.speed_of(data, config))
    given = Speed(3.0, 4.0)
    monkeypatch.setattr(place, "_measured", lambda data, config: given)
    assert place.speed_of(data, config) == Speed(*next(iter(kept.values())))
    for content in ("no JSON", "[]", json.dumps({name: [-1.0, "x"] for name in kept})):
        (tmp_path / "cache" / "localpolicy" / "speed.json").write_text(content)
        assert place.speed_of(data, config) == given
    wider = config.with_changes(["model.width=32"])
    assert place.shape_of(data, wider) != place.shape_of(data, config)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert place.speed_of(data, config) == given, "a home that cannot be written"


def test_a_large_log_holds_out_what_the_minutes_allow():
    assert held_out(5_000, 1) is None and held_out(140_000, 15) is None, "a tenth"
    assert held_out(126_168, 1) == 1_000 and held_out(126_168, 5) == 5_000 and held_out(10**6, 0.1) == 1_000
    assert held_out(40, 15) == 4 and held_out(20, 15) == 3, "of few the number, since a tenth at random may be none"
    asked = Guess("events", {}, None, held_out=1_000).settings()
    assert asked == {"validation": 1_000, "test": 1_000}


def test_a_small_log_of_decisions_holds_out_what_the_gate_needs():
    """Before: 308 decisions judged a β that had an effective sample of 77; 100 are needed."""
    assert held_out(2_000, 15, decisions=3_080) == round(2_000 * 600 / 3_080)
    assert held_out(2_000, 15, decisions=6_000) is None and held_out(2_000, 15, decisions=5_999) == 200
    assert held_out(2_000, 15, decisions=1_000) == 400, "a fifth at most"
    assert held_out(50, 15, decisions=100) == 10
    assert held_out(126_168, 5, decisions=1_000) == 5_000, "the minutes come first"


def assert_the_page_draws_what_decided(done: GoResult, folder: Path) -> None:
    """Before: the nDCG, which was not asked, under a verdict by the reward per answer."""
    worth, both, fell = (
        check(name, "yes", "", 0.1, 0.05, 0.15, 300, plain="its answers would be worth more")
        for name in ("reward per answer", "worth and number of answers", "coverage")
    )
    known = {"improved": 0.4, "mle-seed-101": 0.3, "item-kNN": 0.2}
    rows = tuple(
        Measurement.of(name, each.figure, Interval.of(mean, 0.01))
        for each in (both, worth)
        for name, mean in known.items()
    )
    for checks, figure in (
        ([worth, replace(both, holds=None)], both.figure),
        ([worth, both, replace(fell, holds=False)], worth.figure),  # no policy has a figure of that check
        ([worth, both], worth.figure),
    ):
        judged = replace(done, verdict=replace(done.verdict, checks=checks, figures=rows))
        (section,) = write_go(judged, folder / "page.html").sections
        assert section.main == figure and {name: section.mean(name, figure) for name in known} == known
    spec = specs(parse(folder / "page.html"))["s1-frontier"]
    drawn = {point["policy"]: point["y"] for point in spec["datasets"]["points"]}
    assert drawn == known and judged.to_dict()["figures"][0]["mean"] == 0.4
    caption = unescape((folder / "page.html").read_text()).partition("Not drawn")[2]
    assert "mle-seed-102" in caption[:120], "who has none is named"


def test_the_page_draws_what_decided(tmp_path):
    write_shop(tmp_path / "shop.csv")
    small = tuple(word for word in SMALL if "=" in word)
    done = lp.go(tmp_path / "shop.csv", out=tmp_path / "go", settings=small, device="cpu", shown=lambda table: None)
    assert_the_page_draws_what_decided(done, tmp_path)


def test_what_was_given_is_looked_at_before_any_work(tmp_path):
    write_shop(tmp_path / "shop.csv", sessions=40)
    (tmp_path / "nothing.csv").write_text("a,b\n1,2\n")
    for given, reason in (
        ({"own": tmp_path / "missing.csv"}, "missing.csv does not exist: expected a CSV or Parquet file of lists"),
        ({"own": tmp_path / "nothing.csv"}, "no column item_id"),
        ({"own": tmp_path / "shop.csv"}, "looks like a log, not like lists"),
        ({"titles": tmp_path / "nothing.csv"}, "one of titles"),
        ({"rules": tmp_path / "missing.yaml"}, "expected a YAML file of gate rules"),
        ({"rules": {"max_jss": 1}}, "did you mean 'max_js'"),
        ({"settings": ("model.wdith=3",)}, "did you mean 'width'"),
        ({"device": "gpu7"}, "device: expected"),
        ({"minutes": math.inf}, "minutes: expected a number above 0, got inf"),
        ({"minutes": -1}, "minutes: expected a number above 0, got -1"),
    ):
        with pytest.raises(LocalPolicyError, match=reason):
            lp.go(tmp_path / "shop.csv", out=tmp_path / "out", **given)
        assert not (tmp_path / "out").exists(), given
    lists = pandas.DataFrame({"user_id": ["nobody"], "item_id": ["p1"], "rank": [1]})
    with pytest.raises(LocalPolicyError, match="no list is of a sequence of the test split"):
        lp.go(tmp_path / "shop.csv", out=tmp_path / "out", own=lists)
    assert not (tmp_path / "out" / "runs").exists()


def test_no_clock_ends_what_was_planned(tmp_path, monkeypatch):
    """Estimates in turn, then the improvement of the first; each has the plan's epochs, and no minutes."""
    write_shop(tmp_path / "shop.csv", sessions=60)
    guessed = guess(tmp_path / "shop.csv")
    data = prepare_log(tmp_path / "shop.csv", tmp_path / "out", guessed, seed=0)
    place, given = import_module("localpolicy.study.go"), []

    def trained(jobs, **options):
        given.extend((job.name, job.config) for job in jobs)
        if jobs[0].name == "improved":
            raise InterruptedError
        return {job.name: Run(job.out) for job in jobs}

    monkeypatch.setattr(place, "train_all", trained)
    planned = make_plan(data, minutes=10, seed=0)
    asked = Asked(tmp_path / "shop.csv", guessed, tmp_path / "out")
    with pytest.raises(InterruptedError):
        place.carry_out(asked, data, planned)
    assert [name for name, _ in given] == ["mle-seed-101", "mle-seed-102", "improved"]
    assert {config.train.epochs for _, config in given} == {planned.config.train.epochs}
    assert {config.train.minutes for _, config in given} == {None}
    assert [config.train.seed for _, config in given[:2]] == [101, 102]
    assert given[2][1].objective.logging == str(tmp_path / "out" / "runs" / "mle-seed-101")
