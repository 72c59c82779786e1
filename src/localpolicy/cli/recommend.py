"""`lpi recommend`: lists for many histories."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from localpolicy.cli.output import say


def recommend(
    run: Annotated[Path, typer.Argument(help="a finished run")],
    histories: Annotated[Path, typer.Option(help='JSON lines: a list "history" of items and, if wanted, "answers"')],
    out: Annotated[Path, typer.Option(help="JSON lines to write, one per history")],
    k: Annotated[int, typer.Option("-k", help="length of the lists")] = 20,
    beta: Annotated[float | None, typer.Option(help="the dial: μ̂ exp(Q/β) instead of the trained head")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="draw without replacement, and give propensities")] = False,
    exclude_seen: Annotated[bool, typer.Option("--exclude-seen", help="leave out items of the history")] = False,
    seed: Annotated[int | None, typer.Option(help="of the draw")] = None,
) -> None:
    """Recommend lists for the histories of a file."""
    from localpolicy.serving.recommend import recommend as run_it

    count = run_it(
        run, histories=histories, out=out, k=k, beta=beta, sample=sample, exclude_seen=exclude_seen, seed=seed, say=say
    )
    say(f"wrote {count:,} {'list' if count == 1 else 'lists'} to {out}")
