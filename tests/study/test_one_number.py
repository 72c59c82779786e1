"""One number, one path: every verb on one small study shows each figure with the same value."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from commands import lpi
from page_tree import cells, parse, specs
from shop_logs import from_markdown, measured, write_shop

import localpolicy as lp
from localpolicy.cli.evaluate import EXIT
from localpolicy.judge import claims
from localpolicy.judge.rules import GateRules
from localpolicy.judge.verdict import Gate
from localpolicy.measure.divergence import beyond_floor, times_floor, two_digits
from localpolicy.measure.estimate import Interval, Measurement, mean_estimate
from localpolicy.measure.evaluation import as_arrow
from localpolicy.measure.number_text import fixed
from localpolicy.report.comparison import comparison_section
from localpolicy.report.comparison_headline import comparison_headline
from localpolicy.report.contents import PolicyInfo, Section
from localpolicy.report.gate import gate_headline
from localpolicy.report.go import as_judged
from localpolicy.reproduction.data_sets import DataSet
from localpolicy.reproduction.recipe import METRICS, Recipe
from localpolicy.reproduction.table3 import main_table
from localpolicy.reproduction.tables import label_of, table3
from localpolicy.study.arms import Study
from localpolicy.study.measured import REFERENCE_SEEDS
from localpolicy.worlds import demo
from localpolicy.worlds.loop import loop
from localpolicy.worlds.loop_page import tables_of, write_loop
from localpolicy.worlds.scenarios import loop_config

SEQUENCES, LENGTH, ITEMS = 240, 5, 12
ANSWERS = ("reward per answer", "worth and number of answers")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Three μ̂ that differ in their seed alone, and LPI, on a log where purchases come second in the alphabet."""
    folder = tmp_path_factory.mktemp("study")
    rng = np.random.default_rng(0)
    items = rng.integers(0, ITEMS, (SEQUENCES, LENGTH))
    bought = rng.random(items.size) < np.linspace(0.05, 0.6, ITEMS)[items.ravel()]
    log = pd.DataFrame(
        {
            "sequence_id": np.repeat(np.arange(SEQUENCES), LENGTH),
            "item_id": items.ravel(),
            "event": np.where(bought, "purchase", "click"),
            "timestamp": np.arange(items.size),
        }
    )
    rewards = {"purchase": 1.0, "click": 0.2}
    log.to_csv(folder / "log.csv", index=False)
    data = lp.prepare(log, out=folder / "data", rewards=rewards, validation=0.2, test=0.4)

    def train(name: str, objective: str, seed: int, *changes: str):
        settings = ["model.width=8", "data.length=5", "train.device=cpu", "train.epochs=2", "train.batch_size=32"]
        config = lp.configure(changes=[f"objective.name={objective}", f"train.seed={seed}", *settings, *changes])
        return lp.train(data, out=folder / name, config=config).folder

    mle = [train(f"mle-{seed}", "mle", seed) for seed in range(3)]
    return {"data": data, "mle": mle, "lpi": train("lpi", "lpi_rl_weighted", 9, "objective.beta=0.2"), "folder": folder}


@pytest.fixture(scope="module")
def shown(study):
    """Output of each verb."""
    mle, lpi = study["mle"], study["lpi"]
    return {
        "evaluate": lp.evaluate(lpi, against=mle),
        "compare": lp.compare([*mle, lpi], baselines=False),
        "gate": lp.gate(lpi, against=mle),
        "sweep": lp.sweep(
            study["data"], "lpi_rl_weighted", over={"beta": [0.2]}, against=mle, out=study["folder"] / "sweep",
            processes=1, config=lp.configure(changes=["model.width=8", "data.length=5", "train.device=cpu",
                                                      "train.epochs=1", "train.batch_size=32",
                                                      "objective.name=lpi_rl_weighted"]),
        ),
    }  # fmt: skip


def test_the_noise_floor_is_one_number(shown):
    """Of three estimates, so that the largest pair is not the mean over pairs."""
    floor = shown["evaluate"].divergence.floor_js.overall
    pairs = [pair.mean for pair in shown["evaluate"].divergence.floor_js.by_name.values()]
    assert len(pairs) == 3 and floor.mean == pytest.approx(np.mean(pairs)) and max(pairs) > 1.01 * floor.mean
    assert shown["compare"].floor == pytest.approx(floor, rel=1e-5)
    assert shown["gate"].evaluation.divergence.floor_js.overall == pytest.approx(floor, rel=1e-5)
    assert shown["sweep"].floor["test"] == pytest.approx(floor, rel=1e-5)
    reason = next(check.because for check in shown["gate"].checks if check.figure == "divergence")
    assert float(two_digits(floor.mean)) == float(f"{floor.mean:.1e}") and two_digits(0.000062) == "0.000062"
    assert f"floor {two_digits(floor.mean)};" in reason
    assert f"noise floor {two_digits(floor.mean)}" in shown["evaluate"].summary()
    assert f"(noise floor {two_digits(floor.mean)})" in " ".join(str(shown["compare"]).split())
    assert f"differ by {two_digits(floor.mean)}:" in gate_headline(shown["gate"]).numbers[-1].meaning


