"""`lpi go`: from a log to a verdict and a page in one command."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from localpolicy.cli.evaluate import Device, write_and_print
from localpolicy.cli.output import show, show_table
from localpolicy.limits import LARGEST_SEED

LOG = logging.getLogger(__name__)


def go(
    log: Annotated[Path, typer.Argument(help="CSV or Parquet, one row per event", show_default=False)],
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
    minutes: Annotated[float, typer.Option(min=0.1, help="minutes for training")] = 15.0,
    rules: Annotated[Path | None, typer.Option(help="a YAML file of the gate's rules")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="change a setting, such as train.epochs=4; may be repeated"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="seed of the split")] = 0,
    device: Device = "auto",
    yes: Annotated[bool, typer.Option("--yes", help="do not ask for confirmation")] = False,
) -> None:
    """From a log to a verdict: guess the columns, prepare, train, choose, judge, and write one page.

    Exit code 0: deploy; 3: do not deploy; 4: cannot tell. OUT/commands.sh lists the same steps as single commands.
    """
    from localpolicy.cli.prepare import _column_map
    from localpolicy.data.rewards import pairs
    from localpolicy.judge.gate import read_rules
    from localpolicy.report.gate import gate_table, write_go
    from localpolicy.report.quality import counts_table
    from localpolicy.study.go import carry_out, prepare_log
    from localpolicy.study.go import plan as make_plan
    from localpolicy.study.guess import UnknownColumns, column_names, guess
    from localpolicy.study.titles import read_titles, title_column

    asks = sys.stdin.isatty() and not yes and not (out / "go.yaml").exists()
    given = {} if columns is None else _column_map(columns)
    renamed = None if rename is None else pairs(rename, what="rename")
    try:
        guessed = guess(log, columns=given, rewards=rewards, rename=renamed)
    except UnknownColumns as error:
        if not asks:
            raise
        LOG.info("the columns of %s: %s", log, ", ".join(error.names))
        for name in error.missing:
            given[name] = typer.prompt(f"Which of them is the {name}?", err=True)
        guessed = guess(log, columns=given, rewards=rewards, rename=renamed)
    rows = [(ours, theirs) for ours, theirs in guessed.columns.items()]
    rows += [("source", guessed.source)] if guessed.source != "events" else []
    rows += [("rewards", guessed.rewards)] if guessed.rewards else []
    called = titles or (log if title_column(column_names(log)) else None)
    rows += [("titles of items", str(called))] if called else []
    show_table(f"How {log} is read", ("what", "in the log"), rows or [("all columns", "as they are called")])
    for note in guessed.unsure:
        LOG.info("note: %s.", note)
    if asks:
        typer.confirm("Is this right? (no: stop, and use --columns and --rewards)", default=True, abort=True, err=True)
    item = guessed.columns.get("item_id") if called == log else None
    data = prepare_log(log, out, guessed, seed=seed)
    show(counts_table(data))
    plan = make_plan(data, out, minutes=minutes, seed=seed, changes=changes or (), device=device)
    for note in plan.notes:
        LOG.info("note: %s.", note)
    LOG.info(
        f"training {plan.runs} runs of at most {plan.config.train.epochs} epochs: about {_minutes(plan.seconds)} at "
        f"most ({plan.epoch_seconds:.1f} s an epoch; each stops early after {plan.config.train.patience} without gain)"
    )
    result = carry_out(data, plan, out, rules=None if rules is None else read_rules(rules), titles=called)
    write_go(result, out / "report.html", titles=None if called is None else read_titles(called, item=item))
    write_and_print(
        [gate_table(result.verdict)], result.verdict.to_dict(), json=out / "verdict.json", markdown=None, latex=None
    )
    LOG.info("the policy judged: %s%s", result.chosen.folder, f" ({result.said})" if result.said else "")
    LOG.info("report: %s; what was done, as commands: %s", out / "report.html", out / "commands.sh")
    from localpolicy.cli.gate import EXIT

    raise typer.Exit(EXIT[result.verdict.answer])


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
