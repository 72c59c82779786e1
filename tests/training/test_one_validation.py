"""A run's validation metrics equal those of `lpi evaluate`; if they do not, the names differ."""

from __future__ import annotations

import pytest
from small_logs import write_small

from localpolicy.measure.evaluate import evaluate
from localpolicy.report.results import run_table
from localpolicy.training.train import train

SETTINGS = {"epochs": 2, "batch_size": 16, "learning_rate": 0.01, "width": 8, "length": 6, "device": "cpu"}


@pytest.fixture(scope="module")
def interactions(tmp_path_factory):
    """A sparse log, whose likelihood is that of a mixture with popularity."""
    return write_small(tmp_path_factory.mktemp("data") / "interactions", items=20, propensity=False)


@pytest.mark.parametrize("objective", ["mle", "sqn", "lpi_rl", "lpi_cb"])
@pytest.mark.parametrize("kind", ["small", "interactions"])
def test_the_figures_of_the_kept_weights_are_those_of_evaluate(objective, kind, request, tmp_path):
    run = train(request.getfixturevalue(kind), objective, out=tmp_path / "run", **SETTINGS)
    figures = run.selected_metrics()["validation"]
    measured = evaluate(run, config={"split": "validation"})
    shared = {name for name in figures if measured.row(name) is not None} - {"logp"}
    assert {"all.nDCG@20", "AR@1"} <= shared
    for name in shared:
        assert figures[name] == pytest.approx(measured.row(name).mean, rel=1e-5), name
    alone = "plain_logp" if kind == "interactions" else "logp"
    assert figures[alone] == pytest.approx(measured.row("logp").mean, rel=1e-5)
    assert ("of a mixture with popularity" in " ".join(run.selection())) == (kind == "interactions")


def test_half_of_validation_is_named_where_it_chose(small, tmp_path):
    run = train(small, "mle", out=tmp_path / "whole", **SETTINGS)
    half = train(small, "mle", out=tmp_path / "half", choose_on="half", **SETTINGS)
    assert list(run.selection()) == ["selected epoch", "selected by logp on validation"]
    assert list(half.selection()) == ["selected epoch", "selected by logp on every second validation sequence"]


def test_a_closed_form_names_the_network_of_each_epoch(small, tmp_path):
    run = train(small, "lpi_rl", out=tmp_path / "run", critics=2, **SETTINGS)
    manifest = run.manifest
    half = "on every second validation sequence"
    kept = {name: each["selected"]["epoch"] for name, each in manifest["stages"].items()}
    epochs = {name: f"{epoch} of 2{'' if epoch else ' (its start)'}" for name, epoch in kept.items()}
    selected = manifest["selected"]
    assert run.selection() == {
        f"logging policy μ̂: selected epoch, by logp {half}": epochs["logging"],
        f"critic 1: selected epoch, by -1*return_error {half}": epochs["critic-1"],
        f"critic 2: selected epoch, by -1*return_error {half}": epochs["critic-2"],
        f"the policy made of them: {selected['by']} on validation": f"{selected['value']:.5f}",
    }
    assert all(stage["epochs"] == 2 for stage in manifest["stages"].values())
    rows = dict(run_table(run).rows)
    assert run.selection().items() <= rows.items() and "6 of 6" not in rows.values(), "epochs are not added up"
    assert "epoch" not in run.summary()
