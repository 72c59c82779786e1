"""`lpi simulate` and `lpi prepare`: a log is made, and any log becomes a data set of sequences."""

from __future__ import annotations

import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from localpolicy.cli.options import Fields, Force, takes
from localpolicy.cli.output import PREPARING, also_json, show, show_steps, show_table
from localpolicy.limits import LARGEST_SEED

LOG = logging.getLogger(__name__)


def simulate(
    world: Annotated[str, typer.Argument(help="bandit, store, ranker, yoochoose, retailrocket or netflix")],
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
    force: Force = False,
    json: Annotated[Path | None, typer.Option(help="also write the figures as JSON to this file")] = None,
) -> None:
    """Simulate a world with a known truth, or raw files in the format of a public data set."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
    also_json(json, {**asdict(result), "path": str(result.path)})
    show_table(f"{world} in {result.path}", ("what", "value"), rows)


@takes(Fields("localpolicy.data.config:PrepareConfig"), Fields("localpolicy.data.config:PrepareOptions", "How"))
def prepare(
    source: Annotated[
        str,
        typer.Argument(
            help="events, yoochoose, retailrocket, netflix, movielens or openbandit; or a reader: package.module:Name"
        ),
    ],
    paths: Annotated[
        list[str],
        typer.Argument(
            help="files or folders, as downloaded; or s3://, gs://, delta+ and iceberg+ addresses", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option(help="folder of the data set to write", show_default=False)],
    json: Annotated[Path | None, typer.Option(help="write the counts and the quality report as JSON")] = None,
    **settings: Any,
) -> None:
    """Prepare a log: read, check, filter, index, split and store it; report on its quality."""
    from localpolicy.data.prepare import prepare as prepare_log
    from localpolicy.data.quality import measure
    from localpolicy.data.store import QUALITY_PAGE, Prepared
    from localpolicy.errors import DataError
    from localpolicy.report.results import quality_tables, write_quality

    show_steps(PREPARING)
    try:
        data = prepare_log(*paths, source=source, out=out, **settings)
    except DataError:
        # A day that was appended by a call that was killed before it wrote the page: the page is still owed.
        if settings.get("append") and (out / "manifest.json").exists() and not (out / QUALITY_PAGE).exists():
            whole = Prepared(out)
            write_quality(whole, measure(whole))
        raise
    quality = measure(data)
    page = write_quality(data, quality)
    also_json(
        json, {"counts": data.manifest["counts"], "splits": data.manifest["splits"], "quality": quality.as_dict()}
    )
    for table in quality_tables(data, quality):
        show(table)
    LOG.info("prepared %s; plots are in %s", out, page)
