"""Runs judged: one, several side by side, and before a deployment."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from importlib import import_module

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import typer
from commands import invoked as lpi
from forms import weighted
from measured import scores

from localpolicy.cli.evaluate import compare as compare_verb
from localpolicy.cli.evaluate import evaluate as evaluate_verb
from localpolicy.cli.evaluate import gate as gate_verb
from localpolicy.cli.options import complete
from localpolicy.errors import ConfigError, DataError, LocalPolicyError, RunError
from localpolicy.judge.compare import compare
from localpolicy.judge.gate import gate
from localpolicy.judge.rules import GateRules
from localpolicy.measure.evaluate import evaluate
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.load_candidates import open_data
from localpolicy.measure.position_metrics import ranking
from localpolicy.measure.significance import breakdown
from localpolicy.model.weights import load_weights, save_weights
from localpolicy.report.tables import comparison_table, comparison_tables
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.runtime.files import sealed, sha256
from localpolicy.simulation import StoreConfig, StoreWorld, write_prepared
from localpolicy.training.train import train

app = typer.Typer()
for verb in (evaluate_verb, compare_verb, gate_verb):
    app.command()(complete(verb))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Small runs on one store: as interactions, and as impressions."""
    folder = tmp_path_factory.mktemp("verdict")
    world = StoreWorld(StoreConfig(items=30, categories=3, mean_length=8), seed=0)
    made = {}
    for kind in ("interactions", "impressions"):
        write_prepared(world, folder / kind, sequences=1200, seed=0, interactions=kind == "interactions")
        for name, seed in (("mle", 0), ("mle", 1), ("lpi_rl", 2)):
            settings = {
                "objective": weighted({"name": name}),
                "model": {"width": 8},
                "train": {"epochs": 1, "seed": seed},
            }
            out = folder / f"{kind}_{name}{seed}"
            made[f"{kind}.{name}{seed}"] = train(folder / kind, out=out, config=Config.parse(settings)).folder
    settings = {"data": {"length": 3}, "model": {"width": 8}, "train": {"epochs": 1}}
    made["short"] = train(folder / "interactions", out=folder / "short", config=Config.parse(settings)).folder
    return made


def test_evaluate_has_the_documented_shape(runs, tmp_path):
    result = evaluate(
        runs["interactions.lpi_rl2"],
        against=[runs["interactions.mle0"], runs["interactions.mle1"]],
        out=tmp_path / "out",
    )
    said = json.loads((tmp_path / "out" / "test.json").read_text())
    assert said == json.loads(json.dumps(result.to_dict()))
    for group in ("purchase", "click", "all", "repeat", "new"):
        assert set(said["metrics"][group]["nDCG@20"]) == {"mean", "se", "n", "plain_se"}
    assert {"js", "kl", "floor", "reference"} <= set(said["divergence"])
    assert 0 < said["divergence"]["js"]["mean"] <= math.log(2)
    assert said["divergence"]["floor"]["js"]["mean"] > 0
    assert [one["seed"] for one in said["divergence"]["reference"]] == [0, 1]
    assert said["divergence"]["reference"][0]["epoch"] == 1
    assert said["settings"]["min_history"] == 1 and said["settings"]["split"] == "test"
    assert said["truth"]["se"] > 0, "the data hold their world"
    assert said["settings"]["weights"] == Run(runs["interactions.lpi_rl2"]).manifest["policy_sha256"]
    positions = pq.read_table(tmp_path / "out" / "test.positions.parquet")
    assert positions.num_rows == len(result.scores)
    assert {"rank", "logp", "js:interactions_mle0", "kl:interactions_mle0"} <= set(positions.column_names)
    sequences = pq.read_table(tmp_path / "out" / "test.sequences.parquet")
    assert sequences.num_rows == len(np.unique(result.scores.sequence))


