"""`lpi loop`: deploy, log, retrain, round after round, in a world whose truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from localpolicy.cli.output import console, show
from localpolicy.cli.sweep import Processes
from localpolicy.limits import LARGEST_SEED


def loop(
    world: Annotated[str, typer.Argument(help="bandit or store", show_default=False)],
    out: Annotated[Path, typer.Option(help="folder to write; a stopped loop resumes there")],
    rounds: Annotated[int, typer.Option(help="number of rounds; a larger number continues an earlier loop")] = 10,
    objectives: Annotated[
        str | None,
        typer.Option(help="objectives, such as mle,ips,lpi_cb; with settings: lpi_cb:advantage=observed"),
    ] = None,
    beta: Annotated[
        list[float] | None, typer.Option(help="β of the objectives that have one; repeat it for several arms")
    ] = None,
    sequences: Annotated[int | None, typer.Option(help="sequences that each policy serves")] = None,
    items: Annotated[int | None, typer.Option(help="size of the catalogue (default: the demo's)")] = None,
    seeds: Annotated[str, typer.Option(help="seeds of logs and training, such as 0,1,2; each runs a whole loop")] = "0",
    world_seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="seed of the world itself")] = 0,
    dials: Annotated[
        list[str] | None, typer.Option("--dial", metavar="KEY=VALUE", help="a setting of the world; may be repeated")
    ] = None,
    logging: Annotated[
        str, typer.Option(help="where μ̂ comes from after round 1: served (the run that served) or head (estimated)")
    ] = "served",
    keep_logs: Annotated[
        bool, typer.Option("--keep-logs", help="train on all logs so far, not only on the last")
    ] = False,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="a training setting, such as train.epochs=4; may be repeated"),
    ] = None,
    episodes: Annotated[int | None, typer.Option(help="simulated visits behind the store's true reward")] = None,
    processes: Processes = None,
    json: Annotated[Path | None, typer.Option("--json", help="also write the result as JSON to this file")] = None,
) -> None:
    """Deploy, log and retrain for some rounds, with several objectives; report how J changed and what went wrong."""
    from localpolicy.report.loop import loop_tables, summary, trajectories, write_loop
    from localpolicy.study.loop import loop as run
    from localpolicy.study.rounds import loop_config

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
    result = run(config, out=out, rounds=rounds, processes=processes)
    contents = write_loop(result, out, json=json)
    by_arm = trajectories(result)
    for table in loop_tables(result, by_arm, narrow=True):
        show(table)
    for name, trajectory in by_arm.items():
        console().print(f"  {summary(name, *trajectory)}", highlight=False)
    console().print(f"\n{contents.verdict}\nreport: {out / 'report.html'}", highlight=False)
