"""`lpi recommend`: lists for many histories."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from localpolicy.limits import LARGEST_SEED

LOG = logging.getLogger(__name__)


def recommend(
    run: Annotated[Path, typer.Argument(help="a finished run, or a saved baseline")],
    out: Annotated[
        Path,
        typer.Option(help="file to write: JSON lines, one per history; .csv or .parquet, one row per item; -: stdout"),
    ],
    histories: Annotated[
        Path | None,
        typer.Option(
            help='JSON lines: "history", a list of items, and if wanted "id", "events", "exclude", "candidates"; or '
            "CSV or Parquet with a row per event: sequence_id, item_id, event"
        ),
    ] = None,
    every: Annotated[Path | None, typer.Option("--all", help="recommend for all sequences of this data set")] = None,
    k: Annotated[int, typer.Option("-k", help="length of the lists")] = 20,
    beta: Annotated[float | None, typer.Option(help="use π ∝ μ̂ exp(Q/β) at this β instead of the trained head")] = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="draw items without replacement, and write their propensities")
    ] = False,
    exclude_seen: Annotated[bool, typer.Option("--exclude-seen", help="leave out items of the history")] = False,
    seed: Annotated[int | None, typer.Option(min=0, max=LARGEST_SEED, help="seed of the draw")] = None,
) -> None:
    """Recommend lists for the histories of a file."""
    from localpolicy.serving.recommend import recommend as run_it

    count = run_it(
        run,
        histories=histories,
        every=every,
        out=out,
        k=k,
        beta=beta,
        sample=sample,
        exclude_seen=exclude_seen,
        seed=seed,
    )
    assert isinstance(count, int)  # since they were written
    LOG.info("wrote %s %s to %s", f"{count:,}", "list" if count == 1 else "lists", out)
