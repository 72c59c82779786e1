"""`lpi audit`: are the logged propensities true?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from localpolicy.cli.output import show_table

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
    from localpolicy.runtime.files import write_json
    from localpolicy.serving.audit import audit as run_it

    result = run_it(log, runs=run or (), answered=answered)
    rows = [(WORDS[finding.status], finding.check, finding.text) for finding in result.findings]
    show_table(f"audit of {result.lists:,} lists", ("", "check", "found"), rows)
    if json is not None:
        write_json(json, result.json())
    if result.exit_code:
        raise typer.Exit(result.exit_code)
