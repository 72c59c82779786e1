"""Results go to stdout, talk to stderr; tables and bars are plain where there is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@cache
def console() -> Console:
    """Where results go."""
    from rich.console import Console

    # Without a terminal rich would guess 80 columns and cut tables: give them room instead.
    return Console(width=None if sys.stdout.isatty() else 160, soft_wrap=not sys.stdout.isatty())


def say(text: str) -> None:
    """One line of talk."""
    print(text, file=sys.stderr, flush=True)


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, note: str = "") -> None:
    """A table whose first column is text and whose others are numbers."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", caption=note or None, caption_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console().print(table)
