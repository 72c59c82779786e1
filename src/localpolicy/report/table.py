"""One table for every reader: terminal, Markdown, LaTeX, web page; and how numbers are written in it and next to it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import StringIO
from shutil import get_terminal_size
from typing import TYPE_CHECKING, NamedTuple

from localpolicy.measure.number_text import NOTHING, fixed, known, range_text, sentences

if TYPE_CHECKING:
    import rich.console

    from localpolicy.measure.estimate import Interval

_LATEX = {"&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_", "$": r"\$", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
          "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "±": r"$\pm$", "≤": r"$\leq$", "μ̂": r"$\hat{\mu}$",
          "𝓛_μ": r"$\mathcal{L}_\mu$", "π": r"$\pi$", "β": r"$\beta$", "λ": r"$\lambda$",
          "μ": r"$\mu$", "—": "---", "×": r"$\times$", "‖": r"$\Vert$"}  # fmt: skip
_SPECIAL = re.compile("|".join(re.escape(mark) for mark in sorted(_LATEX, key=len, reverse=True)))
GAP = 3  # columns between two cells
BEST, BOLD = "†", "Bold"  # how the best of its column is marked: in a terminal, which may be a pipe; elsewhere
SENTENCE = 25  # characters; a column where most cells are longer and have words holds sentences, not numbers


class Mark(NamedTuple):
    """A sign next to a number, such as ▲, with its meaning."""

    sign: str
    meaning: str
    kind: str = ""  # up or down, where it is good or bad


@dataclass(frozen=True)
class Column:
    """Column of a table: its title, meaning, and whether it holds numbers."""

    title: str
    note: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Cell:
    """Content of a cell. Everything but `text` may be left out."""

    text: str
    best: bool = False  # the largest of its column (see `best_cell`)
    stars: str = ""  # significance of that
    value: float | str | None = None  # what a page sorts by
    around: str = ""  # the interval, in smaller type
    mark: Mark | None = None
    series: object = None  # the policy as charts draw it: a page shows its symbol before the text
    bar: float | None = None  # a share, drawn as a bar on a page
    code: bool = False  # a path or a digest

    @classmethod
    def of(cls, figure: Interval | None, digits: int, mark: Mark | None = None) -> Cell:
        """Cell of a mean with its interval."""
        if figure is None or not known(figure.mean):
            return cls(NOTHING)
        return cls(fixed(figure.mean, digits), value=figure.mean, around=range_text(figure, digits), mark=mark)

    def plain(self) -> str:
        words = f"{self.text} {self.around}".rstrip() + (f" {self.mark.sign}" if self.mark else "")
        return f"{words}{BEST if self.best else ''}{self.stars}"

    def markdown(self) -> str:
        text = f"{self.text} {self.around}".rstrip().replace("|", r"\|")
        return (f"**{text}**" if self.best else text) + self.stars.replace("*", r"\*")

    def latex(self) -> str:
        text = latex_text(f"{self.text} {self.around}".rstrip())
        return (rf"\textbf{{{text}}}" if self.best else text) + (f"$^{{{self.stars}}}$" if self.stars else "")


@dataclass(frozen=True)
class Table:
    """Table with title, columns, rows and a note. The first columns name the rows."""

    title: str
    columns: Sequence[str | Column]
    rows: Sequence[Sequence[str | Cell]]  # text alone is a plain cell
    note: str = ""
    foot: Sequence[Sequence[Cell]] = ()  # rows that stay at the bottom when a page sorts the others
    keys: int = 1  # columns that name a row
    best: str = "the largest of its column"  # what a cell is that is marked as the best
    missing: str = ""  # why a cell is empty
    folds: bool = False  # whether a name of several words may take two lines, so that the numbers stay in one part

    @property
    def heads(self) -> list[Column]:
        """Columns of the table, with numeric ones detected if only a title is given."""

        def numeric(index: int) -> bool:
            texts = [row[index].text for row in self.body]
            said = sum(len(text) > SENTENCE and any(map(str.isalpha, text)) for text in texts)
            return index >= self.keys and said <= len(texts) / 2

        columns = enumerate(self.columns)
        return [each if isinstance(each, Column) else Column(each, numeric=numeric(index)) for index, each in columns]

    @property
    def body(self) -> list[list[Cell]]:
        return [[Cell(cell) if isinstance(cell, str) else cell for cell in row] for row in self.rows]

    def noted(self, best: str = BOLD) -> str:
        """Note below the table, with the meaning of its marks and of empty cells."""
        cells = [cell for row in (*self.body, *self.foot) for cell in row]
        return sentences({
            self.note: self.note,
            f"{best}: {self.best}.": any(cell.best for cell in cells),
            f"{NOTHING}: {self.missing}.": self.missing and any(cell.text == NOTHING for cell in cells),
        })  # fmt: skip

    def plain(self) -> list[list[str]]:
        return [[cell.plain() for cell in row] for row in (*self.body, *self.foot)]

    def fitting(self, width: int) -> list[Table]:
        """Parts of the table no wider than `width`, each with some of the columns.

        Every part begins with the columns that name its rows. A table with a column of sentences stays in one part: its
        sentences take several lines.
        """
        heads, keys = self.heads, [*range(self.keys)]
        texts = zip([column.title for column in heads], *self.plain(), strict=True)
        wide = [max(map(len, column)) + GAP for column in texts]
        spare = max(wide[0] - max(wide[1:], default=0), 0) if self.folds else 0  # the widest column gives way first
        if sum(wide) + GAP <= width + spare or not all(column.numeric for column in heads[self.keys :]):
            return [self]
        parts = [keys.copy()]
        for index in range(self.keys, len(heads)):
            if parts[-1] != keys and sum(wide[other] for other in parts[-1]) + wide[index] + GAP > width:
                parts.append(keys.copy())
            parts[-1].append(index)
        tables = []
        for part in parts:
            rows, foot = ([[row[index] for index in part] for row in each] for each in (self.body, self.foot))
            tables.append(replace(self, columns=[heads[index] for index in part], rows=rows, foot=foot))
        return tables

    def print_on(self, console: rich.console.Console) -> None:
        """Print the table on a console, in parts that fit its width."""
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        if self.title:
            console.print(Text(self.title, style="table.title"), soft_wrap=False)
        for part in self.fitting(console.width):
            headed = any(column.title for column in part.heads)
            table = RichTable(box=box.SIMPLE_HEAD if headed else None, show_header=headed, padding=(0, 1))
            for column in part.heads:
                table.add_column(column.title, justify="right" if column.numeric else "left", overflow="fold")
            for row in part.plain():
                table.add_row(*row)
            console.print(table, soft_wrap=False)
        if note := self.noted(BEST):
            console.print(Text(note, style="table.caption"), soft_wrap=False)

    def __str__(self) -> str:
        from rich.console import Console

        text = StringIO()
        self.print_on(
            Console(file=text, width=get_terminal_size().columns, force_jupyter=False, markup=False, emoji=False)
        )
        return text.getvalue()

    def _repr_html_(self) -> str:
        from localpolicy.report.templates import notebook

        return notebook(self)

    def markdown(self) -> str:
        """Markdown text of the table under its title."""
        heads = self.heads
        lines = [
            f"**{self.title}**\n",
            "| " + " | ".join(column.title for column in heads) + " |",
            "|" + "".join("--:|" if column.numeric else "---|" for column in heads),
            *("| " + " | ".join(cell.markdown() for cell in row) + " |" for row in (*self.body, *self.foot)),
        ]
        return "\n".join(lines) + (f"\n\n{note}\n" if (note := self.noted()) else "\n")

    def latex(self) -> str:
        heads = self.heads
        lines = [
            r"\begin{table}",
            rf"\caption{{{latex_text(f'{self.title}. {self.noted()}'.rstrip())}}}",
            r"\centering",
            rf"\begin{{tabular}}{{{''.join('r' if column.numeric else 'l' for column in heads)}}}",
            r"\toprule",
            " & ".join(latex_text(column.title) for column in heads) + r" \\",
            r"\midrule",
            *(" & ".join(cell.latex() for cell in row) + r" \\" for row in (*self.body, *self.foot)),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"


def latex_text(text: str) -> str:
    """Text with everything special to LaTeX written out."""
    return _SPECIAL.sub(lambda mark: _LATEX[mark[0]], text)


# ---------------------------------------------------------------------- numbers: a dash where there is none


def best_cell(value: float, column: Sequence[float], stars: str = "", digits: int = 4) -> Cell:
    """Cell of a number, marked as best if no shown number of its column is larger."""
    others = [other for other in column if other == other]
    best = len(others) > 1 and value == value and fixed(value, digits) == fixed(max(others), digits)
    return Cell(fixed(value, digits), best, stars)
