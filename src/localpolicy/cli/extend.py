"""`lpi extend`: new items for a run, without training."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from localpolicy.cli.output import show

LOG = logging.getLogger(__name__)


def extend(
    run: Annotated[Path, typer.Argument(help="a finished run that was trained with item features")],
    items: Annotated[Path, typer.Option(help="item table with the new items: CSV or Parquet", show_default=False)],
    out: Annotated[Path, typer.Option(help="folder of the extended run", show_default=False)],
    force: Annotated[bool, typer.Option("--force", help="replace the folder")] = False,
) -> None:
    """Give a run new items without training: their rows come from items like them, all others stay as they are."""
    from localpolicy.report.results import run_table
    from localpolicy.runs.extend import extend as extend_run

    logging.getLogger("localpolicy.runs.extend").setLevel(logging.INFO)
    show(run_table(extend_run(run, items, out=out, force=force)))
