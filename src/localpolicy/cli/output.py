"""Results go to stdout, talk to stderr; tables and bars are plain where there is no terminal."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from localpolicy.report.table import Table

BOUNDLESS = 1_000_000  # columns of a file: a table there is as wide as what it says
UNREAD = 141  # exit code, as a shell reports a program that wrote to a pipe nobody reads: a gate cut off says not yes


class Piped(io.TextIOWrapper):
    """A standard stream that leaves in silence once its reader is gone.

    Here, and not where errors are caught, since what prints (typer, rich) would catch it before us and call it a fault.
    """

    def __init__(self, stream: io.TextIOWrapper) -> None:
        super().__init__(
            stream.buffer, stream.encoding, stream.errors,
            line_buffering=stream.line_buffering, write_through=stream.write_through,
        )  # fmt: skip

    def write(self, text: str, /) -> int:
        """Write, or leave."""
        with self._read_by_someone():
            return super().write(text)

    def flush(self) -> None:
        """Flush, or leave."""
        with self._read_by_someone():
            super().flush()

    @contextmanager
    def _read_by_someone(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            # What is left in the buffer goes nowhere: nothing complains of it at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            sys.exit(UNREAD)


def leave_when_unread() -> None:
    """From here on, what is printed after its reader has gone ends the program."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = Piped(sys.stdout)
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = Piped(sys.stderr)


@cache
def console() -> Console:
    """Where results go. Names and paths may hold brackets and colons: nothing in them is markup."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    return Console(width=None if terminal else BOUNDLESS, soft_wrap=not terminal, markup=False, emoji=False)


def say(text: str) -> None:
    """One line of talk."""
    print(text, file=sys.stderr, flush=True)


def show(table: Table) -> None:
    """Print a table. A terminal too narrow for it gets the widest cells on several lines; nothing is cut."""
    console().print(table.terminal())


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, note: str = "") -> None:
    """Print rows of text as a table."""
    from localpolicy.report.table import Table, cells

    show(Table(title, columns, [cells(*row) for row in rows], note))
