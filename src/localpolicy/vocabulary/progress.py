"""A progress bar on stderr, and silence where there is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[..., None]


@contextmanager
def progress(description: str, total: float | None) -> Iterator[Advance]:
    """Yields `advance(amount, note="")`; the note stands right of the bar."""
    if not sys.stderr.isatty():
        yield lambda amount=1, note="": None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total, note="")

        def advance(amount: float = 1, note: str = "") -> None:
            bar.update(task, advance=amount, note=note)

        yield advance
