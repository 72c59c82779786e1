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
    candidate: Annotated[Path, typer.Argument(help="the run or export to be tried")],
    out: Annotated[Path, typer.Option(help="the rollout's file, which 'lpi serve --rollout' follows")],
    stages: Annotated[
        str, typer.Option(help="the stages: shadow, then percentages of traffic")
    ] = "shadow,1,5,25,50,100",
    rewards: Annotated[str, typer.Option(help="the reward of each event")] = "purchase=1.0,click=0.2",
    window: Annotated[float, typer.Option(help="seconds after a list within which an answer counts")] = 3600.0,
    horizon: Annotated[
        float, typer.Option(help="seconds after a person's first list that count towards the reward")
    ] = 3600.0,
    places: Annotated[int, typer.Option(help="longest list: says, with the rewards, what a list can bring")] = 10,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="change any other rule: key=value, as in largest_reward=5; may be repeated"),
    ] = None,
    units: Annotated[int, typer.Option(help="persons that a stage must see before the next one starts")] = 1000,
    people: Annotated[int, typer.Option(help="of these, persons who were given the candidate")] = 100,
) -> None:
    """Write a rollout and the rules it will be judged by. One that is done or rolled back is put aside."""
    from localpolicy.serving.rollout import RolloutRules
    from localpolicy.serving.rollout import plan as run_it

    given = {"answers": {"rewards": rewards, "window": window}, "horizon": horizon, "places": places, "units": units,
             "people": people}  # fmt: skip
    rules = RolloutRules.parse(given).with_changes(set_ or ())
    written = run_it(out, candidate=candidate, stages=[stage.strip() for stage in stages.split(",")], rules=rules)
    LOG.info(
        f"wrote {out}: candidate {written['candidate']['version']}, stages {', '.join(written['stages'])}; now "
        f"{written['stage']}"
    )


@app.command()
def judge(
    rollout: Annotated[Path, typer.Argument(help="the rollout's file")],
    log: Annotated[str, typer.Option(help="the service's log: a SQLite file, or postgresql://…")],
    dry: Annotated[bool, typer.Option("--dry", help="only say what would be done")] = False,
    json: Annotated[Path | None, typer.Option(help="also write the judgement as JSON to this file")] = None,
) -> None:
    """Judge the log so far: next stage or done (exit code 0), rolled back (3), or wait (5)."""
    from localpolicy.runtime.files import write_json
    from localpolicy.serving.rollout import judge as run_it

    judgement = run_it(rollout, log=log, apply=not dry)
    arms = [
        (arm, f"{judgement.units.get(arm, 0):,}", f"{judgement.waiting.get(arm, 0):,}",
         "" if (mean := judgement.reward.get(arm)) is None else f"{mean:.4f}")
        for arm in ("current", "candidate")
    ]  # fmt: skip
    show_table(
        f"stage {judgement.stage}: {judgement.decision}", ("arm", "persons", "can still answer", "mean reward"), arms,
        note=judgement.why,
    )  # fmt: skip
    if judgement.unknown_events:
        LOG.warning("%s answers have no reward by this plan, and were set aside", f"{judgement.unknown_events:,}")
    if json is not None:
        write_json(json, {**judgement.model_dump(), "exit_code": judgement.exit_code})
    if judgement.exit_code:
        raise typer.Exit(judgement.exit_code)


@app.command()
def back(
    rollout: Annotated[Path, typer.Argument(help="the rollout's file")],
    why: Annotated[str, typer.Option(help="the reason, for the file's history")] = "ended by hand",
) -> None:
    """End a rollout by hand: from the server's next look on nobody gets the candidate."""
    from localpolicy.serving.rollout import roll_back

    roll_back(rollout, why=why)
    LOG.info(f"rolled back: {rollout}")
