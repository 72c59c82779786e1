"""Tables in Markdown, LaTeX and HTML, with everything special written out."""

from __future__ import annotations

from localpolicy.evaluate.tables import Cell, Table, cells, html_page, latex_text, number, with_error

TABLE = Table(
    "A & B", ["policy", "nDCG@20"], [[Cell("lpi_rl"), Cell("0.31", best=True, stars="**")], cells("a|b", "0.3")]
)


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
    page = html_page([TABLE], title="A & B")
    assert '<tr><th scope="col">policy</th><th scope="col">nDCG@20</th></tr>' in page
    assert '<tr><th scope="row">lpi_rl</th><td><b>0.31</b><sup>**</sup></td></tr>' in page
    assert '<tr><th scope="row">a|b</th><td>0.3</td></tr>' in page


def test_terminal_and_numbers():
    assert TABLE.plain() == [["lpi_rl", "0.31**"], ["a|b", "0.3"]]
    assert number(None) == number(float("nan")) == "—"
    assert with_error(0.5, 0.25, 2) == "0.50 ± 0.25"
