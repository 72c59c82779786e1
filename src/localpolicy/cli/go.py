"""`lpi go`: from a log to a verdict and a page in one command."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localpolicy.cli.options import Changes, Device, ExcludeSeen, Fields, Why, takes
from localpolicy.cli.output import show, write_and_print
from localpolicy.limits import LARGEST_SEED

if TYPE_CHECKING:
    from localpolicy.study.go import GoResult

LOG = logging.getLogger(__name__)


@takes(Fields("localpolicy.data.config:go_fields", "Preparing"))
def go(
    log: Annotated[Path, typer.Argument(help="CSV, Parquet, JSON or Excel, one row per event", show_default=False)],
    out: Annotated[Path, typer.Option(help="folder for all results; a stopped command resumes there")],
    columns: Annotated[
        str | None, typer.Option(help="correct the guessed columns, our name = log name: sequence_id=visit,item_id=sku")
    ] = None,
    rewards: Annotated[str | None, typer.Option(help="the reward of each event: buy=1.0,view=0.2")] = None,
    rename: Annotated[str | None, typer.Option(help="rename events, log name = our name: 0=view,1=buy")] = None,
    titles: Annotated[
        Path | None,
        typer.Option(help="titles of items: CSV or Parquet with item_id and title (default: the log's own)"),
    ] = None,
    minutes: Annotated[
        float, typer.Option(min=0.1, help="minutes for everything; what does not fit is left out and reported")
    ] = 15.0,
    own: Annotated[
        Path | None,
        typer.Option(
            help="lists of the recommender that is deployed: CSV or Parquet with user, item and rank or score"
        ),
    ] = None,
    skip_bad_rows: Annotated[
        bool, typer.Option("--skip-bad-rows", help="skip rows that cannot be read, and count them")
    ] = False,
    exclude_seen: ExcludeSeen = False,
    rules: Annotated[Path | None, typer.Option(help="a YAML file of the gate's rules")] = None,
    why: Why = False,
    changes: Changes = None,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="seed of the split")] = 0,
    device: Device = "auto",
    yes: Annotated[bool, typer.Option("--yes", help="do not ask for confirmation")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show how the log is read, and stop")] = False,
    **preparing: Any,
) -> None:
    """From a log to a verdict: guess the columns, prepare, train, choose, judge, and write one page.

    Exit code 0: deploy; 7: test online; 3: do not deploy; 4: cannot tell; 6: nothing to decide. OUT/commands.sh lists
    the same steps as single commands.
    """
    from localpolicy import go as go_on
    from localpolicy.cli.evaluate import EXIT
    from localpolicy.data.config import PrepareConfig
    from localpolicy.data.guess.guess import UnknownColumns
    from localpolicy.data.rewards import pairs
    from localpolicy.report.go import go_tables

    asks = sys.stdin.isatty() and not yes and not (out / "go.yaml").exists()
    given = {} if columns is None else PrepareConfig.parse({"columns": columns}).columns

    def confirm() -> None:
        if dry_run:
            raise typer.Exit(0)
        typer.confirm("Is this right? (no: stop, and use --columns and --rewards)", default=True, abort=True, err=True)

    def run() -> GoResult:
        return go_on(
            log, out=out, columns=given, rewards=rewards, rename=pairs(rename or "", what="rename"), own=own,
            titles=titles, skip_bad_rows=skip_bad_rows, minutes=minutes, exclude_seen=exclude_seen, rules=rules,
            seed=seed, device=device, settings=tuple(changes or ()), shown=show,
            confirm=confirm if asks or dry_run else None, **preparing,
        )  # fmt: skip

    try:
        result = run()
    except UnknownColumns as error:
        if not asks:
            raise
        LOG.info("the columns of %s: %s", log, ", ".join(error.names))
        for name in error.missing:
            given[name] = typer.prompt(f"Which of them is the {name}?", err=True)
        result = run()
    write_and_print(go_tables(result, why=why)[1:], result.to_dict(), json=out / "verdict.json")
    if result.verdict is not None:
        said = f" ({result.said.rstrip('.')})" if result.said else ""
        LOG.info("the policy judged: %s%s", result.chosen.folder, said)
    report = [f"report: {out / 'report.html'}"] if (out / "report.html").exists() else []
    LOG.info("%s", "; ".join([*report, f"what was done, as commands: {out / 'commands.sh'}"]))
    raise typer.Exit(EXIT[result.answer])
