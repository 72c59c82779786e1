"""`lpi register`: a run and its export in MLflow; the alias `champion` follows the gate."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

LOG = logging.getLogger(__name__)


def register(
    run: Annotated[Path, typer.Argument(help="a finished run")],
    name: Annotated[str, typer.Option(help="the experiment and the registered model")],
    export: Annotated[Path | None, typer.Option(help="its export, which becomes a version of the model")] = None,
    gate: Annotated[
        Path | None, typer.Option(help="what 'lpi gate --json' wrote: deploy makes it the champion")
    ] = None,
    uri: Annotated[str | None, typer.Option(help="MLflow's server or folder (default: as MLflow finds it)")] = None,
    json: Annotated[Path | None, typer.Option(help="write what was made as JSON to this file")] = None,
) -> None:
    """Log a run in MLflow and register its export; the gate alone says who is the champion."""
    from localpolicy.runtime.files import write_json
    from localpolicy.serving.registry import register as run_it

    made = run_it(run, name=name, export=export, gate=gate, uri=uri)
    if json is not None:
        write_json(json, made)
    version = "" if made["version"] is None else f", version {made['version']} of {name}"
    LOG.info(f"logged run {made['run']}{version}{', the champion' if made['champion'] else ''}")