def test_a_broken_policy_is_not_measured(runs, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(runs["interactions.lpi_rl2"], broken)
    weights = load_weights(broken / "policy.safetensors")
    save_weights({name: tensor * math.nan for name, tensor in weights.items()}, broken / "policy.safetensors")
    manifest = json.loads((broken / "manifest.json").read_text())
    manifest["policy_sha256"] = manifest["files"]["policy.safetensors"] = sha256(broken / "policy.safetensors")
    (broken / "manifest.json").write_text(json.dumps(sealed(manifest)))
    with pytest.raises(RunError, match="not finite"):
        evaluate(broken, against=[runs["interactions.mle0"]])


def test_without_references_the_runs_own_logging_head_is_the_reference(runs, tmp_path):
    result = evaluate(runs["interactions.lpi_rl2"], out=tmp_path)
    assert result.divergence is not None
    assert [one.name for one in result.divergence.references] == ["own μ̂ of interactions_lpi_rl2"]
    assert result.divergence.floor_js is None
    alone = evaluate(runs["interactions.mle0"], out=tmp_path)
    assert alone.divergence is None, "an mle run is μ̂: from itself it is nowhere"
    assert alone.to_dict()["divergence"] == {"js": None, "kl": None, "floor": None, "reference": []}


def test_the_dial_is_measured_against_its_own_base(runs, tmp_path):
    near, far = (evaluate(runs["interactions.lpi_rl2"], beta=beta, out=tmp_path).divergence for beta in (1000.0, 0.001))
    assert near is not None and far is not None
    assert near.js.overall.mean < 1e-3 < far.js.overall.mean


def test_impressions_are_estimated_off_policy(runs, tmp_path):
    result = evaluate(runs["impressions.mle0"], out=tmp_path)
    assert result.off_policy is not None
    assert set(result.off_policy.estimates) == {"IPS", "SNIPS", "DM", "DR", "SNDR", "clipped IPS"}
    assert abs(result.off_policy.overlap.mean_weight - 1) < 5 * result.off_policy.overlap.mean_weight_se
    log = result.scores.reward
    assert result.off_policy.logged.value == pytest.approx(log.mean())
    assert evaluate(runs["interactions.mle0"], out=tmp_path).off_policy is None


def test_estimated_propensities_stand_for_logged_ones_where_named(runs, tmp_path):
    result = evaluate(
        runs["interactions.lpi_rl2"],
        against=[runs["interactions.mle0"]],
        propensities="interactions_mle0",
        out=tmp_path,
    )
    assert result.off_policy is not None and result.off_policy.propensities == "interactions_mle0"


def test_data_that_moved_or_changed_is_refused(runs, tmp_path):
    world = StoreWorld(StoreConfig(items=30, categories=3), seed=0)
    write_prepared(world, tmp_path / "other", sequences=50, seed=1, interactions=True)
    elsewhere = evaluate(runs["interactions.mle0"], data=tmp_path / "other", out=tmp_path / "out")
    assert any("was trained on other data" in note for note in elsewhere.settings["notes"])
    with pytest.raises(RunError, match="is not a run"):
        evaluate(tmp_path / "nothing")


def moved_tree(runs, folder):
    """One run and its data, elsewhere; the place they came from is forgotten. The run as its manifest knows it."""
    source = runs["interactions.mle0"]
    for name in ("interactions", source.name):
        shutil.copytree(source.parent / name, folder / name)
    return folder / source.name, json.loads((folder / source.name / "manifest.json").read_text())


def write_where(run, about, **places):
    about["data"] = {**{name: about["data"][name] for name in ("digest", "kind")}, **places}
    (run / "manifest.json").write_text(json.dumps(sealed(about)))


def test_a_run_that_moved_with_its_data_finds_them(runs, tmp_path, monkeypatch):
    run, about = moved_tree(runs, tmp_path / "moved")
    assert about["data"]["from_run"] == "../interactions"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    write_where(run, about, path="gone/data", from_run="../interactions")
    assert open_data(Run(run)).path == tmp_path / "moved" / "interactions"
    write_where(run, about, path="gone/data")  # as older runs say it
    with pytest.raises(RunError, match="was trained on gone/data, which is not there; say where it is with data="):
        open_data(Run(run))
    write_where(run, about, path=str(tmp_path / "moved" / "interactions"))
    assert open_data(Run(run)).path == tmp_path / "moved" / "interactions"


def test_other_data_at_either_place_are_never_taken(runs, tmp_path, monkeypatch):
    run, about = moved_tree(runs, tmp_path / "moved")
    other = runs["interactions.mle0"].parent / "impressions"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for in_the_way in (other, "empty"):
        write_where(run, about, path=str(in_the_way), from_run="../interactions")
        assert open_data(Run(run)).path == tmp_path / "moved" / "interactions"
    write_where(run, about, path="gone", from_run=str(other))
    with pytest.raises(RunError, match="is not the data"):
        open_data(Run(run))


def test_compare_marks_the_best_and_adds_baselines(runs):
    found = compare([runs[f"interactions.{name}"] for name in ("mle0", "mle1", "lpi_rl2")])
    names = [one.name for one in found.evaluations]
    assert names[3:] == ["popularity", "last item", "item-kNN", "ALS", "item mean", "most recent"]
    events = ["purchase.HR@20", "purchase.nDCG@20", "click.HR@20", "click.nDCG@20"]
    assert found.columns == [*events, "reward-weighted.nDCG@20"]
    for column, lead in found.leads.items():
        means = {one.name: one.estimate(column).mean for one in found.evaluations}
        assert means[lead.best] == max(means.values())
        assert lead.test.difference == pytest.approx(means[lead.best] - means[lead.second])
        assert lead.test.holm_p >= lead.test.p
    table = comparison_table(found)
    for place in range(1, 6):
        largest = max(row[place].text for row in table.body)
        assert [row[place].best for row in table.body] == [row[place].text == largest for row in table.body]
    # Seeds of one configuration are a family, other objectives are not.
    family = {one.name: one.family for one in found["interactions_lpi_rl2"].divergence.references}
    assert len(set(family.values())) == 1
    assert found["interactions_lpi_rl2"].divergence.floor_js is not None
    # An mle run is measured against the other seed, never against itself.
    assert [one.name for one in found["interactions_mle0"].divergence.references] == ["interactions_mle1"]
    assert len(found["interactions_lpi_rl2"].divergence.references) == 2
    assert set(found.predicts_truth) >= {"AR@1", "logp"}
    assert all(-1 <= value <= 1 for value in found.predicts_truth.values())
    json.dumps(found.to_dict(), allow_nan=False)


def test_the_mle_runs_with_most_seeds_are_the_references(runs, tmp_path):
    data = Run(runs["interactions.mle0"]).manifest["data"]["path"]
    settings = {"model": {"width": 8, "backbone": "gru"}, "train": {"epochs": 1}}
    other = train(data, out=tmp_path / "gru", config=Config.parse(settings)).folder
    found = compare([other, runs["interactions.mle0"], runs["interactions.mle1"]], baselines=False)
    assert [one.name for one in found["gru"].divergence.references] == ["interactions_mle0", "interactions_mle1"]


def test_gains_over_a_baseline_are_corrected_for_all_tests(runs):
    found = compare([runs["interactions.mle0"], runs["interactions.lpi_rl2"]])
    assert found.baseline == "interactions_mle0" and "interactions_mle0" not in found.gains
    gain = found.gains["item-kNN"]["click.nDCG@20"]
    assert gain.holm_p >= gain.p
    pages = comparison_tables(found, by_count=True)
    assert [page.title.split()[0] for page in pages] == [
        "Policies", "At", "Gain", "purchase", "nDCG@20", "nDCG@20", "Which",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="did you mean 'item-kNN'"):
        compare([runs["interactions.mle0"]], baseline="item-knn")


def test_every_k_is_shown_and_two_are_tested(runs):
    found = compare([runs["interactions.mle0"]])
    assert {column.rpartition(".")[2] for column in found.columns} == {"HR@20", "nDCG@20"}
    (table,) = (page for page in comparison_tables(found) if page.title.startswith("At k"))
    assert list(table.columns[2:]) == ["HR@5", "HR@10", "HR@20", "nDCG@5", "nDCG@10", "nDCG@20"]
    for row in table.body:
        name, group, *figures = (cell.text for cell in row)
        measured = found[name].metrics[group]
        assert figures == [f"{measured[metric].mean:.4f}" for metric in table.columns[2:]]
        assert found[name].values(f"{group}.HR@5")[0].mean() == pytest.approx(float(figures[0]), abs=5e-5)
    asked = compare([runs["interactions.mle0"]], config={"metrics": ("MRR",)}, baselines=False)
    assert {column.rpartition(".")[2] for column in asked.columns} == {"MRR"}
    assert not any(page.title.startswith("At k") for page in comparison_tables(asked))


@pytest.mark.parametrize(
    ("other", "named"), [("impressions.mle0", "was trained on impressions"), ("short", r"data.length: \d+ and 3")]
)
def test_what_cannot_be_compared_is_refused_by_name(runs, other, named):
    with pytest.raises(RunError, match=named):
        compare([runs["interactions.mle0"], runs[other]])


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("foo", "got 'foo' \\(known: all.HR@20, "),
        ("foo.nDCG@20", "got 'foo.nDCG@20' \\(known: all, click, new, purchase, "),
        ("purchas.nDCG@20", "did you mean 'purchase'"),
        ("AR@1", "got 'AR@1'"),
        ("none.HR@20", "got 'none.HR@20'"),
        ("click.nDGC@20", "no metric 'nDGC@20'"),
    ],
)
def test_a_column_that_is_no_figure_is_refused_before_anything_is_measured(runs, monkeypatch, column, message):
    monkeypatch.setattr(import_module("localpolicy.judge.harness"), "scored", None)
    with pytest.raises(ConfigError, match=message):
        compare([runs["impressions.mle0"]], columns=["click.HR@20", column])


