"""`lpi improve`: a layer on somebody's own ranker."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from localpolicy.cli.options import Fields, Force, takes
from localpolicy.cli.output import write_and_print

LOG = logging.getLogger(__name__)


@takes(Fields("localpolicy.ranker.improve:ImproveConfig"))
def improve(
    log: Annotated[Path, typer.Argument(help="requests with candidates and scores: Parquet, JSON lines or CSV")],
    out: Annotated[Path, typer.Option(help="folder of the layer to write", show_default=False)],
    outcomes: Annotated[Path | None, typer.Option(help="answers by request and item, where LOG has none")] = None,
    items: Annotated[Path | None, typer.Option(help="an item table, whose columns critics see")] = None,
    columns: Annotated[
        list[str] | None, typer.Option(metavar="OURS=THEIRS", help="what a column is called; may be repeated")
    ] = None,
    force: Force = False,
    json: Annotated[Path | None, typer.Option(help="also write every number as JSON to this file")] = None,
    **settings: Any,
) -> None:
    """Put a layer on your own ranker: exit code 0 deploy, 3 do not, 4 cannot tell, 6 nothing gained."""
    from localpolicy.data.rewards import pairs
    from localpolicy.ranker.improve import improve as run_it
    from localpolicy.report.ranker import improvement_tables

    named = {ours: theirs for text in columns or () for ours, theirs in pairs(text, what="columns").items()}
    result = run_it(log, outcomes, out=out, items=items, columns=named, force=force, **settings)
    write_and_print(improvement_tables(result), result.to_dict(), json=json)
    LOG.info("wrote %s; in Python: lp.Layer(%r).rerank(candidates, k)", out, str(out))
    if result.exit_code:
        raise typer.Exit(result.exit_code)
