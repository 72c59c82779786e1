"""Results go to stdout, messages to stderr. Without a terminal, tables and progress bars are plain text."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from localpolicy.runtime.full_disk import FULL

if TYPE_CHECKING:
    from rich.console import Console

    from localpolicy.report.table import Table

STDOUT = "-"  # as a file's name
BOUNDLESS = 1_000_000  # columns of a file: its tables are never wrapped
GONE = {errno.EPIPE, errno.EIO}  # the reader, or the terminal
UNREAD = (
    141  # exit code of a closed output pipe, as shells have it; not 0, since a gate that was cut off has not said yes
)


class Piped(io.TextIOWrapper):
    """A standard stream: ends the program in silence when its reader is gone, with a message when a disk is full.

    This is done here and not in `main`: typer and rich would catch the error first and report it as a bug.
    Characters that the terminal's encoding lacks (β in ISO 8859-1, a file name that is not UTF-8) are escaped.
    """

    def __init__(self, stream: io.TextIOWrapper) -> None:
        super().__init__(
            stream.buffer, stream.encoding, "backslashreplace",
            line_buffering=stream.line_buffering, write_through=stream.write_through,
        )  # fmt: skip

    def write(self, text: str, /) -> int:
        """Write, or end the program."""
        with self._read_by_someone():
            return super().write(text)

    def flush(self) -> None:
        """Flush, or end the program."""
        with self._read_by_someone():
            super().flush()

    @contextmanager
    def _read_by_someone(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in {*GONE, *FULL}:
                raise
            # What is left in the buffer goes to /dev/null, so that nothing fails when the stream is closed.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if error.errno in GONE:
                sys.exit(UNREAD)
            if self is not sys.stderr:
                print(f"lpi: the output could not be written: {os.strerror(error.errno)}. Make room.", file=sys.stderr)
            sys.exit(2)


def exit_on_closed_pipe() -> None:
    """From now on, printing to a closed pipe ends the program."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the caller closed it: files are still written
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - as long as the program
        elif isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, Piped(stream))


@cache
def console() -> Console:
    """The console of results. Markup is off: names and paths may hold brackets and colons."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    return Console(width=None if terminal else BOUNDLESS, soft_wrap=not terminal, markup=False, emoji=False)


def show(table: Table) -> None:
    """Print a table. In a narrow terminal its columns, or its widest cells, stand below one another."""
    for part in table.fitting(console().width):
        console().print(part.terminal())


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, note: str = "") -> None:
    """Print rows of text as a table."""
    from localpolicy.report.table import Table, cells

    show(Table(title, columns, [cells(*row) for row in rows], note))