def test_a_column_of_another_metric_is_measured(runs):
    found = compare([runs["interactions.mle0"]], columns=["new.HR@5"], config={"metrics": ("nDCG@20",)})
    assert found["popularity"].estimate("new.HR@5").n > 0 and found.columns == ["new.HR@5"]
    assert set(found.leads) == {"new.HR@5"}


def test_a_column_without_positions_is_refused(runs, tmp_path):
    run = runs["interactions.mle0"]
    found = evaluate(run, out=tmp_path).scores
    latest = found.history[found.event == found.events.index("purchase")].max()
    assert found.history.max() > latest, "there are later clicks"
    with pytest.raises(ConfigError, match="got 'purchase.HR@20'"):
        compare([run], columns=["purchase.HR@20"], config={"min_history": int(latest) + 1})


@pytest.mark.parametrize("name", ["gpu", "cuda", "cuda:9", "cuda:x"])
def test_a_device_that_is_not_there_is_refused(runs, tmp_path, name):
    if torch.cuda.is_available() and name == "cuda":
        pytest.skip("it is there")
    run, other = runs["interactions.mle0"], runs["interactions.mle1"]
    for judged in (
        lambda: evaluate(run, device=name, out=tmp_path),
        lambda: compare([run], device=name),
        lambda: gate(run, against=[other], device=name),
    ):
        with pytest.raises(ConfigError, match=f"device: .*'{name}'"):
            judged()


