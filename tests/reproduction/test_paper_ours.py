"""Rows of ours and the paper's: further rows of the same table, which change nothing of what is the paper's."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from shop_logs import from_markdown, measured, write_shop

from localpolicy.measure.significance import paired
from localpolicy.report.page import tables_page
from localpolicy.reproduction.data_sets import DataSet
from localpolicy.reproduction.recipe import LABELS, METRICS, OURS, POLICIES, Recipe
from localpolicy.reproduction.settings import PaperConfig
from localpolicy.reproduction.table3 import claims, findings, main_table, our_gains, slopes_of, table3_tables
from localpolicy.reproduction.tables import label_of, table3
from localpolicy.runs.config import PRESETS, Config
from localpolicy.study.arms import Study
from localpolicy.study.settings import Point

SMALL = ("train.epochs=2", "model.width=8", "train.batch_size=16", "train.learning_rate=0.01")
RECIPE = Recipe(
    betas=(1.0,), lambdas=(1.0,), lambdas_by_beta=(1.0,), rates=(), seeds=2, changes=SMALL, device="cpu",
    policies=("mle", "sqn", "lpi_rl"),
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ours")
    data = DataSet("shop", write_shop(folder / "data"), "retailrocket", original=False)
    study = Study(data.data, folder / "out", processes=1)
    return table3(data, study, RECIPE), table3(data, study, replace(RECIPE, ours=tuple(OURS)))


def test_they_are_asked_for():
    assert Recipe.of(PaperConfig()).ours == ()
    assert Recipe.of(PaperConfig(ours=True)).ours == tuple(OURS)
    assert not OURS.keys() & POLICIES.keys()
    assert all("(ours)" in label for label in OURS.values())


def test_they_have_fixed_settings_on_the_papers_positions():
    recipe = Recipe(changes=("train.precision=bf16",), device="cpu", ours=tuple(OURS))
    for name in OURS:
        config = recipe.arm(name, Point(), 3).config
        assert config.objective.name == name.removesuffix("_tied").removesuffix("_closed")
        fixed = Config.parse(PRESETS["fixed"])
        assert config.model == fixed.model and config.model.tied
        assert (config.data.length, config.data.last, config.train.min_history) == (20, None, 0)
        ours = fixed.train.model_copy(update={"min_history": 0, "seed": 3, "device": "cpu", "precision": "bf16"})
        assert config.train == ours
    closed = recipe.arm("lpi_rl_closed", Point(), 0).config.objective
    assert (closed.name, closed.beta, closed.calibrate_critic, closed.critics) == ("lpi_rl", None, True, 1)


def test_what_is_the_papers_stays_as_it_is(made):
    plain, beside = made
    without, content = plain.to_dict(), beside.to_dict()
    for part in ("leads", "breakdown", "published", "floor"):
        assert content[part] == without[part], part
    assert {name: content["policies"][name] for name in without["policies"]} == without["policies"]
    assert content["measurements"][: len(without["measurements"])] == without["measurements"]
    assert [finding.because for finding in findings(beside)] == [finding.because for finding in findings(plain)]
    assert not OURS.keys() & without["policies"].keys() and plain.ours == []
    assert main_table(beside).body[: len(main_table(plain).body)] == main_table(plain).body
    assert claims(beside).markdown() == claims(plain).markdown()
    assert "ours" not in main_table(plain).note


def test_every_form_of_the_table_has_them(made):
    _, table = made
    assert [row.key for row in table.ours] == list(OURS)
    content = json.loads(json.dumps(table.to_dict(), allow_nan=False))
    shown = main_table(table)
    rows, latex = from_markdown(shown.markdown(), "Table 3: shop"), shown.latex()
    page = tables_page(table3_tables(table), title="Table 3")
    for row in table.ours:
        seeds = [each["seed"] for each in content["policies"][row.key]["seeds"]]
        assert seeds == [0, 1] and label_of(row).partition(",")[2] in page
        for cell, name in zip(rows[label_of(row)], METRICS, strict=False):
            assert float(cell) == pytest.approx(measured(content, row.key, name), abs=5e-4)
        assert float(rows[label_of(row)][12]) == pytest.approx(measured(content, row.key, "JS"), abs=5e-4)
    assert latex.count("(ours) &") == len(OURS)
    assert all(len(row) == len(shown.columns) for row in shown.rows)
    closed = table.row("lpi_rl_closed")
    assert [each["improvement"]["slope"] for each in content["policies"][closed.key]["seeds"]] == slopes_of(closed)


def test_they_are_never_bold_whatever_their_figures(made):
    _, table = made
    for best in table.rows:  # one of them has the largest figure of any column
        shown = main_table(
            replace(table, ours=[replace(best, key="sqn_tied", name=LABELS["sqn_tied"], point=Point())])
        ).body
        assert shown[-1][0].text == LABELS["sqn_tied"]
        assert not any(cell.best or cell.stars for cell in shown[-1])
        assert all(any(row[place].best for row in shown[:-1]) for place in range(1, 13))


def test_they_have_no_part_in_the_stars(made):
    _, table = made
    for beside in table.rows:  # one of them has the largest figure of any column
        theirs = [row for row in table.rows if row is not beside]
        leads = replace(table, rows=theirs, ours=[beside]).leads
        for lead in leads.values():
            assert {lead.best, lead.second} == {row.name for row in theirs}


def test_differences_are_paired_by_position(made):
    _, table = made
    rows = from_markdown(our_gains(table).markdown(), "What our rows add")
    pairs = [("mle_tied", "mle"), ("sqn_tied", "sqn"), ("lpi_rl_closed", "mle_tied"), ("lpi_rl_closed", "lpi_rl")]
    for upper, lower in pairs:
        high, low = table.row(upper), table.row(lower)
        for place, event in enumerate(("purchase", "click")):
            name = f"{event}.nDCG@20"
            test = paired(high.values(name)[0], *low.values(name))
            shown = rows[f"{label_of(high)} − {label_of(low)}"][place]
            mean, _, half = shown.replace("−", "-").partition(" ± ")
            assert float(mean) == pytest.approx(test.difference, abs=5e-5)
            assert float(half.rstrip("*")) >= (test.high - test.low) / 2 - 5e-5, "of 95 %, and corrected"
    tests = table.differences(pairs, ("purchase.nDCG@20", "click.nDCG@20"))
    assert len(tests) == 8 and min(test.holm_p / test.p for test in tests.values()) >= 1, "one family of tests"
    assert len(rows) == 6, "the paper's 𝓛_μ is not in this table"


def test_the_note_says_whether_the_critic_was_believed(made):
    _, table = made
    row = table.row("lpi_rl_closed")
    for slopes, said in (([0.0, 0.3], "in 1 of 2 seeds its critic does not predict"), ([0.2, 0.3], "by 0.20, 0.30")):
        seeds = [
            replace(seed, record={**seed.record, "run": {**seed.record["run"], "improvement": {"slope": slope}}})
            for seed, slope in zip(row.seeds, slopes, strict=True)
        ]
        believed = replace(row, seeds=seeds)
        assert said in main_table(replace(table, ours=[believed])).note
