"""`lpi loop`: deploy, log, retrain, round after round, in a world whose truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from localpolicy.cli.output import console, show
from localpolicy.limits import LARGEST_SEED


def loop(
    world: Annotated[str, typer.Argument(help="bandit or store", show_default=False)],
    out: Annotated[Path, typer.Option(help="folder to write; a loop that was stopped goes on there")],
    rounds: Annotated[int, typer.Option(help="rounds; more than before go on from the last")] = 10,
    objectives: Annotated[
        str | None,
        typer.Option(help="mle,ips,lpi_cb; with settings as lpi_cb:advantage=observed"),
    ] = None,
    beta: Annotated[
        list[float] | None, typer.Option(help="β of the objectives that have one; several give an arm each")
    ] = None,
    sequences: Annotated[int | None, typer.Option(help="sequences that each policy serves")] = None,
    items: Annotated[int | None, typer.Option(help="size of the catalogue (default: the demo's)")] = None,
    seeds: Annotated[str, typer.Option(help="of logs and training, as 0,1,2: a whole loop each")] = "0",
    world_seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="which world of this kind")] = 0,
    dials: Annotated[list[str] | None, typer.Option("--dial", metavar="KEY=VALUE", help="a world setting")] = None,
    logging: Annotated[str, typer.Option(help="μ̂ from round 2 on: served (that run) or head")] = "served",
    keep_logs: Annotated[bool, typer.Option("--keep-logs", help="train on all logs so far, not the last")] = False,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="a training setting, as train.epochs=4")
    ] = None,
    episodes: Annotated[int | None, typer.Option(help="rollouts behind the store's true reward")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="also write the result for machines here")] = None,
) -> None:
    """Deploy, log, retrain for some rounds with several objectives at once; say what J did and what went wrong."""
    from localpolicy.experiments.loop.config import loop_config
    from localpolicy.experiments.loop.loop import loop as run
    from localpolicy.report.loop.findings import summary
    from localpolicy.report.loop.page import loop_tables, trajectories, write_loop

    config = loop_config(
        world,
        objectives=None if objectives is None else tuple(part.strip() for part in objectives.split(",")),
        betas=tuple(beta) if beta else None,
        sequences=sequences,
        items=items,
        seeds=tuple(part.strip() for part in seeds.split(",")),
        world_seed=world_seed,
        dials=tuple(dials or ()),
        logging=logging,
        keep_logs=keep_logs,
        changes=tuple(changes or ()),
        episodes=episodes,
    )
    result = run(config, out=out, rounds=rounds)
    contents = write_loop(result, out, json=json)
    paths = trajectories(result)
    for table in loop_tables(result, paths, narrow=True):
        show(table)
    for name, found in paths.items():
        console().print(f"  {summary(name, *found)}", highlight=False)
    console().print(f"\n{contents.verdict}\nreport: {out / 'report.html'}", highlight=False)