def test_a_run_named_as_a_baseline_is_refused(runs, tmp_path):
    run = tmp_path / "popularity"
    shutil.copytree(runs["interactions.mle0"], run)
    with pytest.raises(RunError, match="called 'popularity'.*rename its folder"):
        compare([run, runs["interactions.mle1"]])
    assert [one.name for one in compare([run], baselines=False).evaluations] == ["popularity"]


def test_names_that_differ_in_marks_alone_are_refused(runs, tmp_path):
    for name in ("a|b", "a_b"):
        shutil.copytree(runs["interactions.mle0"], tmp_path / name)
    with pytest.raises(RunError, match="two runs are called 'a_b'"):
        compare([tmp_path / "a|b", tmp_path / "a_b"])


def test_a_run_of_this_folder_is_named_after_it(runs, tmp_path, monkeypatch):
    for folder in ("monday", "tuesday"):
        shutil.copytree(runs["interactions.mle0"], tmp_path / folder / "mle")
    monkeypatch.chdir(tmp_path / "tuesday")
    compared = compare(["../monday/mle", "mle"], baselines=False)
    assert [evaluation.name for evaluation in compared.evaluations] == ["monday/mle", "tuesday/mle"]


def evaluation_of(name: str, sequence: list[int], rank: list[float]) -> Evaluation:
    made = scores(sequence=sequence, rank=rank)
    return Evaluation(
        name=name, figures=ranking(made, ["HR@1"]), divergence=None, scores=made,
        counts=np.ones(3), settings={},
    )  # fmt: skip


