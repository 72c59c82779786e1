"""Runs judged: one, several side by side, and before a deployment."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import typer
from measured import scores
from typer.testing import CliRunner

from localpolicy.cli.compare import compare as compare_verb
from localpolicy.cli.evaluate import evaluate as evaluate_verb
from localpolicy.cli.gate import gate as gate_verb
from localpolicy.evaluate.breakdown import breakdown
from localpolicy.evaluate.evaluation import Evaluation
from localpolicy.evaluate.summary import ranking
from localpolicy.simulate import StoreConfig, StoreWorld, write_prepared
from localpolicy.train.config import Config
from localpolicy.train.loop import train
from localpolicy.train.run import Run
from localpolicy.verdict import GateRules, compare, evaluate, gate
from localpolicy.verdict.comparison_pages import comparison_pages
from localpolicy.vocabulary.errors import ConfigError, LocalPolicyError, RunError

app = typer.Typer()
for verb in (evaluate_verb, compare_verb, gate_verb):
    app.command()(verb)


def lpi(*words: object) -> object:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Small runs on one store: as interactions, and as impressions."""
    folder = tmp_path_factory.mktemp("verdict")
    world = StoreWorld(StoreConfig(items=30, categories=3, mean_length=8), seed=0)
    made = {}
    for kind in ("interactions", "impressions"):
        write_prepared(world, folder / kind, sequences=1200, seed=0, interactions=kind == "interactions")
        for name, seed in (("mle", 0), ("mle", 1), ("lpi_rl", 2)):
            settings = {"objective": {"name": name}, "model": {"width": 8}, "train": {"epochs": 1, "seed": seed}}
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
    assert said == json.loads(json.dumps(result.json()))
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


def test_without_references_the_runs_own_logging_head_is_the_reference(runs, tmp_path):
    result = evaluate(runs["interactions.lpi_rl2"], out=tmp_path)
    assert result.divergence is not None
    assert [one.name for one in result.divergence.references] == ["own μ̂ of interactions_lpi_rl2"]
    assert result.divergence.floor_js is None
    alone = evaluate(runs["interactions.mle0"], out=tmp_path)
    assert alone.divergence is None, "an mle run is μ̂: from itself it is nowhere"
    assert alone.json()["divergence"] == {"js": None, "kl": None, "floor": None, "reference": []}


def test_the_dial_is_measured_against_its_own_base(runs, tmp_path):
    near, far = (evaluate(runs["interactions.lpi_rl2"], beta=beta, out=tmp_path).divergence for beta in (1000.0, 0.001))
    assert near is not None and far is not None
    assert near.js.overall.mean < 1e-3 < far.js.overall.mean


def test_impressions_are_estimated_off_policy(runs, tmp_path):
    result = evaluate(runs["impressions.mle0"], out=tmp_path)
    assert result.off_policy is not None
    assert set(result.off_policy.estimates) == {"IPS", "SNIPS", "DM", "DR", "clipped IPS"}
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
    with pytest.raises(RunError, match="is not the data"):
        evaluate(runs["interactions.mle0"], data=tmp_path / "other")
    with pytest.raises(RunError, match="is not a run"):
        evaluate(tmp_path / "nothing")


def test_compare_marks_the_best_and_adds_baselines(runs):
    found = compare([runs[f"interactions.{name}"] for name in ("mle0", "mle1", "lpi_rl2")])
    names = [one.name for one in found.evaluations]
    assert names[3:] == ["popularity", "last item", "item-kNN"]
    assert found.columns == ["purchase.HR@20", "purchase.nDCG@20", "click.HR@20", "click.nDCG@20"]
    for column, lead in found.leads.items():
        means = {one.name: one.figure(column).mean for one in found.evaluations}
        assert means[lead.best] == max(means.values())
        assert lead.test.difference == pytest.approx(means[lead.best] - means[lead.second])
        assert lead.holm_p >= lead.test.p
    table = found.table()
    for place in range(1, 5):
        largest = max(row[place].text for row in table.rows)
        assert [row[place].best for row in table.rows] == [row[place].text == largest for row in table.rows]
    # Seeds of one configuration are a family, other objectives are not.
    family = {one.name: one.family for one in found["interactions_lpi_rl2"].divergence.references}
    assert len(set(family.values())) == 1
    assert found["interactions_lpi_rl2"].divergence.floor_js is not None
    # An mle run is measured against the other seed, never against itself.
    assert [one.name for one in found["interactions_mle0"].divergence.references] == ["interactions_mle1"]
    assert len(found["interactions_lpi_rl2"].divergence.references) == 2
    assert set(found.predicts_truth) >= {"AR@1", "logp"}
    assert all(-1 <= value <= 1 for value in found.predicts_truth.values())
    json.dumps(found.json(), allow_nan=False)


def test_the_mle_runs_with_most_seeds_are_the_references(runs, tmp_path):
    data = Run(runs["interactions.mle0"]).manifest["data"]["path"]
    settings = {"model": {"width": 8, "backbone": "gru"}, "train": {"epochs": 1}}
    other = train(data, out=tmp_path / "gru", config=Config.parse(settings)).folder
    found = compare([other, runs["interactions.mle0"], runs["interactions.mle1"]], baselines=False)
    assert [one.name for one in found["gru"].divergence.references] == ["interactions_mle0", "interactions_mle1"]


