"""`lpi verify`: are the files of a folder unchanged?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def verify(folder: Annotated[Path, typer.Argument(help="a run, a prepared data set, or an export")]) -> None:
    """Read every file of a run, a data set or an export, and compare its digest with the recorded one.

    Exit code 0: nothing has changed. 2: the message names the file that has.
    """
    from localpolicy.data.store import Prepared
    from localpolicy.errors import RunError
    from localpolicy.runs.run import Run
    from localpolicy.runtime.files import read_json
    from localpolicy.serving.recommender import read_export

    if (folder / "export.json").exists():
        names = list(read_export(folder)["files"])
    elif not (folder / "manifest.json").exists():
        raise RunError(
            f"{folder} has no manifest.json: it is no finished run, no prepared data set and no export. A training "
            "that was stopped goes on with 'lpi train --resume'."
        )
    elif isinstance(content := read_json(folder / "manifest.json"), dict) and "counts" in content:
        Prepared(folder).verify()
        names = list(content["files"])
    else:
        names = Run(folder).verify()
    print(f"{folder}: {len(names)} files are unchanged: {', '.join(sorted(names))}.")
