"""`lpi compare`: runs side by side, with significance, beside simple baselines."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from localpolicy.cli.evaluate import (
    Against,
    Data,
    Device,
    ExcludeSeen,
    Json,
    Latex,
    Markdown,
    MinHistory,
    Split,
    World,
    settings,
    write_and_print,
)

LOG = logging.getLogger(__name__)


def compare(
    runs: Annotated[list[Path], typer.Argument(help="the runs to compare", show_default=False)],
    against: Against = None,
    split: Split = "test",
    metrics: Annotated[str, typer.Option(help="ranking metrics of each event: HR@20,nDCG@20")] = "HR@20,nDCG@20",
    columns: Annotated[str | None, typer.Option(help="the metrics to compare: purchase.nDCG@20,new.HR@5")] = None,
    baseline: Annotated[
        str | None,
        typer.Option(help="also show gains over the policy of this name (a page always does: over the first mle run)"),
    ] = None,
    baselines: Annotated[bool, typer.Option(help="also compare popularity, last item and item-kNN")] = True,
    breakdown: Annotated[
        bool, typer.Option(help="also break the metrics down by number of events per sequence")
    ] = False,
    data: Data = None,
    world: World = None,
    min_history: MinHistory = None,
    exclude_seen: ExcludeSeen = False,
    imputation: Annotated[
        Path | None,
        typer.Option(help="for ratings: the folder of the model that imputes iAR@1 (fitted if missing)"),
    ] = None,
    device: Device = "auto",
    json: Json = None,
    markdown: Markdown = None,
    latex: Latex = None,
    html: Annotated[Path | None, typer.Option(help="write the whole report: one HTML file, no network needed")] = None,
    titles: Annotated[
        Path | None, typer.Option(help="titles of items for the page: CSV or Parquet with item_id and title")
    ] = None,
) -> None:
    """Compare runs on the same positions, beside simple baselines, and say what differs between them.

    A saved baseline, or a CSV or Parquet file of lists, is compared like a run."""
    from localpolicy.data.guess.log import read_titles
    from localpolicy.judge.compare import compare as measure
    from localpolicy.report.comparison import comparison_json
    from localpolicy.report.comparison_tables import comparison_tables

    names = None if titles is None else read_titles(titles)  # now, not after everything is measured
    result = measure(
        runs,
        against=against or (),
        data=data,
        world=world,
        config=settings(split=split, min_history=min_history, exclude_seen=exclude_seen, metrics=metrics),
        columns=None if columns is None else [part.strip() for part in columns.split(",")],
        baseline=baseline,
        baselines=baselines,
        imputation=imputation,
        device=device,
    )
    tables = comparison_tables(result, gains=baseline is not None, by_count=breakdown)
    if html is not None:
        from localpolicy.report.comparison import write_comparison

        write_comparison(result, html, titles=names)
    write_and_print(
        tables, comparison_json(result) if json is not None else {}, json=json, markdown=markdown, latex=latex
    )
    if html is not None:
        LOG.info("report: %s", html)
