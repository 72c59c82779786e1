"""Tables that read the same in a terminal, in Markdown and in LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_LATEX = {"&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_", "$": r"\$", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
          "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "±": r"$\pm$", "≤": r"$\leq$", "μ̂": r"$\hat{\mu}$",
          "𝓛_μ": r"$\mathcal{L}_\mu$", "π": r"$\pi$", "β": r"$\beta$", "λ": r"$\lambda$",
          "μ": r"$\mu$", "—": "---", "×": r"$\times$", "‖": r"$\Vert$"}  # fmt: skip
_SPECIAL = re.compile("|".join(re.escape(mark) for mark in sorted(_LATEX, key=len, reverse=True)))


@dataclass(frozen=True)
class Cell:
    """A value; the largest of its column is bold, and stars say how sure that is."""

    text: str
    best: bool = False
    stars: str = ""

    def plain(self) -> str:
        """For a terminal."""
        return f"{self.text}{self.stars}"

    def markdown(self) -> str:
        """For a page."""
        text = self.text.replace("|", r"\|")
        return (f"**{text}**" if self.best else text) + self.stars.replace("*", r"\*")

    def latex(self) -> str:
        """For a paper."""
        text = latex_text(self.text)
        return (rf"\textbf{{{text}}}" if self.best else text) + (f"$^{{{self.stars}}}$" if self.stars else "")

    def html(self) -> str:
        """For a web page."""
        text = f"<b>{escape(self.text)}</b>" if self.best else escape(self.text)
        return text + (f"<sup>{self.stars}</sup>" if self.stars else "")


@dataclass(frozen=True)
class Table:
    """The first column is text, the others are numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def plain(self) -> list[list[str]]:
        """Rows for a terminal's table."""
        return [[cell.plain() for cell in row] for row in self.rows]

    def markdown(self) -> str:
        """A Markdown table under its title."""
        lines = [
            f"**{self.title}**\n",
            "| " + " | ".join(self.columns) + " |",
            "|---|" + "--:|" * (len(self.columns) - 1),
            *("| " + " | ".join(cell.markdown() for cell in row) + " |" for row in self.rows),
        ]
        return "\n".join(lines) + (f"\n\n{self.note}\n" if self.note else "\n")

    def latex(self) -> str:
        """A LaTeX table (booktabs)."""
        note = f" {latex_text(self.note)}" if self.note else ""
        lines = [
            r"\begin{table}",
            rf"\caption{{{latex_text(self.title)}.{note}}}",
            r"\centering",
            rf"\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}",
            r"\toprule",
            " & ".join(latex_text(column) for column in self.columns) + r" \\",
            r"\midrule",
            *(" & ".join(cell.latex() for cell in row) + r" \\" for row in self.rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"

    def html(self) -> str:
        """A table element, with its title as caption and its note below."""
        heads = "".join(f'<th scope="col">{escape(column)}</th>' for column in self.columns)
        rows = "".join(
            f'<tr><th scope="row">{first.html()}</th>{"".join(f"<td>{cell.html()}</td>" for cell in rest)}</tr>\n'
            for first, *rest in self.rows
        )
        note = f"<p>{escape(self.note)}</p>\n" if self.note else ""
        return (
            f"<table><caption>{escape(self.title)}</caption>\n<thead><tr>{heads}</tr></thead>\n"
            f"<tbody>\n{rows}</tbody></table>\n{note}"
        )


def html_page(tables: Sequence[Table], *, title: str) -> str:
    """A page of tables that needs nothing else."""
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;margin:2rem;color:#222}table{border-collapse:collapse;margin:.5rem 0}"
        "caption{text-align:left;font-weight:600;padding:.5rem 0}td,th{padding:.2rem .6rem;text-align:right;"
        "border-bottom:1px solid #ddd;white-space:nowrap}th:first-child{text-align:left}"
        "tbody th{font-weight:normal}"
        "main{overflow-x:auto}p{max-width:60rem;color:#555}"
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{style}</style></head>\n<body>\n<h1>{escape(title)}</h1>\n<main>\n"
        + "\n".join(table.html() for table in tables)
        + "</main>\n</body>\n</html>\n"
    )


def latex_text(text: str) -> str:
    """Text with everything special to LaTeX written out."""
    return _SPECIAL.sub(lambda mark: _LATEX[mark[0]], text)


def cells(*values: str) -> list[Cell]:
    """A row of plain cells."""
    return [Cell(value) for value in values]


def number(value: float | None, digits: int = 4) -> str:
    """0.1234; a dash where there is none."""
    return "—" if value is None or value != value else f"{value:.{digits}f}"


def with_error(value: float, se: float, digits: int = 4) -> str:
    """0.1234 ± 0.0012."""
    return f"{number(value, digits)} ± {number(se, digits)}"
