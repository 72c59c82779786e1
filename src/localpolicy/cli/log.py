"""`lpi rotate`, `lpi audit` and `lpi erase`: what is done with the service's log."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from localpolicy.cli.options import Fields, takes
from localpolicy.cli.output import also_json, show_table

LOG = logging.getLogger(__name__)


@takes(Fields("localpolicy.serving.join:JoinConfig", "Rewards"))
def rotate(
    log: Annotated[str, typer.Argument(help="the log: a SQLite file, or postgresql://…")],
    out: Annotated[Path, typer.Option(help="the folder of Parquet files")],
    grace: Annotated[
        float, typer.Option(help="seconds to wait after the window for answers that arrive late", min=0)
    ] = 0.0,
    late: Annotated[
        bool, typer.Option("--late", help="count answers whenever they came, after the window too")
    ] = False,
    now: Annotated[bool, typer.Option("--now", help="also move lists whose window is still open")] = False,
    json: Annotated[
        Path | None,
        typer.Option(help="write the files' names and the answers' fates as JSON to this file"),
    ] = None,
    **answers: Any,
) -> None:
    """Join lists with their feedback, and move them to Parquet once their window is over."""
    from localpolicy.serving.join import JoinConfig
    from localpolicy.serving.records import now as moment
    from localpolicy.serving.rotate import move

    config, upto = JoinConfig.parse(answers), moment() if now else None
    moved = move(log, out=out, config=config, upto=upto, grace=grace, late=late)
    also_json(json, {"files": [str(file) for file in moved.files], "answers": moved.answers})
    LOG.info(moved.text())


WORDS = {"passed": "ok", "fault": "FAULT", "unsure": "unsure"}


def audit(
    log: Annotated[str, typer.Argument(help="a log (SQLite file, postgresql://…), or the folder it was rotated to")],
    run: Annotated[
        list[Path] | None, typer.Option(help="a run or export that served the log; repeat it for each of them")
    ] = None,
    answered: Annotated[float, typer.Option(help="smallest share of lists that must have feedback")] = 0.0,
    json: Annotated[Path | None, typer.Option(help="also write the findings as JSON to this file")] = None,
) -> None:
    """Check logged propensities: exit code 0 if they are true, 3 for a fault, 4 for cannot tell."""
    from localpolicy.serving.audit import audit as run_it

    result = run_it(log, runs=run or (), answered=answered)
    rows = [(WORDS[finding.status], finding.check, finding.text) for finding in result.findings]
    show_table(f"audit of {result.lists:,} lists", ("", "check", "found"), rows)
    also_json(json, result.json())
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def erase(
    person: Annotated[str, typer.Argument(help="the person's id, as it was sent in requests")],
    log: Annotated[str | None, typer.Option(help="the log: a SQLite file, or postgresql://…")] = None,
    files: Annotated[list[Path] | None, typer.Option(help="rotated files, or folders of them")] = None,
    data: Annotated[list[Path] | None, typer.Option(help="data sets prepared from them")] = None,
    json: Annotated[Path | None, typer.Option(help="write the record of the erasure as JSON to this file")] = None,
) -> None:
    """Erase a person from a log, its rotated files and prepared data sets. The record of it does not name them."""
    from localpolicy.errors import ConfigError
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
    also_json(json, record)