def test_a_comparison_has_one_noise_floor_whoever_measured_its_pairs(shown, study):
    """Before: an evaluation had the floor of its own references, and the comparison that of all pairs."""
    mle, lpi = study["mle"], study["lpi"]
    found = lp.compare([mle[0], lpi], against=mle[1:], baselines=False)
    told, floor = found.to_dict(), shown["evaluate"].divergence.floor_js.overall.mean
    assert told["floor"]["mean"] == pytest.approx(floor, rel=1e-5), "of all three pairs"
    for name, policy in told["policies"].items():
        said, js = policy["divergence"]["floor"], policy["divergence"]["js"]["mean"]
        assert said["js"]["mean"] == found[name].row("noise floor").mean == told["floor"]["mean"]
        assert said["ratio"] == times_floor(found[name].divergence.js.overall, found.floor)
        assert said["ratio"] == pytest.approx(js / floor, rel=1e-5) and len(said["js"]["by_reference"]) == 3


def test_of_views_and_purchases_the_page_leaves_the_answer_to_the_gate(shown):
    comparison = shown["compare"]
    answer = comparison_headline(comparison, comparison_section(comparison, samples=False))
    assert comparison.question == shown["gate"].question and comparison.question.kind == "rewards"
    assert "rank what is worth most" in answer.verdict or "ranks what is worth most" in answer.verdict
    assert answer.verdict.endswith("whether to deploy it is for the gate to say.")
    assert "lpi gate" in answer.next_step


def test_the_long_table_holds_what_every_result_shows(shown):
    """One row per policy, group and figure; the values per position behind each by its key."""
    comparison = shown["compare"]
    table = as_arrow(comparison.measurements)
    rows = table.to_pylist()
    keys = [(row["policy"], row["group"], row["figure"]) for row in rows]
    assert len(set(keys)) == len(keys) and {row["split"] for row in rows if row["figure"] != "true J"} == {"test"}
    assert {row["policy"]: row["seed"] for row in rows} == {"mle-0": 0, "mle-1": 1, "mle-2": 2, "lpi": 9}
    for evaluation in comparison.evaluations:
        for figure in (*comparison.columns, "AR@1", "logp", "entropy", "JS"):
            row, found = evaluation.row(figure), mean_estimate(*evaluation.values(figure))
            assert (row.mean, row.se, row.n) == pytest.approx((found.mean, found.se, found.n))
            assert row.low <= row.mean <= row.high
    assert comparison["lpi"].row("noise floor").mean == pytest.approx(comparison.floor.mean)
    assert comparison["lpi"].row("coverage@20").mean == comparison["lpi"].coverage
    assert shown["evaluate"].to_arrow().column_names == table.column_names


def test_a_distance_and_its_multiple_of_the_floor_are_one_number(shown):
    evaluation, comparison = shown["evaluate"], shown["compare"]
    js, floor = evaluation.divergence.js.overall, comparison.floor
    assert comparison["lpi"].divergence.js.overall == pytest.approx(js, rel=1e-5)
    assert evaluation.divergence.above_floor == pytest.approx(times_floor(js, floor), rel=1e-5)
    told = {
        beyond_floor(Interval.from_estimate(each), Interval.from_estimate(known))
        for each in (js, comparison["lpi"].divergence.js.overall)
        for known in (floor, evaluation.divergence.floor_js.overall, shown["sweep"].floor["test"])
    }
    assert len(told) == 1


def test_the_deciding_figure_is_one_figure(shown):
    """nDCG of all events, at the prices of their rewards."""
    figure = "reward-weighted.nDCG@20"
    assert {shown["evaluate"].main, shown["compare"].main, shown["gate"].metric} == {figure}
    value = shown["evaluate"].estimate(figure).mean
    assert f"{figure} {value:.4f}" in shown["evaluate"].summary()
    assert f"lpi {value:.4f}" in shown["compare"].summary()
    reason = next(check.because for check in shown["gate"].checks if check.figure == "gain")
    assert f"-> {value:.4f}" in reason


