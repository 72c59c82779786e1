"""`lpi distill`: a run's policy, at one β, as one network."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from localpolicy.cli.messages import EPOCHS, show_steps
from localpolicy.cli.output import show

LOG = logging.getLogger(__name__)


def distill(
    run: Annotated[Path, typer.Argument(help="a finished run")],
    out: Annotated[Path, typer.Option(help="folder of the new run")],
    beta: Annotated[float | None, typer.Option(help="the β to keep (default: the run's own)")] = None,
    data: Annotated[Path | None, typer.Option(help="prepared data (default: those of the run)")] = None,
    epochs: Annotated[int | None, typer.Option(help="epochs at most (default: as many as the run)")] = None,
    force: Annotated[bool, typer.Option("--force", help="replace the folder")] = False,
) -> None:
    """Train one network that gives what a run of several networks gives, at one β."""
    from localpolicy.report.results import run_table
    from localpolicy.training.distill import distill as run_it

    if not sys.stderr.isatty():
        show_steps(EPOCHS)  # a terminal has a progress bar instead
    LOG.info("distilling %s into %s", run, out)
    settings = {} if epochs is None else {"epochs": epochs}
    show(run_table(run_it(run, out=out, beta=beta, data=data, force=force, **settings)))