def test_breakdown_averages_over_sequences_first():
    """Sequence 0 has 6 clicks (all hit), 1 and 2 have one (one hit, one missed)."""
    sequence = [0] * 6 + [1, 2]
    good = evaluation_of("good", sequence, [1.0] * 6 + [1.0, 9.0])
    bad = evaluation_of("bad", sequence, [1.0, 1.0, 1.0, 9.0, 9.0, 9.0, 9.0, 9.0])
    few, many = breakdown([bad, good], "click", metric="HR@1")
    assert (few.label, many.label) == ("click ≤ 5", "click 6-10")
    assert few.means["good"].mean == 0.5 and few.means["good"].n == 2
    assert few.means["bad"].mean == 0.0
    assert many.means["bad"].mean == 0.5 and many.means["bad"].n == 1
    assert few.best == many.best == "good"


LENIENT = {
    "min_gain": -1.0, "min_sequences": 2, "baselines": False, "max_event_loss": 1.0, "max_segment_loss": 1.0,
    "reference_fit": False, "overlap": {"max_bias": 10.0},
}  # fmt: skip


def test_two_seeds_of_one_recipe_are_no_verdict(runs):
    found = gate(runs["interactions.mle1"], against=[runs["interactions.mle0"]], rules=GateRules(**LENIENT))
    assert found.answer == "nothing to decide" and not found.deploy and "two seeds of one recipe" in found.sentence
    assert {check.outcome for check in found.checks} == {"not asked"}, "what was measured is shown, and asks nothing"
    result = lpi("gate", runs["interactions.mle1"], "--against", runs["interactions.mle0"])
    assert result.exit_code == 6 and "NOTHING TO DECIDE" in result.stdout


def test_without_propensities_rewards_weigh_the_ranks(runs):
    found = gate(runs["interactions.lpi_rl2"], against=[runs["interactions.mle0"]])
    checks = {check.figure: check for check in found.checks}
    assert found.question.kind == "rewards" and found.metric == "reward-weighted.nDCG@20"
    values, _ = found.evaluation.values(found.metric)
    scores = found.evaluation.scores
    ndcg = np.where(scores.rank <= 20, 1 / np.log2(scores.rank + 1), 0.0)
    assert values.mean() == pytest.approx((ndcg * scores.reward).sum() / scores.reward.sum())
    assert checks["divergence"].outcome == "not asked" and "no budget" in checks["divergence"].because
    assert "budget" not in checks["divergence"].plain + checks["divergence"].claim, "none was set"
    assert checks["value"].outcome == "not asked" and "no propensities" in checks["value"].because
    with pytest.raises(RunError, match="states no propensities"):
        gate(runs["interactions.lpi_rl2"], against=["log"])


def test_each_rule_can_say_no(runs):
    new, deployed, other = (runs[f"interactions.{name}"] for name in ("lpi_rl2", "mle0", "mle1"))

    def failed(against, **rules):
        verdict = gate(new, against=against, rules=GateRules(**{**LENIENT, **rules}))
        return [(check.figure, check.outcome) for check in verdict.checks if check.outcome in ("no", "cannot tell")]

    assert failed([deployed, other]) == []
    assert failed([deployed], max_js=1e-6) == [("divergence", "no")]
    assert failed([deployed], max_floor_ratio=2.0) == [("divergence over floor", "cannot tell")]
    assert failed([deployed, other], max_floor_ratio=1e-6) == [("divergence over floor", "no")]
    assert failed([deployed], min_coverage_ratio=50.0) == [("coverage", "no")]
    with pytest.raises(ConfigError, match="below the noise floor"):
        failed([deployed, other], max_js=1e-6)
    with pytest.raises(ConfigError, match="no figure 'buys.nDCG@20'"):
        failed([deployed], metric="buys.nDCG@20")