def test_pages_and_json_show_what_the_results_hold(shown, tmp_path, monkeypatch):
    monkeypatch.setattr("localpolicy.report.page.library", lambda: "/* the charting library */")
    comparison = shown["compare"]
    page = parse(comparison.to_html(tmp_path / "page.html"))
    drawn = specs(page)["s1-frontier"]["datasets"]
    assert drawn["floor"][0]["x"] == comparison.floor.mean
    said = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert said["floor"]["mean"] == comparison.floor.mean
    by_name = {point["policy"]: point for point in drawn["points"]}
    for name, policy in said["policies"].items():
        assert by_name[name]["y"] == policy["metrics"]["reward-weighted"]["nDCG@20"]["mean"], "the figure that decides"
        assert by_name[name]["x"] == policy["divergence"]["js"]["mean"]


def test_the_interval_of_a_decision_is_that_decisions(shown):
    comparison = shown["compare"]
    tests = [gain for gains in comparison.gains.values() for gain in gains.values()]
    tests += [lead.test for lead in comparison.leads.values()]
    tests += [bucket.test for event in comparison.events for bucket in comparison.breakdown(event) if bucket.test]
    for test in tests:
        assert (test.holm_p < 0.05) == (test.low > 0 or test.high < 0) == bool(test.stars)


def test_the_page_of_go_draws_the_figure_that_decided():
    """The gate's own estimator with the gate's own interval, or the gate's own metric.

    Before: where one estimate of the log had no value, the nDCG of all was drawn under "Deploy", popularity highest.
    """
    columns = {"click.nDCG@20": "click nDCG@20", "AR@1": "AR@1"}
    shown = {"SNIPS": Interval(0.3, 0.2, 0.5), "DR": Interval(0.4, 0.1, 0.6), "click.nDCG@20": Interval(0.5, 0.4, 0.6)}
    rows = [Measurement.of("lpi", name, each) for name, each in shown.items()]
    policies = [PolicyInfo("lpi", "lpi_rl"), PolicyInfo("refused", "mle")]
    section = Section("", "", policies, rows, columns=columns, main="AR@1")
    asked = [("value", "snips", "SNIPS"), ("value", "dr", "DR"), ("gain", "snips", "click.nDCG@20")]
    for name, estimator, figure in asked:
        rules, of = GateRules(estimator=estimator), SimpleNamespace(name="lpi")
        verdict = Gate([claims.check(name, "yes", "", plain="it is")], of, None, rules, metric="click.nDCG@20")
        drawn = as_judged(section, verdict)
        assert drawn.main == figure and drawn.figure("lpi", drawn.main) == shown[figure]
        assert drawn.said(figure) == columns.get(figure, "value (estimated reward per position)")
    missing = as_judged(section, replace(verdict, metric="purchase.nDCG@20"))
    assert missing.main == "AR@1", "the comparison has no such figure"


def leaves(said: dict, path: str = "") -> dict[str, float]:
    """Every number of a JSON file by the path to it."""
    found = {}
    for name, inner in said.items():
        if isinstance(inner, dict):
            found |= leaves(inner, f"{path}/{name}")
        elif isinstance(inner, int | float) and not isinstance(inner, bool):
            found[f"{path}/{name}"] = inner
    return found


def test_a_sweep_shows_of_its_policy_what_evaluate_and_compare_show(shown, study):
    found = shown["sweep"]
    alone = lp.evaluate(found.runs[0], against=study["mle"])
    beside = lp.compare([*study["mle"], found.runs[0]], baselines=False)[alone.name]
    numbers = ("mean", "se", "low", "high", "n")
    evaluated, compared = ({(row.group, row.figure): row for row in each.rows} for each in (alone, beside))
    swept = [row for row in found.measurements if row.split == "test"]
    assert len(swept) >= 2 * 19 and {row.seed for row in swept} == {None, 0}
    for row in swept:
        for other in (evaluated[row.group, row.figure], compared[row.group, row.figure]):
            for name in numbers:
                assert getattr(row, name) == pytest.approx(getattr(other, name), rel=1e-4, abs=1e-6), (row, name)


