"""`lpi improve` and `lpi explore plan`: a layer on somebody's own ranker, and what drawing its lists would cost."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from localpolicy.cli.options import Fields, Force, takes
from localpolicy.cli.output import write_and_print

LOG = logging.getLogger(__name__)


Requests = Annotated[
    Path, typer.Argument(help="requests with candidates and scores: Parquet, JSON lines, CSV, or what lpi rotate wrote")
]
Outcomes = Annotated[Path | None, typer.Option(help="answers by request and item, if LOG has none")]
Columns = Annotated[
    list[str] | None, typer.Option(metavar="OURS=THEIRS", help="what a column is called; may be repeated")
]
AsJson = Annotated[Path | None, typer.Option(help="also write every number as JSON to this file")]


def _named(columns: list[str] | None) -> dict[str, str]:
    """Map from our column names to the user's."""
    from localpolicy.data.rewards import pairs

    return {ours: theirs for text in columns or () for ours, theirs in pairs(text, what="columns").items()}


@takes(Fields("localpolicy.ranker.improve:ImproveConfig"))
def improve(
    log: Requests,
    out: Annotated[Path, typer.Option(help="folder of the layer to write", show_default=False)],
    outcomes: Outcomes = None,
    items: Annotated[Path | None, typer.Option(help="an item table, whose columns critics see")] = None,
    columns: Columns = None,
    force: Force = False,
    json: AsJson = None,
    **settings: Any,
) -> None:
    """Put a layer on your own ranker: exit code 0 deploy, 3 do not, 4 cannot tell, 6 nothing gained."""
    from localpolicy.ranker.improve import improve as run_it
    from localpolicy.report.ranker import improvement_tables

    result = run_it(log, outcomes, out=out, items=items, columns=_named(columns), force=force, **settings)
    write_and_print(improvement_tables(result), result.to_dict(), json=json)
    LOG.info("wrote %s; in Python: lp.Layer(%r).rerank(candidates, k)", out, str(out))
    if result.exit_code:
        raise typer.Exit(result.exit_code)


explore = typer.Typer(help="Know what drawing your ranker's lists costs before you draw any.", no_args_is_help=True)


@explore.command("plan")
@takes(Fields("localpolicy.ranker.explore:ExploreConfig"))
def explore_plan(
    log: Requests, outcomes: Outcomes = None, columns: Columns = None, json: AsJson = None, **settings: Any
) -> None:
    """Estimate for each way to draw your lists: its cost, and the lists and days until the verdict detects a gain."""
    from localpolicy.ranker.explore import plan as run_it
    from localpolicy.report.ranker import explore_tables

    result = run_it(log, outcomes, columns=_named(columns), **settings)
    write_and_print(explore_tables(result), result.to_dict(), json=json)
