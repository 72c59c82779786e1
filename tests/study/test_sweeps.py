"""Sweeps: chosen on validation, within a budget, and the same table after a kill."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from commands import lpi
from forms import weighted
from shop_logs import from_markdown, write_shop
from small_logs import TINY

from localpolicy.errors import ConfigError, RunError
from localpolicy.measure.evaluate import evaluate
from localpolicy.measure.number_text import interval_text
from localpolicy.report.sweep import claims, draw, section, sweep_contents, sweep_tables, verdict
from localpolicy.report.table import Cell
from localpolicy.runs.config import Config, config_of
from localpolicy.runs.run import Run
from localpolicy.study.measured import Pooled, best_within
from localpolicy.study.settings import axes, grid
from localpolicy.study.sweep import optuna_search, sweep
from localpolicy.training.train import train

CONFIG = Config.parse(
    {
        "model": {"width": 8},
        "objective": weighted({"name": "lpi_rl"}),
        "train": {"epochs": 2, "batch_size": 16, "learning_rate": 0.01, "device": "cpu"},
    }
)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    data = write_shop(folder / "data")
    found = sweep(data, config=CONFIG, over=["beta=0.05,1"], out=folder / "out", seeds=2, processes=1)
    return folder, data, found


def again(swept, **options):
    folder, data, _ = swept
    settings = {"config": CONFIG, "over": ["beta=0.05,1"], "out": folder / "out", "seeds": 2, "processes": 1}
    return sweep(data, **{**settings, **options})


def value(said, policy, figure, *, split="validation", seed=None, group="all"):
    """A mean of the long table of `sweep.json`."""
    key = {"policy": policy, "split": split, "group": group, "figure": figure, "seed": seed}
    (row,) = (row for row in said["measurements"] if row.items() >= key.items())
    return row["mean"]


def test_the_choice_is_the_best_mean_on_validation(swept):
    _, _, found = swept
    said = found.to_dict()
    by_seed = {name: [value(said, name, found.figure, seed=seed) for seed in (0, 1)] for name in said["policies"]}
    means = {name: sum(seeds) / 2 for name, seeds in by_seed.items()}
    assert said["chosen"] == max(means, key=means.get)
    assert all(value(said, name, found.figure) == pytest.approx(mean) for name, mean in means.items())
    # The figure is the one that picked each run's epoch.
    for one in found.tried:
        for arm in one.seeds:
            assert arm.selection_score == max(line["selected_by"] for line in arm.record["curve"])


def number(cell: str) -> float:
    """The mean of a cell of a table."""
    return float(cell.partition(" ±")[0].partition(" [")[0].replace("−", "-"))


def test_tables_say_what_the_json_says(swept):
    _, _, found = swept
    points, chosen = sweep_tables(found)
    rows, said = from_markdown(points.markdown(), points.title), found.to_dict()
    for name in said["policies"]:
        assert number(rows[name][0]) == pytest.approx(value(said, name, found.figure), abs=5e-5)
        assert number(rows[name][1]) == pytest.approx(value(said, name, "JS"), abs=5e-4)
        assert (rows[name][-1] == "chosen") == (name == said["chosen"])
    shown, of_test = from_markdown(chosen.markdown(), chosen.title), {"split": "test", "group": "purchase"}
    by_seed = [value(said, said["chosen"], "nDCG@20", seed=seed, **of_test) for seed in (0, 1)]
    assert number(shown["purchase.nDCG@20"][0]) == pytest.approx(sum(by_seed) / 2, abs=5e-5)
    assert value(said, said["chosen"], "nDCG@20", **of_test) == pytest.approx(sum(by_seed) / 2, abs=1e-6)


def test_weights_are_one_number_on_terminal_page_and_key_numbers(swept):
    """The mean over seeds; the page's table had the first seed's."""
    pytest.importorskip("altair")
    from localpolicy.report.lines import weights_table

    _, _, found = swept
    rows = from_markdown(sweep_tables(found)[0].markdown(), sweep_tables(found)[0].title)
    contents = sweep_contents(found)
    weights = weights_table(contents.sections[0], {one.name: Cell(one.name) for one in found.tried})
    at = [column.title for column in weights.heads].index("effective share")
    shown = {row[0].text: row[at].text for row in weights.body}
    for one in found.tried:
        shares = [seed.record["run"]["weights"]["effective_share"] for seed in one.seeds]
        assert shares[0] != shares[1], "otherwise this says nothing"
        assert shown[one.name] == rows[one.name][3] == f"{50 * sum(shares):.1f} %"
    assert shown[found.chosen.name] in [each.value for each in contents.numbers]


def test_a_plus_minus_is_half_the_interval_of_the_long_table(swept):
    """It was one standard error, and on the page of the same sweep half a 95 % interval."""
    _, _, found = swept
    points = sweep_tables(found)[0]
    rows, said = from_markdown(points.markdown(), points.title), found.to_dict()["measurements"]
    for one in found.tried:
        for figure, shown in zip((found.figure, "JS"), rows[one.name], strict=False):
            (row,) = (row for row in said if (row["policy"], row["figure"], row["seed"], row["split"]) == (
                one.name, figure, None, "validation"))  # fmt: skip
            assert float(shown.partition("± ")[2]) == pytest.approx((row["high"] - row["low"]) / 2, abs=5e-4)
    assert "mean over 2 seeds, with Student's 95 % interval" in points.note
    assert "JS: 95 % intervals, clustered by sequence" in points.note


@pytest.mark.parametrize("rule", ["0.2*view.nDCG@20 + 1*buy", "view.nDCG@20"])
def test_the_rows_of_the_figure_that_chose_have_its_whole_name(swept, rule):
    """It was cut at its last dot: group 'validation 0.2*view.nDCG@20 + 1*buy', figure 'nDCG@20'."""
    _, _, found = swept
    named = replace(found, select=rule)
    assert value(named.to_dict(), named.chosen.name, f"validation {rule}") == named.chosen.selection_score
    drawn = section(named)
    assert drawn.figure(named.chosen.name, drawn.main).mean == named.chosen.selection_score


def test_only_the_chosen_point_is_shown_on_test(swept):
    _, _, found = swept
    rows = found.to_dict()["measurements"]
    assert {row["policy"] for row in rows if row["split"] == "test"} == {found.chosen.name}
    assert {row["policy"] for row in rows} == {"beta=0.05", "beta=1"}


def test_a_group_whose_positions_are_not_kept_is_the_mean_of_its_seeds(swept):
    """As that of cold items, of a log with an item table: it was a KeyError."""
    _, _, found = swept
    seeds = []
    for seed in found.chosen.seeds:
        test = seed.record["test"]
        metrics = {**test["metrics"], "cold items": test["metrics"]["purchase"]}
        seeds.append(replace(seed, record={**seed.record, "test": {**test, "metrics": metrics}}))
    cold = replace(found, chosen=replace(found.chosen, seeds=seeds))
    there = [seed.estimate("purchase.nDCG@20").mean for seed in seeds]
    assert cold.chosen.estimate("cold items.nDCG@20").mean == pytest.approx(sum(there) / 2)
    assert any(cell.text == "cold items.nDCG@20" for row in sweep_tables(cold)[1].body for cell in row)


def test_what_is_done_is_not_done_again(swept):
    folder, _, found = swept
    before = {path: path.stat().st_mtime_ns for path in (folder / "out").rglob("*") if path.is_file()}
    assert again(swept).to_dict() == found.to_dict()
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "out").rglob("*") if path.is_file()}


def test_a_budget_below_the_floor_is_refused_and_names_it(swept):
    _, _, found = swept
    floor = found.floor["validation"].mean
    assert floor > 0
    with pytest.raises(ConfigError, match=rf"noise floor, {floor:.4f} between mle-seed=101, mle-seed=102"):
        again(swept, max_js=floor * 0.9)


def test_a_budget_chooses_within_it(swept):
    def point(selection_score, js):
        return SimpleNamespace(selection_score=selection_score, js=lambda split: SimpleNamespace(mean=js))

    far, near, nearest, failed = point(0.9, 0.3), point(0.7, 0.1), point(0.6, 0.05), point(-math.inf, 0.01)
    points = [nearest, far, near, failed]
    assert best_within(points, None) is far
    assert best_within(points, 0.2) is near
    assert best_within(points, 0.1) is near  # the budget itself is within
    assert best_within(points, 0.06) is nearest
    assert best_within(points, 0.04) is None
    _, _, found = swept
    assert again(swept, max_js=0.69).to_dict()["chosen"] == found.to_dict()["chosen"]


def test_nothing_within_the_budget_is_reported(swept):
    _, _, found = swept
    none = replace(found, chosen=None, max_js=0.0172)
    (table,) = sweep_tables(none)
    assert "NO point is within it; the nearest has JS" in table.note
    assert {row["split"] for row in none.to_dict()["measurements"]} == {"validation"}


def test_the_floor_is_the_distance_between_the_references(swept, tmp_path):
    folder, _, found = swept
    first, second = (folder / "out" / "runs" / f"mle-seed={seed}" for seed in (101, 102))
    for split in ("validation", "test"):
        measured = evaluate(first, against=[second], config={"split": split}, out=tmp_path)
        assert found.floor[split].mean == pytest.approx(measured.divergence.js.overall.mean, rel=1e-6)


def test_the_users_own_references_are_used(swept):
    folder, _, found = swept
    runs = [folder / "out" / "runs" / f"mle-seed={seed}" for seed in (101, 102)]
    own = again(swept, over=["beta=1"], seeds=1, out=folder / "own", against=runs)
    first = [value(each.to_dict(), "beta=1", each.figure, seed=0) for each in (own, found)]
    assert first[0] == first[1]
    assert own.floor["validation"].mean == pytest.approx(found.floor["validation"].mean)
    assert not (folder / "own" / "runs" / "mle-seed=101").exists()
    with pytest.raises(ConfigError, match="two against="):
        again(swept, over=["beta=1"], seeds=1, out=folder / "one", against=runs[:1], max_js=0.5)
    with pytest.raises(RunError, match="not a finished run"):
        again(swept, out=folder / "none", against=[folder / "nowhere"])


def test_references_that_share_a_seed_with_a_point_are_reported(swept, messages):
    folder, _, _ = swept
    runs = folder / "out" / "runs"
    point = next(run for run in sorted(runs.iterdir()) if run.name.endswith("seed=0"))
    options = {"over": ["beta=1"], "seeds": 1, "out": folder / "shared"}
    again(swept, against=[runs / "mle-seed=101", point], **options)
    notes = messages("localpolicy.study.sweep")
    assert len(notes) == 1
    assert f"--against {point.name} has seed 0" in notes[0]
    assert "(1 and above)" in notes[0]


def test_mistakes_are_reported_before_anything_is_trained(swept, tmp_path):
    for options, says in (
        ({"over": ["beta=-1,1"]}, "greater than 0"),
        ({"over": ["beta=1", "clip=3"]}, "no single setting 'clip'"),
        ({"over": ["beta=0.1..1"]}, "is a range"),
        ({"search": "gird"}, "search: expected 'grid' or 'optuna', got 'gird'"),
        ({"seeds": 0}, "seeds: expected a number greater than or equal to 1, got 0"),
        ({"max_js": -1.0}, "max_js: expected a number greater than 0, got -1"),
        ({"max_js": float("nan")}, "max_js: expected a finite number, got nan"),
        ({"trials": 3}, "a grid has as many points as it lists"),
        ({"trials": 0, "search": "optuna"}, "trials: expected a number greater than or equal to 1, got 0"),
    ):
        with pytest.raises(ConfigError, match=says):
            again(swept, out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_other_settings_in_the_same_folder_are_refused(swept):
    other = CONFIG.with_changes(["model.width=4"])
    with pytest.raises(RunError, match=r"another \w+\.\w+ \("):
        again(swept, config=other)


def test_a_point_that_diverges_is_shown_as_failed(swept, tmp_path):
    _, data, _ = swept
    found = sweep(
        data, config=CONFIG, over=["learning_rate=0.01,1e36"], out=tmp_path / "out", processes=1
    )  # fmt: skip
    said = found.to_dict()
    assert {row["policy"] for row in said["measurements"]} == {"learning_rate=0.01"} == {said["chosen"]}
    (why,) = said["policies"]["learning_rate=1e36"]["failed"].values()
    assert "learning_rate" in why and not said["policies"]["learning_rate=0.01"]["failed"]
    assert "failed" in sweep_tables(found)[0].markdown()


def command(data, out):
    words = ["sweep", data, "--objective", "lpi_rl", "--over", "beta=0.05,1", "--out", out, "--processes", "1"]
    words += ["--epochs", "8", "--device", "cpu"]
    words += ["--set", "model.width=8", "--set", "train.batch_size=16", "--set", "train.learning_rate=0.01"]
    return words


@pytest.mark.slow
def test_a_killed_sweep_continues_to_the_same_table(swept, tmp_path):
    _, data, _ = swept
    quiet = {"env": {**os.environ, "OMP_NUM_THREADS": "1"}, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    words = [sys.executable, "-m", "localpolicy", *map(str, command(data.path, tmp_path / "killed"))]
    killed = subprocess.Popen(words, **quiet)
    halfway = tmp_path / "killed" / "towers"
    deadline = time.time() + 1200
    while not list(halfway.glob("**/checkpoint/step-*.json")) and killed.poll() is None and time.time() < deadline:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL, "it was killed while it trained"
    assert not (tmp_path / "killed" / "sweep.json").exists()
    for out in ("killed", "whole"):
        done = lpi(*command(data.path, tmp_path / out))
        assert done.returncode == 0, done.stderr
        assert ("references first" in done.stderr) == (out == "whole")  # they were done before the kill
    one, other = (json.loads((tmp_path / out / "sweep.json").read_text()) for out in ("killed", "whole"))
    assert one == other
    assert [claim["figure"] for claim in one["claims"]] == [f"validation {one['select']}"]
    assert (tmp_path / "killed" / "sweep.md").read_text() == (tmp_path / "whole" / "sweep.md").read_text()
    for name in ("frontier.svg", "frontier.html"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert "noise floor" in (tmp_path / "whole" / "frontier.svg").read_text()


def test_other_references_are_noticed(swept, tmp_path):
    """What was measured against others is measured again, and trained but once."""
    _, data, _ = swept
    mle = config_of("mle", CONFIG)
    own = [
        train(data, out=tmp_path / f"own-{seed}", config=mle.with_changes([f"train.seed={seed}"])) for seed in (7, 8)
    ]
    against = [run.folder for run in own]
    options = {"over": ["beta=1"], "seeds": 1}
    first = again(swept, out=tmp_path / "one", **options)
    weights = tmp_path / "one" / "runs" / "lpi_rl_weighted-beta=1-seed=0" / "policy.safetensors"
    trained = weights.stat().st_mtime_ns
    second = again(swept, out=tmp_path / "one", against=against, **options)
    fresh = again(swept, out=tmp_path / "two", against=against, **options)
    assert weights.stat().st_mtime_ns == trained
    assert second.to_dict()["measurements"] == fresh.to_dict()["measurements"]
    assert second.to_dict()["floor"] == fresh.to_dict()["floor"]
    assert second.tried[0].js("validation").mean != first.tried[0].js("validation").mean
    # A run of the same name with other weights is another reference.
    train(data, out=against[0], config=mle.with_changes(["train.seed=9"]), force=True)
    third = again(swept, out=tmp_path / "one", against=against, **options)
    anew = again(swept, out=tmp_path / "three", against=against, **options)
    assert third.to_dict()["measurements"] == anew.to_dict()["measurements"]
    assert third.to_dict()["floor"] == anew.to_dict()["floor"]
    assert third.tried[0].js("validation").mean != second.tried[0].js("validation").mean


def test_only_references_that_differ_in_seed_alone_give_a_floor(swept, tmp_path):
    folder, _, _ = swept
    runs = folder / "out" / "runs"
    unlike = [runs / "mle-seed=101", runs / "lpi_rl_weighted-beta=1-seed=1"]
    found = again(swept, over=["beta=1"], seeds=1, out=tmp_path / "unlike", against=unlike)
    assert found.floor is None
    with pytest.raises(ConfigError, match="differ in their seed alone"):
        again(swept, over=["beta=1"], seeds=1, out=tmp_path / "unlike", against=unlike, max_js=0.5)
    same = tmp_path / "same"
    shutil.copytree(runs / "mle-seed=101", same)
    assert again(swept, over=["beta=1"], seeds=1, out=tmp_path / "alike", against=[unlike[0], same]).floor is None
    three = [unlike[0], same, runs / "mle-seed=102"]  # one seed twice is no second seed
    assert again(swept, over=["beta=1"], seeds=1, out=tmp_path / "three", against=three).floor is None


def test_a_folder_of_another_data_set_is_refused(swept, tmp_path):
    """By what was measured there, and by what was trained there."""
    folder, _, _ = swept
    other = write_shop(tmp_path / "other", seed=5)
    shutil.copytree(folder / "out", tmp_path / "out")
    for gone in ("nothing", "figures"):
        shutil.rmtree(tmp_path / "out" / gone, ignore_errors=True)
        with pytest.raises(RunError, match="on other data"):
            sweep(other, config=CONFIG, over=["beta=0.05,1"], out=tmp_path / "out", seeds=2, processes=1)


def test_a_budget_is_held_against_validation(swept):
    _, _, found = swept
    for one in found.tried:
        by_seed = [arm.record["validation"]["divergence"]["js"]["mean"] for arm in one.seeds]
        assert one.js("validation").mean == pytest.approx(np.mean(by_seed))
        assert one.js("validation").mean != pytest.approx(
            np.mean([arm.record["test"]["divergence"]["js"]["mean"] for arm in one.seeds])
        )


def test_a_point_of_which_a_seed_failed_is_never_chosen():
    good, bad = (
        SimpleNamespace(failed=None, selection_score=0.9),
        SimpleNamespace(failed="step 3: nan", selection_score=None),
    )
    half, whole = Pooled("beta=1", [good, bad]), Pooled("", [good, good])
    assert half.selection_score == -math.inf
    assert best_within([half, whole], None) is whole
    assert best_within([half], None) is None


def test_intervals_are_students_over_seeds(swept):
    _, _, found = swept
    one = found.tried[0]
    selection_score = [arm.selection_score for arm in one.seeds]
    error = abs(selection_score[0] - selection_score[1]) / 2
    assert one.selection_se == pytest.approx(error)
    shown = section(found).figure(section(found).policies[0].name, section(found).main)
    reach = 12.706 * error  # Student's with one degree of freedom
    assert (shown.low, shown.high) == pytest.approx(
        (np.mean(selection_score) - reach, np.mean(selection_score) + reach), rel=1e-3
    )
    first = replace(one, seeds=one.seeds[:1])
    single = replace(found, tried=[first], chosen=first)
    alone = section(single).figure(section(single).policies[0].name, section(single).main)
    assert interval_text(alone).endswith("± ?"), "of one seed nobody knows how far another is"


def test_a_lead_must_be_larger_than_seeds_differ(swept):
    _, _, found = swept
    low, high = sorted(found.tried, key=lambda one: one.selection_score)

    def shifted(one, *worths):
        return replace(
            one, seeds=[SimpleNamespace(selection_score=selection_score, failed=None) for selection_score in worths]
        )

    def lead(first, second, **changes):
        tried = [shifted(high, *first), shifted(low, *second)]
        return claims(replace(found, tried=tried, chosen=tried[0], **changes))[-1]

    sure = lead((0.50, 0.60), (0.40, 0.501))
    assert sure.holds and "+0.0995 over" in sure.because and "+0.0931 to +0.1059, paired over 2 seeds" in sure.because
    assert (sure.value, sure.low, sure.high) == pytest.approx((0.0995, 0.0931, 0.1059), abs=1e-4)
    chance = lead((0.50, 0.60), (0.40, 0.59))
    assert chance.holds is False and high.name in chance.claim
    assert lead((0.5,), (0.4,)).holds is None
    alone = replace(found, tried=[high], chosen=high)
    assert claims(alone)[-1].holds is None
    assert found.select in verdict(found) and f"{found.chosen.selection_score:.4f}" in verdict(found)
    none = replace(found, chosen=None, max_js=1e-9)
    assert [one.holds for one in claims(none)] == [False] and verdict(none) == "No point is within JS 1e-09."


@pytest.mark.parametrize("points", [2, 3, 10])
def test_a_lead_is_found_in_five_of_a_hundred_sweeps_of_equal_points_at_most(swept, points):
    """It is the only test of a sweep, whatever their number: picked as the first two, they lie closer together."""
    _, _, found = swept
    rng, leads, draws = np.random.default_rng(0), 0, 600
    for _ in range(draws):
        scores = rng.standard_normal((points, 3)) + rng.standard_normal(3)  # what seeds have in common
        tried = [
            Pooled(f"{each}", [SimpleNamespace(selection_score=score, failed=None) for score in row])
            for each, row in enumerate(scores)
        ]
        leads += replace(found, tried=tried, chosen=best_within(tried)).lead()[1].low > 0
    assert leads / draws < 0.07, "5 % and two standard errors"


def test_a_sweep_of_one_seed_is_drawn(swept, tmp_path):
    pytest.importorskip("altair")
    found = again(swept, over=["beta=0.05,1"], seeds=1)
    page, picture = draw(found, tmp_path)
    assert "± ?" in page.read_text()
    assert picture.read_text().startswith("<svg")


def test_a_search_gets_the_figure_of_each_point(swept, monkeypatch):
    told = {}

    def searched(over, trials, trial):
        assert trials == 2
        told.update({point.name: trial(point) for point in grid(over)})

    monkeypatch.setattr("localpolicy.study.sweep.optuna_search", searched)
    found = again(swept, search="optuna", trials=2)
    assert told == {one.name: one.selection_score for one in swept[2].tried} and len(set(told.values())) == 2
    assert (found.search, found.chosen.name) == ("optuna", max(told, key=told.get))


def test_a_trial_that_cannot_be_trained_teaches_the_search_nothing(monkeypatch):
    optuna = pytest.importorskip("optuna")
    made, create = [], optuna.create_study
    monkeypatch.setattr(optuna, "create_study", lambda **options: made.append(create(**options)) or made[-1])
    tried = []

    def trial(point):
        tried.append(float(dict(point.settings)["objective.beta"]))
        return -math.inf if len(tried) == 2 else tried[-1]

    optuna_search(axes(["beta=0.1..1"]), 4, trial)
    states = [one.state.name for one in made[0].trials]
    assert states == ["COMPLETE", "PRUNED", "COMPLETE", "COMPLETE"]
    assert made[0].best_value == max(tried[:1] + tried[2:])


def test_an_arm_without_its_positions_is_not_measured(swept, tmp_path, monkeypatch):
    def full(scores, path, more):
        raise OSError("no space left on device")

    options = {"over": ["beta=1"], "seeds": 1, "out": tmp_path / "out"}
    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
        patch.setattr("localpolicy.study.measured.save_positions", full)
        again(swept, **options)
    assert not list((tmp_path / "out").rglob("arm.json"))
    assert again(swept, **options).chosen is not None


def test_weights_are_those_of_the_validation_that_was_kept(swept, tmp_path):
    """Of several validations in an epoch one was best: its weights stand with the point."""
    config = CONFIG.with_changes(["train.validate_every=2", "train.epochs=3"])
    found = again(swept, config=config, over=["beta=0.05"], seeds=1, out=tmp_path / "out")
    arm = found.tried[0].seeds[0]
    run = Run(tmp_path / "out" / "runs" / arm.name)
    step = run.manifest["selected"]["step"]
    assert arm.record["run"]["weights"] == next(line["weights"] for line in run.metrics() if line["step"] == step)
    lines = [line["weights"] for line in run.metrics() if line["epoch"] == arm.epoch]
    assert len(lines) > 1, "otherwise this says nothing"


# ---------------------------------------------------------------------- one training, many β

CLOSED = Config.parse(
    {
        "model": {"width": 8},
        "objective": {"name": "lpi_rl", "calibrate_critic": False},
        "train": {"epochs": 1, "batch_size": 16, "learning_rate": 0.01, "device": "cpu"},
    }
)


def test_a_sweep_over_the_dial_trains_its_networks_once(tmp_path, monkeypatch):
    """Three β and a cap: one μ̂ and one critic on top of the references; each run as if it were trained alone."""
    from localpolicy.training.trainer import Trainer

    trained, began = [], Trainer.start.__func__
    monkeypatch.setattr(
        Trainer, "start", classmethod(lambda cls, *a, **k: trained.append(a[1].folder.name) or began(cls, *a, **k))
    )
    data = write_shop(tmp_path / "data")
    out = tmp_path / "out"
    found = sweep(data, config=CLOSED, over=["beta=0.05,0.3,1", "cap=5,10"], out=out, processes=1)
    assert sorted(trained) == ["critic-1", "logging", "mle-seed=101", "mle-seed=102"]
    assert len(found.tried) == 6 and not (out / "towers").exists()
    swept_run = Run(out / "runs" / "lpi_rl-beta=0.3-cap=5-seed=0")
    alone = train(data, out=tmp_path / "alone", config=swept_run.config)
    assert swept_run.manifest["policy_sha256"] == alone.manifest["policy_sha256"]
    assert swept_run.config.objective.beta == 0.3, "the manifest and the config are its own"
    described = [json.loads((run.folder / "policy.json").read_text())["network"] for run in (swept_run, alone)]
    assert described[0] == described[1] and described[0]["beta"] == 0.3 and described[0]["cap"] == 5
    assert len({point.js("validation").mean for point in found.tried}) > 3, (
        "other policies, though of the same networks"
    )
    # A kill before the last arm was measured: it is measured, and nothing stays behind.
    shutil.rmtree(out / "figures" / swept_run.folder.name)
    (out / "towers" / "left over").mkdir(parents=True)
    again = sweep(data, config=CLOSED, over=["beta=0.05,0.3,1", "cap=5,10"], out=out, processes=1)
    assert again.to_dict() == found.to_dict() and not (out / "towers").exists()


def test_what_decides_the_networks_is_trained_for_itself(tmp_path):
    first, second = (CLOSED.objective.model_copy(update=change) for change in ({"beta": 0.1}, {"gamma": 0.9}))
    assert first.undialled() == CLOSED.objective.undialled() != second.undialled()


def test_a_budget_below_the_floor_is_refused_before_anything_is_trained(two_runs, tmp_path):
    against = [two_runs / "mle0", two_runs / "mle1"]
    with pytest.raises(ConfigError, match="below the noise floor"):
        sweep(two_runs / "data", "lpi_rl", over=["beta=1"], out=tmp_path / "sweep", against=against, max_js=1e-9,
              processes=1, config=Config.parse(TINY))  # fmt: skip
    assert not (tmp_path / "sweep" / "runs").exists(), "no point was trained"


def test_without_references_it_says_first_that_two_are_trained(two_runs, tmp_path, caplog):
    with caplog.at_level(logging.INFO), pytest.raises(ConfigError, match="below the noise floor"):
        sweep(two_runs / "data", "lpi_rl", over=["beta=1"], out=tmp_path / "sweep", max_js=1e-9, processes=1,
              config=Config.parse(TINY))  # fmt: skip
    said = [record.getMessage() for record in caplog.records]
    assert "once two mle runs of other seeds are trained" in next(text for text in said if "max-js" in text)


def test_a_sweep_names_the_chosen_runs_folder(two_runs, tmp_path):
    settings = {**TINY, "objective": {"name": "reward_weighted"}}
    found = sweep(two_runs / "data", config=Config.parse(settings), over=["train.learning_rate=0.01"],
                  out=tmp_path / "sweep", against=[two_runs / "mle0", two_runs / "mle1"], processes=1)  # fmt: skip
    assert len(found.runs) == 1 and (found.runs[0] / "policy.safetensors").exists()
    assert found.to_dict()["runs"] == [str(found.runs[0].relative_to(found.out))]
