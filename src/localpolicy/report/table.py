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
WORDS = 30  # characters; a longer cell holds words, which may take several lines
_SPECIAL = re.compile("|".join(re.escape(mark) for mark in sorted(_LATEX, key=len, reverse=True)))


@dataclass(frozen=True)
class Cell:
    """A value; the largest of its column is bold (see `largest_shown`), and stars say how sure that is."""

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
        text = escape(self.text).replace("𝓛_μ", "𝓛<sub>μ</sub>")
        text = f'<span class="words">{text}</span>' if len(self.text) > WORDS else text
        return (f"<b>{text}</b>" if self.best else text) + (f"<sup>{self.stars}</sup>" if self.stars else "")


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
        heads = "".join(f'<th scope="col">{escape(column).replace(".", ".<wbr>")}</th>' for column in self.columns)
        rows = "".join(_tr(row) for row in self.rows)
        note = f"<p>{escape(self.note)}</p>\n" if self.note else ""
        return (
            f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(self.title)}">'
            f"<table><caption>{escape(self.title)}</caption>\n<thead><tr>{heads}</tr></thead>\n"
            f"<tbody>\n{rows}</tbody></table></div>\n{note}"
        )


def _tr(row: Sequence[Cell]) -> str:
    """A row under its name; one whose name is indented belongs to the row above it."""
    name, *rest = row
    under = ' class="under"' if name.text.startswith("  ") else ""
    values = "".join(f"<td>{cell.html()}</td>" for cell in rest)
    return f'<tr{under}><th scope="row">{name.html()}</th>{values}</tr>\n'


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem; color: #222; background: #fff; }
.scroll { width: max-content; max-width: 100%; overflow-x: auto; scrollbar-width: thin;  /* a shade says: it goes on */
  background: linear-gradient(to left, #fff 1.5rem, transparent) right top / 3rem calc(100% + 2px) no-repeat local,
    linear-gradient(to left, rgb(0 0 0 / 18%), transparent) right / 1.1rem 100% no-repeat scroll; }
table { border-collapse: collapse; margin: .5rem 0; }
caption { text-align: left; font-weight: 600; padding: .5rem 0; position: sticky; left: 0; max-width: 90vw; }
td, th { padding: .2rem .55rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
thead th { white-space: normal; vertical-align: bottom; line-height: 1.25; }
tbody th { font-weight: normal; }
tr > :first-child { text-align: left; position: sticky; left: 0; background: #fff; }
.under > * { color: #6a6a6a; }
.under > :first-child { padding-left: 1.8rem; }
.words { display: inline-block; max-width: 44rem; min-width: 12rem; white-space: normal; }
p { max-width: 60rem; color: #555; }
@media (max-width: 40rem) {
  body { margin: 1rem; }
  tr > :first-child { max-width: 9rem; white-space: normal; }
  tr > :first-child .words { min-width: 0; }
}
@media print {
  @page { size: landscape; }
  body { margin: 0; }
  .scroll { width: auto; max-width: none; overflow: visible; background: none; }
  table, p { font-size: 8pt; }
  td, th { padding: .15rem .35rem; }
}
"""


def html_page(tables: Sequence[Table], *, title: str) -> str:
    """A page of tables that needs nothing else."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>\n<h1>{escape(title)}</h1>\n<main>\n"
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


def largest_shown(value: float, column: Sequence[float], digits: int = 4) -> bool:
    """Whether a value is the largest of its column as they are shown: equal ones all are, one alone is not."""
    known = [other for other in column if other == other]
    return len(known) > 1 and value == value and number(value, digits) == number(max(known), digits)


def with_error(value: float, se: float, digits: int = 4) -> str:
    """0.1234 ± 0.0012."""
    return f"{number(value, digits)} ± {number(se, digits)}"
