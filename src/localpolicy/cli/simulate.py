"""`lpi simulate`: a world with a known truth, or raw files in a public data set's format."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from localpolicy.cli.output import show_table
from localpolicy.limits import LARGEST_SEED


def simulate(
    world: Annotated[str, typer.Argument(help="bandit, store, yoochoose, retailrocket or netflix")],
    out: Annotated[Path, typer.Option(help="folder to write")],
    sequences: Annotated[int | None, typer.Option(help="sequences to simulate (default: the world's own)")] = None,
    items: Annotated[int | None, typer.Option(help="size of the catalogue (default: the world's own)")] = None,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="seed; the same seed writes the same bytes")] = 0,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="a setting of the world; may be repeated")
    ] = None,
    interactions: Annotated[
        bool, typer.Option("--interactions", help="keep what users did, not what was shown")
    ] = False,
    prepared: Annotated[bool, typer.Option("--prepared", help="write a prepared data set instead of events")] = False,
    force: Annotated[bool, typer.Option("--force", help="replace the folder")] = False,
    json: Annotated[Path | None, typer.Option(help="also write the figures as JSON to this file")] = None,
) -> None:
    """Simulate a world with a known truth, or raw files in the format of a public data set."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from localpolicy.runtime.files import write_json
    from localpolicy.simulation.run import default_sequences
    from localpolicy.simulation.run import simulate as run

    total = default_sequences(world) if sequences is None else sequences
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(f"sequences of {world}", total=total)
        result = run(
            world,
            out,
            sequences=total,
            items=items,
            seed=seed,
            changes=changes or (),
            interactions=interactions,
            prepared=prepared,
            force=force,
            progress=lambda done: bar.advance(task, done),
        )
    rows = [("sequences", f"{result.sequences:,}"), ("items", f"{result.items:,}")]
    rows += [(f"rows: {name}", f"{count:,}") for name, count in result.rows.items()]
    if result.answered is not None:
        rows.append(("answered, of impressions", f"{result.answered:.1%}"))
    if result.purchases is not None:
        rows.append(("purchases, of answered", f"{result.purchases:.1%}"))
    if result.logging_value is not None:
        rows.append(("J of the logging policy", f"{result.logging_value:.4f}"))
    if json is not None:
        write_json(json, {**asdict(result), "path": str(result.path)})
    show_table(f"{world} in {result.path}", ("what", "value"), rows)
