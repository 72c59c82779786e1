"""`lpi loop`: deploy, log, retrain, round after round, in a world whose truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from localpolicy.cli.options import Fields, takes
from localpolicy.cli.output import console, show
from localpolicy.cli.sweep import Processes

OPTIONS = ("objectives", "sequences", "items", "seeds", "world_seed", "logging", "keep_logs", "episodes")


@takes(Fields("localpolicy.study.settings:LoopConfig", only=OPTIONS))
def loop(
    world: Annotated[str, typer.Argument(help="bandit or store", show_default=False)],
    out: Annotated[Path, typer.Option(help="folder to write; a stopped loop resumes there")],
    rounds: Annotated[int, typer.Option(help="number of rounds; a larger number continues an earlier loop")] = 10,
    beta: Annotated[
        list[float] | None, typer.Option(help="β of the objectives that have one; repeat it for several arms")
    ] = None,
    dials: Annotated[
        list[str] | None, typer.Option("--dial", metavar="KEY=VALUE", help="a setting of the world; may be repeated")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="a training setting, such as train.epochs=4; may be repeated"),
    ] = None,
    processes: Processes = None,
    json: Annotated[Path | None, typer.Option("--json", help="also write the result as JSON to this file")] = None,
    **settings: Any,
) -> None:
    """Deploy, log and retrain for some rounds, with several objectives; report how J changed and what went wrong."""
    from localpolicy.report.loop import loop_tables, trajectories, write_loop
    from localpolicy.study.loop import loop as run
    from localpolicy.study.settings import loop_config

    listed = {"betas": tuple(beta or ()), "dials": tuple(dials or ()), "changes": tuple(changes or ())}
    result = run(loop_config(world, **listed, **settings), out=out, rounds=rounds, processes=processes)
    contents = write_loop(result, out, json=json)
    for table in loop_tables(result, narrow=True):
        show(table)
    for arm in trajectories(result):
        console().print(f"  {arm.summary()}", highlight=False)
    console().print(f"\n{contents.verdict}\nreport: {out / 'report.html'}", highlight=False)