def test_go_and_the_verbs_it_is_made_of_agree_on_terminal_json_and_page(study, tmp_path, monkeypatch):
    """Each figure equal wherever it appears: `go`, `gate`, `evaluate` and `compare` of the same runs."""
    monkeypatch.setattr("localpolicy.report.page.library", lambda: "/* the charting library */")
    monkeypatch.setattr("localpolicy.runtime.processes.cores", lambda: 1)
    small = ("train.epochs=1", "model.width=8", "train.batch_size=64", "train.device=cpu")
    rewards = ("--rewards", "purchase=1.0,click=0.2", "--yes", "--why")
    done = lpi(
        "go", study["folder"] / "log.csv", "--out", tmp_path / "go", *rewards, *(w for s in small for w in ("--set", s))
    )
    told = json.loads((tmp_path / "go" / "verdict.json").read_text())
    first, second, improved = (tmp_path / "go" / "runs" / name for name in ("mle-seed-101", "mle-seed-102", "improved"))
    against = ("--against", first, "--against", second)
    lpi("gate", improved, *against, "--json", tmp_path / "gate.json")
    lpi("evaluate", improved, *against, "--json", tmp_path / "evaluate.json")
    lpi("compare", first, second, improved, "--json", tmp_path / "compare.json")
    gate, evaluate, compare = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("gate", "evaluate", "compare")
    )
    assert gate["checks"] == told["checks"] and gate["answer"] == told["answer"]
    assert gate["notes"] == compare["notes"] == told["notes"] and "is made of mle-seed-101" in gate["notes"][0]
    assert not [claim for claim in compare["claims"] if claim["figure"] == "settings"], "that is how it is made"
    assert done.returncode == EXIT[told["answer"]], done.stderr
    of_compare = compare["policies"]["improved"]
    for part, least in (("metrics", 40), ("divergence", 5)):
        everywhere = [leaves(each[part]) for each in (told["evaluation"], gate["evaluation"], evaluate, of_compare)]
        common = set.intersection(*map(set, everywhere))
        assert len(common) >= least
        for name in common:
            assert [one[name] for one in everywhere] == pytest.approx([everywhere[0][name]] * 4, rel=1e-4, abs=1e-6), (
                name
            )
    terminal = " ".join(done.stdout.split())
    for check in told["checks"]:
        assert " ".join(check["because"].split()) in terminal, "the terminal says what the file says"
    page = parse(tmp_path / "go" / "report.html")
    drawn = specs(page)["s1-frontier"]["datasets"]
    points = {point["policy"]: point for point in drawn["points"]}
    assert drawn["floor"][0]["x"] == pytest.approx(compare["floor"]["mean"], rel=1e-4)
    assert gate["figures"] == told["figures"] and {row["figure"] for row in told["figures"]} == {*ANSWERS}
    figure = told["decided_by"] if told["decided_by"] in ANSWERS else ANSWERS[0]
    decided = {row["policy"]: row["mean"] for row in told["figures"] if row["figure"] == figure}
    assert set(points) == {"improved", "mle-seed-101"} | (decided.keys() & compare["policies"].keys())
    for name, point in points.items():
        assert point["y"] == pytest.approx(decided[name], rel=1e-4), name
        assert point["x"] == pytest.approx(compare["policies"][name]["divergence"]["js"]["mean"], rel=1e-4), name


def close(value: float) -> object:
    return pytest.approx(value, rel=1e-4, abs=1e-6)


def values(page, caption: str) -> dict[str, dict[str, float]]:
    """The numbers behind the cells of a page's table."""
    return {
        name: {title: float(cell.attributes["data-value"]) for title, cell in row.items() if title in SHOWN}
        for name, row in cells(page, caption).items()
        if name != "the logging policy μ"
    }


SHOWN = {"J(π)": "true J", "gain": "true gain", "JS": "JS", "KL": "KL", "entropy": "entropy"}


def test_a_loop_shows_each_figure_once(tmp_path, monkeypatch):
    """File, page, terminal and key numbers, of the last round over seeds."""
    monkeypatch.setattr("localpolicy.report.page.library", lambda: "/* the charting library */")
    small = {"sequences": 300, "items": 12, "dials": ("contexts=15",), "changes": ("train.epochs=1", "model.width=8")}
    config = loop_config("bandit", objectives=("mle", "reward_weighted"), betas=(), seeds=(0, 1), **small)
    found = loop(config, out=tmp_path / "loop", rounds=2, processes=1)
    contents = write_loop(found, tmp_path / "loop")
    said = json.loads((tmp_path / "loop" / "loop.json").read_text())
    rows = {(row["policy"], row["figure"], row["round"]): row for row in said["measurements"] if row["seed"] is None}
    page, by_round, ends = parse(tmp_path / "loop" / "report.html"), *tables_of(found)
    for number, (name, drawn) in enumerate(values(page, "s1-comparison").items()):
        assert drawn == {title: rows[name, figure, 2]["mean"] for title, figure in SHOWN.items()}
        printed = by_round.plain()[number] + ends.plain()[number]
        truth = [rows[name, "true J", place]["mean"] for place in range(3)]
        assert [cell.split(" ")[0] for cell in printed[1:4]] == [f"{mean:.4f}" for mean in truth]
        assert printed[5].startswith(fixed(rows[name, "true gain", 2]["mean"], signed=True))
        assert printed[7].startswith(f"{rows[name, 'JS', 2]['mean']:.3f}")
        (key,) = (number for number in contents.numbers if number.name == f"true reward of {name}")
        assert key.value == f"{truth[-1] / truth[0] - 1:+.0%}" and f"{truth[0]:.4f} → {truth[-1]:.4f}" in key.meaning


