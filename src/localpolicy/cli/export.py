"""`lpi export`: a run as ONNX, checked against PyTorch."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

LOG = logging.getLogger(__name__)


def export(
    run: Annotated[Path, typer.Argument(help="a finished run")],
    out: Annotated[Path, typer.Option(help="the folder to write")],
    int8: Annotated[
        bool,
        typer.Option(
            "--int8", help="round item embeddings to int8: a slightly different policy, faster for large catalogues"
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="replace the folder, once the new one is complete")] = False,
) -> None:
    """Export a run as ONNX graphs, so that lists are made by onnxruntime and numpy, without torch."""
    from localpolicy.serving.export import export as run_it

    made = run_it(run, out=out, int8=int8, force=force)
    about = made.description
    difference = (
        f"rounded rows, JS {about['js']:.1e} nats from the run (at most {about['most_js']:g})"
        if int8
        else f"log-probabilities are within {about['largest_difference']:.1e} nats of PyTorch's"
    )
    LOG.info(
        f"wrote {out}: policy {made.version}, {made.n_items:,} items, {'with' if made.has_dial else 'without'} a dial; "
        f"{difference}"
    )
