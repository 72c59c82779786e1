"""Tables in Markdown, LaTeX and HTML, with everything special written out."""

from __future__ import annotations

import numpy as np
from gate_examples import made

from localpolicy.judge import comparison
from localpolicy.judge.comparison import Comparison
from localpolicy.measure.estimate import Estimate
from localpolicy.report.comparison_tables import comparison_table
from localpolicy.report.page import tables_page
from localpolicy.report.table import Cell, Mark, Table, best_cell, corrected, counted, latex_text, number, with_error

TABLE = Table("A & B", ["policy", "nDCG@20"], [[Cell("lpi_rl"), Cell("0.31", best=True, stars="**")], ["a|b", "0.3"]])


def test_markdown():
    assert TABLE.markdown().splitlines() == [
        "**A & B**",
        "",
        "| policy | nDCG@20 |",
        "|---|--:|",
        r"| lpi_rl | **0.31**\*\* |",
        r"| a\|b | 0.3 |",
    ]


def test_latex():
    lines = TABLE.latex().splitlines()
    assert r"\caption{A \& B.}" in lines
    assert r"\begin{tabular}{lr}" in lines
    assert r"lpi\_rl & \textbf{0.31}$^{**}$ \\" in lines
    assert latex_text(r"50% of {π} \ μ̂ ± 1") == r"50\% of \{$\pi$\} \textbackslash{} $\hat{\mu}$ $\pm$ 1"


def test_html_names_its_rows_and_columns():
    page = tables_page([TABLE], title="A & B")
    assert '<tr><th scope="col">policy</th><th scope="col" class="number">nDCG@20</th></tr>' in page
    cell = '<td class="number" data-column="nDCG@20">'
    assert f'<tr><th scope="row">lpi_<wbr>rl</th>{cell}<b>0.31</b><sup>**</sup></td></tr>' in page
    assert f'<tr><th scope="row">a|b</th>{cell}0.3</td></tr>' in page


def test_terminal_and_numbers():
    assert TABLE.plain() == [["lpi_rl", "0.31**"], ["a|b", "0.3"]]
    assert number(None) == number(float("nan")) == "—"
    assert with_error(0.5, 0.25, 2) == number(Estimate(0.5, 0.25, 9, 0.125), 2) == "0.50 ± 0.25"
    assert number(Estimate(float("nan"), float("nan"), 0, float("nan"))) == "—"


def test_a_mark_says_what_it_means_in_every_form():
    cell = Cell("0.31", around="± 0.02", mark=Mark("▲", "better", "up"))
    assert (cell.plain(), cell.markdown(), cell.latex()) == ("0.31 ± 0.02 ▲", "0.31 ± 0.02", r"0.31 $\pm$ 0.02")
    page = tables_page([Table("T", ["policy", "HR@5"], [[Cell("a"), cell]])], title="T")
    assert '<span class="mark up" title="better">▲<span class="unseen"> better</span></span>' in page
    assert '<span class="range">± 0.02</span>' in page


def test_html():
    rows = [[Cell("𝓛_μ"), Cell("0.31", best=True, stars="**")], ["  published", "0.3"], ["x" * 31, "a & b"]]
    page = tables_page([Table("T", ["policy", "p.nDCG@20"], rows)], title="T & U")
    assert "𝓛<sub>μ</sub>" in page and "<b>0.31</b><sup>**</sup>" in page and "<title>T &amp; U</title>" in page
    assert page.count('<tr class="under">') == page.count(f'<span class="words">{"x" * 31}') == 1
    assert '<div class="scroll" role="region" aria-labelledby="table-1" tabindex="0"' in page
    assert "p.<wbr>nDCG@20" in page


def test_numbers_and_nouns_agree():
    assert [counted(number, "sequence") for number in (1, 2, 2_000)] == ["1 sequence", "2 sequences", "2,000 sequences"]
    assert corrected(1) == "" and corrected(12) == ", corrected for 12 comparisons"


def test_all_that_are_shown_as_the_largest_lead():
    column = [0.8124, 0.8121, 0.8119, 0.7, float("nan")]
    assert [best_cell(value, column, digits=3).best for value in column] == [True, True, True, False, False]
    assert [best_cell(value, column).best for value in column] == [True, False, False, False, False]
    assert not best_cell(0.5, [0.5]).best and not best_cell(0.5, [0.5, float("nan")]).best


def test_a_figure_that_is_compared_is_in_the_frame_on_the_terminal_and_in_json(monkeypatch):
    """A new column is a figure and its name among those compared; nothing else lists them."""
    monkeypatch.setattr(comparison, "COMPARED", ("novelty@{lists}", "coverage@{lists}"))
    policies = [made(name, np.array([1.0, rank])) for name, rank in (("a", 1.0), ("b", 9.0))]
    for number_, policy in enumerate(policies):
        policy.figures["novelty@20"] = 0.25 + number_
        policy.settings.update(split="test", exclude_seen=False, min_history=1)
    found = Comparison(policies, ["all.nDCG@20"], [], None, [], [])
    assert found.to_arrow()["novelty@20"].to_pylist() == [0.25, 1.25]
    shown = comparison_table(found)
    place = shown.columns.index("novelty@20")
    assert [row[place] for row in shown.plain()] == ["0.2500", "1.2500"]
    assert found["b"].to_dict()["policy"]["novelty@20"] == 1.25
