"""`lpi erase`: remove a person from the log and from what was made of it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

LOG = logging.getLogger(__name__)


def erase(
    person: Annotated[str, typer.Argument(help="the person's id, as it was sent in requests")],
    log: Annotated[str | None, typer.Option(help="the log: a SQLite file, or postgresql://…")] = None,
    files: Annotated[list[Path] | None, typer.Option(help="rotated files, or folders of them")] = None,
    data: Annotated[list[Path] | None, typer.Option(help="data sets prepared from them")] = None,
    json: Annotated[Path | None, typer.Option(help="write the record of the erasure as JSON to this file")] = None,
) -> None:
    """Erase a person from a log, its rotated files and prepared data sets. The record of it does not name them."""
    from localpolicy.errors import ConfigError
    from localpolicy.runtime.files import write_json
    from localpolicy.serving.erase import erase as run_it

    if log is None and not files and not data:
        raise ConfigError("nothing to erase from: name a --log, --files or --data.")
    record = run_it(person, log=log, files=files or (), data=data or ())
    rows = sum(entry["erased"] for entry in record["files"].values())
    sequences = sum(entry["sequences"] for entry in record["data"].values())
    LOG.info(
        f"erasure {record['id']}: {record['log'].get('requests', 0):,} lists of the log, {rows:,} rows of "
        f"{len(record['files'])} files, {sequences:,} sequences of {len(record['data'])} data sets"
    )
    if not (rows or sequences or any(record["log"].values())):
        LOG.warning("this person is in none of them: check the id, as it was sent in requests")
    if json is not None:
        write_json(json, record)
