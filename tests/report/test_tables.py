"""Tables in Markdown, LaTeX and HTML, with everything special written out."""

from __future__ import annotations

from localpolicy.measure.estimate import Interval
from localpolicy.measure.number_text import corrected, counted, fixed, interval_text
from localpolicy.report.page import tables_page
from localpolicy.report.table import Cell, Mark, Table, best_cell, latex_text

TABLE = Table("A & B", ["policy", "nDCG@20"], [[Cell("lpi_rl"), Cell("0.31", best=True, stars="**")], ["a|b", "0.3"]])


def test_markdown_has_every_cell():
    assert TABLE.markdown().splitlines() == [
        "**A & B**",
        "",
        "| policy | nDCG@20 |",
        "|---|--:|",
        r"| lpi_rl | **0.31**\*\* |",
        r"| a\|b | 0.3 |",
        "",
        "Bold: the largest of its column.",
    ]


def test_latex_is_written_with_its_marks():
    lines = TABLE.latex().splitlines()
    assert r"\caption{A \& B. Bold: the largest of its column.}" in lines
    assert r"\begin{tabular}{lr}" in lines
    assert r"lpi\_rl & \textbf{0.31}$^{**}$ \\" in lines
    assert latex_text(r"50% of {π} \ μ̂ ± 1") == r"50\% of \{$\pi$\} \textbackslash{} $\hat{\mu}$ $\pm$ 1"


def test_html_names_its_rows_and_columns():
    page = tables_page([TABLE], title="A & B")
    assert '<tr><th scope="col">policy</th><th scope="col" class="number">nDCG@20</th></tr>' in page
    cell = '<td class="number" data-column="nDCG@20">'
    assert f'<tr><th scope="row">lpi_<wbr>rl</th>{cell}<b>0.31</b><sup>**</sup></td></tr>' in page
    assert f'<tr><th scope="row">a|b</th>{cell}0.3</td></tr>' in page


def test_the_terminal_shows_numbers_in_columns():
    assert TABLE.plain() == [["lpi_rl", "0.31†**"], ["a|b", "0.3"]]
    assert fixed(None) == fixed(float("nan")) == "—"
    assert (fixed(-0.25, 2), fixed(0.25, 2, signed=True), fixed(-0.001, 2, signed=True)) == ("-0.25", "+0.25", "0.00")


def test_a_plus_minus_is_half_a_95_percent_interval_wherever_it_stands():
    """Before: on a page it was, and in a terminal it was one standard error."""
    assert interval_text(Interval.of(0.5, 0.25), 2) == "0.50 ± 0.49"
    assert interval_text(Interval(0.0, 0.0, 0.35), 2, signed=True) == "0.00 [0.00, 0.35]"
    assert interval_text(Interval(0.5, 0.5, 0.5), 2) == "0.50", "exact"
    assert interval_text(Interval(float("nan"), 0.0, 1.0)) == interval_text(None) == "—"


def test_a_terminal_tells_the_best_by_its_own_mark():
    """Before: "in bold the largest" stood under tables of a pipe, where nothing is bold."""
    terminal, markdown = str(TABLE), TABLE.markdown()
    assert "†: the largest of its column." in terminal and "old" not in terminal
    assert "Bold: the largest of its column." in markdown and "†" not in markdown
    assert "largest" not in str(Table("T", ["a", "b"], [["x", "1"]]))


def test_a_dash_is_explained_where_there_is_one():
    table = Table("T", ["policy", "value"], [["a", "—"]], "A note.", missing="the log says too little of it")
    assert table.noted() == "A note. —: the log says too little of it."
    assert "too little" not in Table("T", ["policy", "value"], [["a", "1"]], missing="too little").markdown()


def test_every_part_of_a_wide_table_says_what_its_rows_are():
    """Before: of a table by policy and positions, all parts but the first had the policy alone."""
    heads = ["policy", "positions", *(f"nDCG@{k}" for k in range(8))]
    rows = [[policy, group, *["0.1234"] * 8] for policy in ("lpi", "mle") for group in ("view", "purchase")]
    table = Table("At k", heads, rows, keys=2)
    parts = table.fitting(60)
    assert len(parts) > 1 and sum(len(part.heads) - 2 for part in parts) == 8
    for part in parts:
        assert [head.title for head in part.heads[:2]] == ["policy", "positions"]
        assert [row[:2] for row in part.plain()] == [row[:2] for row in rows]
    assert [head.numeric for head in table.heads[:3]] == [False, False, True]


def test_a_mark_says_what_it_means_in_every_form():
    cell = Cell("0.31", around="± 0.02", mark=Mark("▲", "better", "up"))
    assert (cell.plain(), cell.markdown(), cell.latex()) == ("0.31 ± 0.02 ▲", "0.31 ± 0.02", r"0.31 $\pm$ 0.02")
    page = tables_page([Table("T", ["policy", "HR@5"], [[Cell("a"), cell]])], title="T")
    assert '<span class="mark up" title="better">▲<span class="unseen"> better</span></span>' in page
    assert '<span class="range">± 0.02</span>' in page


def test_html_has_every_cell():
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
