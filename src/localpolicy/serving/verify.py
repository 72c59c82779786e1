"""`verify`: whether the files of a run, a data set or an export are unchanged since they were written."""

from __future__ import annotations

from pathlib import Path

from localpolicy.errors import RunError
from localpolicy.runtime.files import read_json
from localpolicy.serving.exports import read_export


def verify(folder: Path | str) -> list[str]:
    """Compare the digest of every file of the folder with the recorded one; return the names of the files.

    Raise RunError, which names the file, if one is missing or has changed.
    """
    folder = Path(folder)
    if (folder / "export.json").exists():
        return sorted(read_export(folder).files)
    if not (folder / "manifest.json").exists():
        raise RunError(
            f"{folder} has no manifest.json: it is no finished run, no prepared data set and no export. A training "
            "that was stopped is continued by 'lpi train --resume'."
        )
    content = read_json(folder / "manifest.json")
    if isinstance(content, dict) and "counts" in content:
        from localpolicy.data.store import Prepared  # an export is verified where there is neither pyarrow nor torch

        Prepared(folder).verify()
        return sorted(content["files"])
    from localpolicy.runs.run import Run

    return sorted(Run(folder).verify())
