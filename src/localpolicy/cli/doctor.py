"""`lpi doctor` and `lpi verify`: is everything here, and are the files of a folder unchanged?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from localpolicy.cli.output import show_table


def doctor() -> None:
    """Versions, devices and extras: what is found, what is missing and how to get it."""
    from localpolicy.serving.doctor import HEADS
    from localpolicy.serving.doctor import doctor as look

    found = look()
    show_table("localpolicy on this machine", HEADS, found.rows)
    if not found.healthy:
        sys.exit(2)


def verify(folder: Annotated[Path, typer.Argument(help="a run, a prepared data set, or an export")]) -> None:
    """Read every file of a run, a data set or an export, and compare its digest with the recorded one.

    Exit code 0: nothing has changed. 2: the message names the file that has.
    """
    from localpolicy.serving.verify import verify as check

    names = check(folder)
    print(f"{folder}: {len(names)} files are unchanged: {', '.join(names)}.")
