"""`lpi verify`: are the files of a folder unchanged?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def verify(folder: Annotated[Path, typer.Argument(help="a run, a prepared data set, or an export")]) -> None:
    """Read every file of a run, a data set or an export, and compare its digest with the recorded one.

    Exit code 0: nothing has changed. 2: the message names the file that has.
    """
    from localpolicy.serving.verify import verify as check

    names = check(folder)
    print(f"{folder}: {len(names)} files are unchanged: {', '.join(names)}.")