def test_a_demo_shows_of_its_policies_what_evaluate_shows(tmp_path, monkeypatch):
    monkeypatch.setattr("localpolicy.report.page.library", lambda: "/* the charting library */")
    monkeypatch.setattr("localpolicy.runtime.processes.cores", lambda: 1)
    scenario = demo.SCENARIOS["bandit"]
    settings = {"data": {"length": 4}, "model": {"width": 8}, "train": {"epochs": 1}}
    few = replace(scenario, sequences=600, items=20, settings=settings, arms=(*scenario.arms[:2], scenario.arms[-1]))
    monkeypatch.setattr(demo, "SCENARIOS", {"bandit": few})
    contents = demo.demo(out=tmp_path / "demo")
    (section,) = json.loads((tmp_path / "demo" / "demo.json").read_text())["sections"]
    rows = {(row["policy"], row["group"], row["figure"]): row for row in section["measurements"]}
    page = values(parse(tmp_path / "demo" / "report.html"), "s1-comparison")
    printed = {row[0]: row for row in demo.demo_table(contents.sections[0]).plain()}
    runs = {each["name"]: tmp_path / "demo" / each["run"] for each in section["policies"]}
    betas = {each["name"]: each["beta"] for each in section["policies"]}
    second = tmp_path / "demo" / "bandit" / "runs" / few.arms[1].folder
    for name, run in runs.items():
        told = {title: rows[name, "all", figure]["mean"] for title, figure in SHOWN.items()}
        assert page[name] == told
        assert printed[name][1] == f"{told['J(π)']:.4f}" and printed[name][2].startswith(
            fixed(told["gain"], signed=True)
        )
        alone = lp.evaluate(run, against=[second], world=tmp_path / "demo" / "bandit" / "log", beta=betas[name])
        assert (alone.truth.value, alone.truth.gain) == (close(told["J(π)"]), close(told["gain"]))
        assert (alone.row("JS").mean, alone.row("entropy").mean) == (close(told["JS"]), close(told["entropy"]))
        ranked = [row for (policy, group, _), row in rows.items() if policy == name and group in alone.events]
        assert len(ranked) >= 6
        for row in ranked:
            assert alone.row(f"{row['group']}.{row['figure']}").mean == close(row["mean"]), row
    best = max((each["name"] for each in section["policies"] if each["objective"].startswith("lpi")),
               key=lambda name: rows[name, "all", "true gain"]["mean"])  # fmt: skip
    share = rows[best, "all", "true gain"]["mean"] / section["logging_value"]["mean"]
    assert contents.numbers[0].value == f"{share:+.0%}"


def test_a_table_of_the_paper_shows_of_a_policy_what_evaluate_shows(tmp_path):
    small = ("train.epochs=1", "model.width=8", "train.batch_size=32")
    recipe = Recipe(
        betas=(1.0,), lambdas=(1.0,), rates=(), seeds=1, policies=("mle", "sqn"), changes=small, device="cpu"
    )
    data = DataSet("shop", write_shop(tmp_path / "data"), "retailrocket", original=False)
    table = table3(data, Study(data.data, tmp_path / "out", processes=1), recipe)
    references = [tmp_path / "out" / "runs" / f"mle-seed={seed}" for seed in REFERENCE_SEEDS]
    content, printed = table.to_dict(), from_markdown(main_table(table).markdown(), "Table 3: shop")
    for row in table.rows:
        alone = lp.evaluate(tmp_path / "out" / "runs" / row.seeds[0].name, against=references)
        shown = dict(zip([*METRICS, "JS"], printed[label_of(row)], strict=False))
        for name in (*METRICS, "JS"):
            assert measured(content, row.key, name) == close(alone.row(name).mean), name
            assert shown[name].rstrip("*") == f"{alone.row(name).mean:.3f}", name
    assert table.floor["test"].mean == close(alone.divergence.floor_js.overall.mean)
