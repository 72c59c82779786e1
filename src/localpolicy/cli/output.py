"""Results go to stdout, messages to stderr. Without a terminal, tables and progress bars are plain text.

Messages are those of the package's logger, `localpolicy`: lines for people, or with --log-json objects for machines.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from json import dumps
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from localpolicy.runtime.files import STDOUT
from localpolicy.runtime.full_disk import FULL
from localpolicy.runtime.progress import EPOCH_LINES

if TYPE_CHECKING:
    from rich.console import Console

    from localpolicy.report.table import Table

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
    """End the program when it prints to a closed pipe, from now on."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the caller closed it: files are still written
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - as long as the program
        elif isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, Piped(stream))


def console() -> Console:
    """Console of results. Markup is off: names and paths may hold brackets and colons. A file keeps lines whole."""
    from rich.console import Console

    return Console(width=get_terminal_size().columns, soft_wrap=not sys.stdout.isatty(), markup=False, emoji=False)


def show(table: Table) -> None:
    """Print a table. If it is too wide, its columns, or the lines of its widest cells, are stacked."""
    table.print_on(console())


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, note: str = "") -> None:
    """Print rows of text as a table."""
    from localpolicy.report.table import Table

    show(Table(title, columns, rows, note))


def write_and_print(
    tables: Sequence[Table],
    content: Any = None,
    *,
    json: Path | None = None,
    markdown: Path | None = None,
    latex: Path | None = None,
) -> None:
    """Write the files, then print the tables. Printing comes last: in `lpi … | head` it ends the program."""
    from localpolicy.runtime.files import write_text

    if str(json) != STDOUT:
        also_json(json, content)
    if markdown is not None:
        write_text(markdown, "\n".join(table.markdown() for table in tables))
    if latex is not None:
        write_text(latex, "\n".join(table.latex() for table in tables))
    if str(json) == STDOUT:  # the next program of a pipe wants JSON alone
        print(dumps(content, indent=2))
        return
    for table in tables:
        show(table)


def also_json(path: Path | None, content: Any) -> None:
    """Write the result as JSON, if a file is named."""
    from localpolicy.runtime.files import write_json

    if path is not None:
        write_json(path, content)


# ---------------------------------------------------------------------- messages


# Loggers of step-by-step messages, hidden unless a verb asks for them (`show_steps`).
PREPARING = "localpolicy.data.prepare"


class Stderr(logging.Handler):
    """Log handler that writes to the current `sys.stderr`."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record to the current `sys.stderr`."""
        print(self.format(record), file=sys.stderr, flush=True)


class Line(logging.Formatter):
    """Formatter of messages for people: the text alone, and the level of warnings."""

    def format(self, record: logging.LogRecord) -> str:
        """Text of a record for people."""
        before = {logging.WARNING: "note: ", logging.ERROR: "lpi: "}.get(record.levelno, "")
        return f"{before}{record.getMessage()}"


class JsonLine(logging.Formatter):
    """Formatter of one JSON object per message: time, level, logger, message."""

    def format(self, record: logging.LogRecord) -> str:
        """JSON text of a record."""
        content = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        return dumps(content, ensure_ascii=False)


def show_messages(*, as_json: bool = False) -> None:
    """Show the package's messages from here on."""
    logger = logging.getLogger("localpolicy")
    for shown in [handler for handler in logger.handlers if isinstance(handler, Stderr)]:
        logger.removeHandler(shown)
    handler = Stderr()
    handler.setFormatter(JsonLine() if as_json else Line())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    for name in (PREPARING, EPOCH_LINES):
        logging.getLogger(name).setLevel(logging.WARNING)


def show_steps(name: str) -> None:
    """Show the step-by-step messages of this logger too."""
    logging.getLogger(name).setLevel(logging.INFO)
