"""`lpi recommend`, `lpi serve` and `lpi rollout`: lists for a file, for requests, and a new policy's way to them."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from localpolicy.cli.options import ExcludeSeen, Fields, takes
from localpolicy.cli.output import also_json, show_table
from localpolicy.limits import LARGEST_SEED

LOG = logging.getLogger(__name__)
SERVED = ("log", "host", "port", "workers", "threads", "floor", "empty_history", "share", "window", "queue", "rollout")
ENVIRONMENT = {
    "log": "LPI_LOG", "host": "LPI_HOST", "port": "LPI_PORT", "workers": "LPI_WORKERS", "floor": "LPI_FLOOR",
    "rollout": "LPI_ROLLOUT",
}  # fmt: skip
ANSWERS = ("rewards", "window")  # of a rollout: what an answer brings, and until when


@takes()
def recommend(
    run: Annotated[Path, typer.Argument(help="a finished run, or a saved baseline")],
    out: Annotated[
        Path,
        typer.Option(help="file to write: JSON lines, one per history; .csv or .parquet, one row per item; -: stdout"),
    ],
    histories: Annotated[
        Path | None,
        typer.Option(
            help='JSON lines: "history", a list of items, and if wanted "id", "events", "exclude", "candidates"; or '
            "CSV or Parquet with a row per event: sequence_id, item_id, event"
        ),
    ] = None,
    every: Annotated[Path | None, typer.Option("--all", help="recommend for all sequences of this data set")] = None,
    k: Annotated[int, typer.Option("-k", help="length of the lists")] = 20,
    beta: Annotated[float | None, typer.Option(help="use π ∝ μ̂ exp(Q/β) at this β instead of the trained head")] = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="draw items without replacement, and write their propensities")
    ] = False,
    exclude_seen: ExcludeSeen = False,
    seed: Annotated[int | None, typer.Option(min=0, max=LARGEST_SEED, help="seed of the draw")] = None,
) -> None:
    """Recommend lists for the histories of a file."""
    from localpolicy.serving.recommend import recommend as run_it

    count = run_it(
        run,
        histories=histories,
        every=every,
        out=out,
        k=k,
        beta=beta,
        sample=sample,
        exclude_seen=exclude_seen,
        seed=seed,
    )
    assert isinstance(count, int)  # since they were written
    LOG.info("wrote %s %s to %s", f"{count:,}", "list" if count == 1 else "lists", out)


@takes(Fields("localpolicy.serving.config:ServeConfig", only=SERVED, env=ENVIRONMENT))
def serve(
    run: Annotated[Path, typer.Argument(help="a finished run, or an export")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="change any other setting: key=value; may be repeated")
    ] = None,
    **settings: Any,
) -> None:
    """Serve lists over HTTP; each is logged, with exact propensities, before it is answered.

    The token that clients must send, if any, is read from the environment variable LPI_TOKEN.
    """
    from localpolicy.serving.service import serve as run_it

    run_it(run, changes=set_ or (), token=os.environ.get("LPI_TOKEN"), **settings)


rollout = typer.Typer(
    help="Give a new policy its traffic in stages, and roll back if it does harm.", no_args_is_help=True
)


@rollout.command()
@takes(
    Fields("localpolicy.serving.join:JoinConfig", only=ANSWERS),
    Fields("localpolicy.serving.decision:RolloutRules", only=("horizon", "places", "units", "people")),
)
def plan(
    candidate: Annotated[Path, typer.Argument(help="the run or export to be tried")],
    out: Annotated[Path, typer.Option(help="the rollout's file, which 'lpi serve --rollout' follows")],
    stages: Annotated[
        str, typer.Option(help="the stages: shadow, then percentages of traffic")
    ] = "shadow,1,5,25,50,100",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="change any other rule: key=value, as in largest_reward=5; may be repeated"),
    ] = None,
    **given: Any,
) -> None:
    """Write a rollout and the rules it will be judged by. One that is done or rolled back is put aside."""
    from localpolicy.serving.rollout import RolloutRules
    from localpolicy.serving.rollout import plan as run_it

    answers = {name: given.pop(name) for name in ANSWERS if name in given}
    rules = RolloutRules.parse({**given, "answers": answers}).with_changes(set_ or ())
    written = run_it(out, candidate=candidate, stages=[stage.strip() for stage in stages.split(",")], rules=rules)
    LOG.info(
        f"wrote {out}: candidate {written['candidate']['version']}, stages {', '.join(written['stages'])}; now "
        f"{written['stage']}"
    )


@rollout.command()
def judge(
    rollout: Annotated[Path, typer.Argument(help="the rollout's file")],
    log: Annotated[str, typer.Option(help="the service's log: a SQLite file, or postgresql://…")],
    dry: Annotated[bool, typer.Option("--dry", help="only say what would be done")] = False,
    json: Annotated[Path | None, typer.Option(help="also write the judgement as JSON to this file")] = None,
) -> None:
    """Judge the log so far: next stage or done (exit code 0), rolled back (3), or wait (5)."""
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
    also_json(json, {**judgement.model_dump(), "exit_code": judgement.exit_code})
    if judgement.exit_code:
        raise typer.Exit(judgement.exit_code)


@rollout.command()
def back(
    rollout: Annotated[Path, typer.Argument(help="the rollout's file")],
    why: Annotated[str, typer.Option(help="the reason, for the file's history")] = "ended by hand",
) -> None:
    """End a rollout by hand: the server stops showing the candidate at its next look."""
    from localpolicy.serving.rollout import roll_back

    roll_back(rollout, why=why)
    LOG.info(f"rolled back: {rollout}")
