"""Progress bar on stderr: by rich in a terminal, one output that is replaced in a notebook; else silence."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec

Advance = Callable[..., None]
EPOCH_LINES = "localpolicy.training.epochs"  # the logger of one line per epoch, where there is no terminal
NOTE_EVERY = 0.5  # seconds between costly notes


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    shell = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"


@contextmanager
def _line(description: str, total: float | None) -> Iterator[Advance]:
    """Context manager: one output of a notebook's cell that is replaced, and empty at the end.

    Text on stderr would be kept line by line by those who run notebooks without a window.
    """
    output = import_module("IPython.display").display({"text/plain": ""}, raw=True, display_id=True)
    done, shown = 0.0, 0.0

    def advance(amount: float = 1, note: str | Callable[[], str] = "") -> None:
        nonlocal done, shown
        done += amount
        if time.monotonic() - shown < NOTE_EVERY:
            return
        shown = time.monotonic()
        of = "" if total is None else f" of {total:,.0f}"
        text = f"{description}: {done:,.0f}{of} {note() if callable(note) else note}".rstrip()
        output.update({"text/plain": text}, raw=True)

    try:
        yield advance
    finally:
        output.update({"text/plain": ""}, raw=True)


@contextmanager
def progress(description: str, total: float | None) -> Iterator[Advance]:
    """Context manager: yield `advance(amount, note="")`; the note is shown to the right of the bar.

    A costly note (one that waits for a device) is given as a function. It is called twice a second at most, and never
    without a terminal.
    """
    if in_notebook() and not find_spec("ipywidgets"):  # which rich needs there
        with _line(description, total) as advance:
            yield advance
        return
    if not (sys.stderr.isatty() or in_notebook()):
        yield lambda amount=1, note="": None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    columns = (
        TextColumn("{task.description}", markup=False),  # a run may be called lpi[0.3]
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        # What is left of the line: a narrow terminal cuts the note, never the bar and the time.
        TextColumn("{task.fields[note]}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as bar:
        task = bar.add_task(description, total=total, note="")
        asked = 0.0

        def advance(amount: float = 1, note: str | Callable[[], str] = "") -> None:
            nonlocal asked
            if callable(note):
                if time.monotonic() - asked < NOTE_EVERY:
                    bar.update(task, advance=amount)
                    return
                note, asked = note(), time.monotonic()
            bar.update(task, advance=amount, note=note)

        yield advance