def test_a_segment_that_loses_significantly_says_no(runs):
    new, rules = runs["interactions.lpi_rl2"], GateRules(metric="all.nDCG@20")
    found = gate(new, against=[runs["interactions.mle0"]], rules=rules)
    from localpolicy.judge.checks.losses import segment_check

    worse = replace(found.evaluation, scores=replace(found.evaluation.scores, rank=found.deployed.scores.rank.copy()))
    rules = GateRules(min_segment=10)
    assert segment_check(worse, found.deployed, "all.nDCG@20", rules).holds is True
    rank = worse.scores.rank
    rank[worse.scores.repeat] = 30.0
    check = segment_check(worse, found.deployed, "all.nDCG@20", rules)
    assert check.holds is False and "repeat (-" in check.because and "new (" not in check.because
    generous = GateRules(min_segment=10, max_segment_loss=1.0)
    assert segment_check(worse, found.deployed, "all.nDCG@20", generous).holds is True


def test_without_overlap_the_value_is_refused(runs):
    found = gate(
        runs["impressions.lpi_rl2"], against=[runs["impressions.mle0"]], rules=GateRules(overlap={"min_effective": 1.0})
    )
    value = next(check for check in found.checks if check.figure == "value")
    assert "decisions, effective sample" in value.because and value.n
    strict = GateRules(overlap={"min_effective": 1e9})
    refused = gate(runs["impressions.lpi_rl2"], against=[runs["impressions.mle0"]], rules=strict)
    value = next(check for check in refused.checks if check.figure == "value")
    assert refused.checks[0] is value and value.outcome == refused.answer == "cannot tell", "ranks do not step in"
    assert value.needed and {check.outcome for check in refused.checks if check.figure in ("gain", "segments")} == {
        "not asked"
    }


def test_the_verbs_print_and_write_what_the_functions_return(runs, tmp_path):
    new, deployed = runs["interactions.lpi_rl2"], runs["interactions.mle0"]
    result = lpi("evaluate", new, "--against", deployed, "--json", tmp_path / "e.json", "--out", tmp_path / "e")
    assert result.exit_code == 0 and "nDCG@20" in result.stdout
    assert json.loads((tmp_path / "e.json").read_text())["settings"]["policy"] == "interactions_lpi_rl2"
    result = lpi(
        "compare", new, deployed, "--markdown", tmp_path / "c.md", "--latex", tmp_path / "c.tex", "--breakdown"
    )
    assert result.exit_code == 0 and "item-kNN" in result.stdout
    assert "| item-kNN |" in (tmp_path / "c.md").read_text()
    assert r"\begin{tabular}" in (tmp_path / "c.tex").read_text()
    lenient = json.dumps(LENIENT)
    (tmp_path / "rules.yaml").write_text(lenient)
    arguments = ("gate", new, "--against", deployed, "--rules", tmp_path / "rules.yaml", "--json", tmp_path / "g.json")
    result = lpi(*arguments)
    assert result.exit_code == 7 and "TEST ONLINE" in result.stdout
    (tmp_path / "rules.yaml").write_text(lenient.replace("-1.0", "1.0"))
    assert lpi(*arguments).exit_code == 3
    assert json.loads((tmp_path / "g.json").read_text())["deploy"] is False
    (tmp_path / "rules.yaml").write_text("min_gian: 1\n")
    with pytest.raises(LocalPolicyError, match="did you mean 'min_gain'"):
        lpi(*arguments)


def test_data_that_were_altered_are_not_measured_on(runs, tmp_path):
    run, _ = moved_tree(runs, tmp_path / "moved")
    path = tmp_path / "moved" / "interactions" / "test" / "item.npy"
    content = bytearray(path.read_bytes())
    content[-4] ^= 1  # one item is another now; the file is as long as before
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"item\.npy was altered"):
        evaluate(run, data=tmp_path / "moved" / "interactions")
