"""Results go to stdout, talk to stderr; tables and bars are plain where there is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

BOUNDLESS = 1_000_000  # columns of a file: a table there is as wide as what it says
SENTENCE = 40  # characters from which a cell holds words, not a number


@cache
def console() -> Console:
    """Where results go. Names and paths may hold brackets and colons: nothing in them is markup."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    return Console(width=None if terminal else BOUNDLESS, soft_wrap=not terminal, markup=False, emoji=False)


def say(text: str) -> None:
    """One line of talk."""
    print(text, file=sys.stderr, flush=True)


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, note: str = "") -> None:
    """A table whose first column is text and whose others are numbers, or sentences.

    A terminal too narrow for it gets the widest cells on several lines; nothing is cut.
    """
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", caption=note or None, caption_justify="left")
    for number, column in enumerate(columns):
        words = number == 0 or any(len(row[number]) > SENTENCE for row in rows)
        table.add_column(column, justify="left" if words else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table)
