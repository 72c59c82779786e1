"""`lpi distill`, `lpi extend`, `lpi export` and `lpi register`: what is made of a finished run."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from localpolicy.cli.options import Force, Setting, takes
from localpolicy.cli.output import also_json, show, show_steps
from localpolicy.runtime.progress import EPOCH_LINES

LOG = logging.getLogger(__name__)


@takes()
def distill(
    run: Annotated[Path, typer.Argument(help="a finished run")],
    out: Annotated[Path, typer.Option(help="folder of the new run")],
    beta: Annotated[float | None, Setting("localpolicy.objectives.distill:Distill", "beta")] = None,
    data: Annotated[Path | None, typer.Option(help="prepared data (default: those of the run)")] = None,
    epochs: Annotated[int | None, typer.Option(help="epochs at most (default: as many as the run)")] = None,
    force: Force = False,
) -> None:
    """Train one network that gives what a run of several networks gives, at one β."""
    from localpolicy.report.results import run_table
    from localpolicy.training.distill import distill as run_it

    if not sys.stderr.isatty():
        show_steps(EPOCH_LINES)  # a terminal has a progress bar instead
    LOG.info("distilling %s into %s", run, out)
    settings = {} if epochs is None else {"epochs": epochs}
    show(run_table(run_it(run, out=out, beta=beta, data=data, force=force, **settings)))


def extend(
    run: Annotated[Path, typer.Argument(help="a finished run that was trained with item features")],
    items: Annotated[Path, typer.Option(help="item table with the new items: CSV or Parquet", show_default=False)],
    out: Annotated[Path, typer.Option(help="folder of the extended run", show_default=False)],
    force: Force = False,
) -> None:
    """Give a run new items without training: their rows come from items like them, all others stay as they are."""
    from localpolicy.report.results import run_table
    from localpolicy.runs.extend import extend as extend_run

    logging.getLogger("localpolicy.runs.extend").setLevel(logging.INFO)
    show(run_table(extend_run(run, items, out=out, force=force)))


def export(
    run: Annotated[Path, typer.Argument(help="a finished run")],
    out: Annotated[Path, typer.Option(help="the folder to write")],
    int8: Annotated[
        bool,
        typer.Option(
            "--int8", help="round item embeddings to int8: a slightly different policy, faster for large catalogues"
        ),
    ] = False,
    force: Force = False,
) -> None:
    """Export a run as ONNX graphs, so that lists are made by onnxruntime and numpy, without torch."""
    from localpolicy.serving.export import export as run_it

    made = run_it(run, out=out, int8=int8, force=force)
    about = made.description
    difference = (
        f"rounded rows, JS {about.js:.1e} nats from the run (at most {about.most_js:g})"
        if int8
        else f"log-probabilities are within {about.largest_difference:.1e} nats of PyTorch's"
    )
    LOG.info(
        f"wrote {out}: policy {made.version}, {made.n_items:,} items, {'with' if made.has_dial else 'without'} a dial; "
        f"{difference}"
    )


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
    from localpolicy.serving.registry import register as run_it

    made = run_it(run, name=name, export=export, gate=gate, uri=uri)
    also_json(json, made)
    version = "" if made["version"] is None else f", version {made['version']} of {name}"
    LOG.info(f"logged run {made['run']}{version}{', the champion' if made['champion'] else ''}")
