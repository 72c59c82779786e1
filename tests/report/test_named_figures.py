"""Every figure says what it is: per what, of what, with which interval, and why it is missing where it is."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from measured import scores
from report_examples import curve, exact, row, section_of, usual

from localpolicy.judge.checks.distance import reference_fit_check
from localpolicy.judge.compare import compare
from localpolicy.judge.rules import GateRules
from localpolicy.measure.divergence import MOST_JS
from localpolicy.measure.estimate import Interval, Measurement
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.value import value_of_scores
from localpolicy.report.comparison import comparison_section
from localpolicy.report.contents import HALF, Contents, StageCurve
from localpolicy.report.page import policies_table, report_page
from localpolicy.report.table import Cell, Column
from localpolicy.report.tables import comparison_table, off_policy_table, policy_table, ranking_table
from localpolicy.report.templates import asset

METRIC = "click.nDCG@20"


def shown(section) -> tuple[dict[str, Column], str]:
    """The columns of a page's main table, and the words under it."""
    table = policies_table(section, {name: Cell(name) for name in section.names})
    return {column.title: column for column in table.heads}, table.noted()


@pytest.mark.parametrize("unit", ["decision", "list"])
def test_a_value_says_per_decision_or_per_list(unit):
    rows = [row("mle", "mle", metrics={METRIC: exact(0.3), "SNIPS": exact(0.9)})]
    columns, note = shown(section_of("", "", rows, main="SNIPS", unit=unit))
    assert columns["value"].note == f"per {unit}, by SNIPS" and f"what the policy would earn per {unit}" in note


@pytest.mark.parametrize(("above", "unit"), [(None, "decision"), ([0, 1, 0, 1], "list")])
def test_an_evaluation_knows_what_its_value_is_per(above, unit):
    found = scores(
        rank=np.ones(4), logp=np.log(np.full(4, 0.1)), propensity=np.full(4, 0.1), value_taken=np.zeros(4),
        value_expected=np.zeros(4), history=np.arange(4), sequence=np.zeros(4, int),
    )  # fmt: skip
    if above is not None:
        found = replace(found, above=np.array(above), settings={"list_reward": "whole"})
    value = value_of_scores(found, largest_reward=1.0)
    assert value is not None and f"J per {unit}" in [head.title for head in off_policy_table(value).heads]
    assert Evaluation("a", {}, None, found, np.ones(3), {}, off_policy=value).unit == unit


def test_why_a_figure_is_missing_stands_under_the_table():
    """The gate measures the reward per answer of few policies: before, the others had a dash and no reason."""
    rows = [row("mle", "mle", metrics={METRIC: exact(0.3)}), row("lpi", "lpi_rl", metrics={METRIC: exact(0.4)})]
    section = section_of("", "", rows, main=METRIC)
    assert "—" not in shown(section)[1]
    figure = "reward per answer"
    answered = [*section.measurements, Measurement.of("lpi", figure, exact(0.5))]
    some = section_of("", "", rows, main=METRIC, columns={figure: figure, METRIC: METRIC})
    object.__setattr__(some, "measurements", answered)
    assert "—: the gate measures the reward per answer for the two policies that it compares" in shown(some)[1]


def test_terminal_and_page_give_one_reason(runs):
    """One estimate of the log is its own only reference: it has no JS, whatever its value."""
    found = compare([runs["mle-0"], runs["lpi_rl-2"]], baselines=False, episodes=20)
    said = "JS and KL need a reference other than the policy itself"
    section = comparison_section(found, samples=False)
    assert said in shown(section)[1] and said in comparison_table(found).noted()


def test_two_likelihoods_and_two_popularities_have_two_names():
    columns, _ = shown(section_of("", "", [row("mle", "mle", metrics={"logp": exact(-2.0)})], columns={}))
    assert columns["likelihood"].note == "mean log π among what could be shown"
    logp = {"mle": np.full(40, -1.0) + 0.01 * np.arange(40)}
    found = replace(scores(rank=np.ones(40)), logp_reference=logp, logp_open_reference=logp)
    measured = Evaluation("new", {}, None, found, np.ones(3), {})
    said = reference_fit_check(measured, np.full(40, -2.0), 9, GateRules()).because
    assert "log-likelihood over the whole catalogue" in said and "the popularity of all that was shown -2.000" in said
    glossary = asset("reading.html")
    assert "among the whole catalogue instead" in glossary and "popularity of all that was shown" in glossary


def test_curves_say_on_which_sequences_they_were_measured(extra):
    """Charts say "On half of the validation" above curves of half of it."""
    import random

    from localpolicy.report.charts import all_series
    from localpolicy.report.lines import curves

    lines = curve(random.Random(0), top=0.3, share=1.0)
    stage = StageCurve(lines, 7, "-1*return_error", HALF)
    whole = row("mle", "mle", curve=lines, selected_by="logp", selected_epoch=7)
    half = row("mle-1", "mle", curve=lines, selected_by="logp", selected_epoch=7, on=HALF)
    made = row("lpi", "lpi_rl", stages={"critic-1": stage}, selected_by="AR@1")

    def captions(*rows) -> list[str]:
        (series,) = all_series(Contents("", "", [section_of("", "", rows)]))
        return [chart.caption for chart in curves(series, "c")]

    kept = "The point marks the weights that were kept."
    assert captions(whole)[0] == f"By epoch, on all validation sequences. {kept}"
    others = "the others are kept for the slope and β"
    assert captions(made)[0] == f"By epoch, on every second validation sequence: {others}. {kept}"
    assert captions(whole, half)[0] == (
        f"By epoch, on all validation sequences (mle) and on every second validation sequence (mle-1): {others}. {kept}"
    )


def test_a_closed_form_is_drawn_on_the_half_that_chose_its_epochs(section):
    lpi = next(policy for policy in section.policies if policy.name == "lpi_rl-2")
    assert {stage.on for stage in lpi.stages.values()} == {HALF}
    assert all(policy.on != HALF for policy in section.policies), "choose_on is all"


def test_what_an_evaluation_prints_are_the_intervals_of_the_long_table(comparison):
    evaluation = comparison["lpi_rl-2"]
    row_of = evaluation.row("all.nDCG@20")
    ranks = ranking_table(evaluation)
    place = [head.title for head in ranks.heads].index("nDCG@20")
    (text,) = (line[place] for line in ranks.plain() if line[0] == "all")
    assert text == f"{row_of.mean:.4f} ± {(row_of.high - row_of.low) / 2:.4f}"
    assert "95 % intervals" in ranks.note and "95 % intervals" in policy_table(evaluation).note
    main = evaluation.row(evaluation.main)
    assert f"{main.mean:.4f} (95 %: {main.low:.4f} to {main.high:.4f})" in evaluation.summary()


def test_the_largest_js_is_written_down_once(extra, monkeypatch):
    monkeypatch.setattr("localpolicy.report.page.library", lambda: "")
    assert math.isclose(MOST_JS, math.log(2))
    assert f"from 0 (the same) to {MOST_JS:.3f} (nothing in common)" in report_page(usual())
    pages = [files("localpolicy.serving") / "page.html", *files("localpolicy.report").joinpath("html").iterdir()]
    assert not [page.name for page in pages if "0.69" in page.read_text(encoding="utf-8")]
    assert Path(str(pages[0])).exists()


def test_an_interval_is_given_by_its_ends_where_it_is_not_symmetric():
    assert Cell.of(Interval(0.0, 0.0, 0.35), 2).plain() == "0.00 [0.00, 0.35]"