def test_gains_over_a_baseline_are_corrected_for_all_tests(runs):
    found = compare([runs["interactions.mle0"], runs["interactions.lpi_rl2"]])
    gains = found.against("interactions_mle0")
    assert "interactions_mle0" not in gains
    test, corrected = gains["item-kNN"]["click.nDCG@20"]
    assert corrected >= test.p
    pages = comparison_pages(found, baseline="interactions_mle0", by_count=True)
    assert [page.title.split()[0] for page in pages] == ["Policies", "Gain", "nDCG@20", "nDCG@20", "Which"]
    with pytest.raises(ConfigError, match="did you mean 'item-kNN'"):
        comparison_pages(found, baseline="item-knn")


@pytest.mark.parametrize(("other", "named"), [("impressions.mle0", "data"), ("short", "data.length: 20 and 3")])
def test_what_cannot_be_compared_is_refused_by_name(runs, other, named):
    with pytest.raises(RunError, match=named):
        compare([runs["interactions.mle0"], runs[other]])


def evaluation_of(name: str, sequence: list[int], rank: list[float]) -> Evaluation:
    made = scores(sequence=sequence, rank=rank)
    return Evaluation(
        name=name, metrics=ranking(made, ["HR@1"]), rewards={}, policy={}, divergence=None, scores=made,
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


def test_a_copy_of_the_deployed_policy_gains_nothing(runs):
    found = gate(runs["interactions.mle1"], against=[runs["interactions.mle0"]])
    assert not found.deploy
    checks = {check.name: check for check in found.checks}
    assert checks["gain"].passed is False
    assert checks["divergence"].passed is None and "no budget" in checks["divergence"].reason
    assert checks["value"].passed is None and "no propensities" in checks["value"].reason
    willing = gate(runs["interactions.mle1"], against=[runs["interactions.mle0"]], rules=GateRules(min_gain=-1.0))
    assert willing.deploy


def test_each_rule_can_say_no(runs):
    new, deployed, other = (runs[f"interactions.{name}"] for name in ("lpi_rl2", "mle0", "mle1"))

    def failed(against, **rules):
        verdict = gate(new, against=against, rules=GateRules(min_gain=-1.0, **rules))
        return [check.name for check in verdict.checks if check.passed is False]

    assert failed([deployed, other]) == []
    assert failed([deployed], max_js=1e-6) == ["divergence"]
    assert failed([deployed], max_floor_ratio=2.0) == ["divergence over floor"]
    assert failed([deployed, other], max_floor_ratio=1e-6) == ["divergence over floor"]
    assert failed([deployed], min_coverage_ratio=50.0) == ["coverage"]
    assert failed([deployed], require_value_gain=True) == ["value"]
    with pytest.raises(ConfigError, match="below the noise floor"):
        failed([deployed, other], max_js=1e-6)
    with pytest.raises(ConfigError, match="no figure 'buys.nDCG@20'"):
        failed([deployed], metric="buys.nDCG@20")


def test_a_segment_that_surely_loses_says_no(runs):
    found = gate(runs["interactions.mle1"], against=[runs["interactions.mle0"]], rules=GateRules(metric="all.nDCG@20"))
    from localpolicy.verdict.gate import segment_check

    worse = replace(found.evaluation, scores=replace(found.evaluation.scores, rank=found.deployed.scores.rank.copy()))
    rules = GateRules(min_segment=10)
    assert segment_check(worse, found.deployed, "all.nDCG@20", rules).passed is True
    rank = worse.scores.rank
    rank[worse.scores.repeat] = 30.0
    check = segment_check(worse, found.deployed, "all.nDCG@20", rules)
    assert check.passed is False and "repeat (-" in check.reason and "new (" not in check.reason
    generous = GateRules(min_segment=10, max_segment_loss=1.0)
    assert segment_check(worse, found.deployed, "all.nDCG@20", generous).passed is True


def test_a_sure_loss_by_propensities_says_no(runs):
    found = gate(
        runs["impressions.lpi_rl2"], against=[runs["impressions.mle0"]], rules=GateRules(overlap={"min_effective": 1.0})
    )
    value = next(check for check in found.checks if check.name == "value")
    assert "effective decisions" in value.reason
    strict = GateRules(overlap={"min_effective": 1e9})
    refused = gate(runs["impressions.lpi_rl2"], against=[runs["impressions.mle0"]], rules=strict)
    assert next(check for check in refused.checks if check.name == "value").passed is None
    must = strict.model_copy(update={"require_value_gain": True})
    failed = gate(runs["impressions.lpi_rl2"], against=[runs["impressions.mle0"]], rules=must)
    assert next(check for check in failed.checks if check.name == "value").passed is False


def test_the_verbs(runs, tmp_path):
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
    (tmp_path / "rules.yaml").write_text("min_gain: -1\n")
    arguments = ("gate", new, "--against", deployed, "--rules", tmp_path / "rules.yaml", "--json", tmp_path / "g.json")
    result = lpi(*arguments)
    assert result.exit_code == 0 and "DEPLOY" in result.stdout
    (tmp_path / "rules.yaml").write_text("min_gain: 1\n")
    assert lpi(*arguments).exit_code == 3
    assert json.loads((tmp_path / "g.json").read_text())["deploy"] is False
    (tmp_path / "rules.yaml").write_text("min_gian: 1\n")
    result = lpi(*arguments)
    assert isinstance(result.exception, LocalPolicyError) and "did you mean 'min_gain'" in str(result.exception)
