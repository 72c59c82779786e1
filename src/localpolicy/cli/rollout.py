"""`lpi rollout`: from shadow to 100 % of traffic, judged by tests that allow looking at any time."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from localpolicy.cli.output import show_table

LOG = logging.getLogger(__name__)

app = typer.Typer(help="Give a new policy its traffic in stages, and roll back if it does harm.", no_args_is_help=True)


@app.command()
def plan(
    out: Annotated[Path, typer.Option(help="the rollout's file")],
    stages: Annotated[
        str, typer.Option(help="the stages: shadow, then percentages of traffic")
    ] = "shadow,1,5,25,50,100",
    units: Annotated[int, typer.Option(help="persons that a stage must see before the next one starts")] = 1000,
    alpha: Annotated[float, typer.Option(help="chance of a false alarm over the whole rollout")] = 0.05,
    largest_reward: Annotated[float, typer.Option(help="largest possible reward of a list")] = 1.0,
    horizon: Annotated[
        float, typer.Option(help="seconds after a person's first list that count towards the reward")
    ] = 3600.0,
) -> None:
    """Write a rollout; 'lpi serve --candidate RUN --rollout FILE' follows it."""
    from localpolicy.serving.rollout import RolloutRules
    from localpolicy.serving.rollout import plan as run_it

    rules = RolloutRules.parse({"alpha": alpha, "largest_reward": largest_reward, "units": units, "horizon": horizon})
    written = run_it(out, stages=[stage.strip() for stage in stages.split(",")], rules=rules)
    LOG.info(f"wrote {out}: stages {', '.join(written['stages'])}; now {written['stage']}")


@app.command()
def judge(
    rollout: Annotated[Path, typer.Argument(help="the rollout's file")],
    log: Annotated[str, typer.Option(help="the log (SQLite file, postgresql://…), or the folder it was rotated to")],
    window: Annotated[float, typer.Option(help="seconds after a list within which an answer counts")] = 3600.0,
    rewards: Annotated[str, typer.Option(help="the reward of each event")] = "purchase=1.0,click=0.2",
    dry: Annotated[bool, typer.Option("--dry", help="only say what would be done")] = False,
    json: Annotated[Path | None, typer.Option(help="also write the judgement as JSON to this file")] = None,
) -> None:
    """Judge the log so far: next stage, roll back (exit code 3), or wait."""
    from localpolicy.runtime.files import write_json
    from localpolicy.serving.join import JoinConfig
    from localpolicy.serving.rollout import judge as run_it

    judgement = run_it(rollout, log=log, config=JoinConfig.parse({"window": window, "rewards": rewards}), apply=not dry)
    arms = [
        (arm, f"{judgement.units[arm]:,}", "" if (mean := judgement.reward[arm]) is None else f"{mean:.4f}")
        for arm in ("current", "candidate")
    ]
    show_table(
        f"stage {judgement.stage}: {judgement.decision}", ("arm", "persons", "mean reward"), arms, note=judgement.why
    )
    if json is not None:
        write_json(json, judgement.model_dump())
    if judgement.exit_code:
        raise typer.Exit(judgement.exit_code)
