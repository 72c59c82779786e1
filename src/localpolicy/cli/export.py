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
    force: Annotated[bool, typer.Option("--force", help="replace the folder, once the new one is complete")] = False,
) -> None:
    """Export a run as ONNX graphs, so that lists are made by onnxruntime and numpy, without torch."""
    from localpolicy.serving.export import export as run_it

    made = run_it(run, out=out, force=force)
    LOG.info(
        f"wrote {out}: policy {made.version}, {made.n_items:,} items, {'with' if made.has_dial else 'without'} a dial; "
        f"log-probabilities are within {made.description['largest_difference']:.1e} nats of PyTorch's"
    )
