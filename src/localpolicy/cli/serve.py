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
    run: Annotated[Path, typer.Argument(help="a finished run, an export, or a layer of lpi improve")],
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


PLANNED = (
    Fields("localpolicy.serving.join:JoinConfig", only=ANSWERS),
    Fields("localpolicy.serving.rollout_rules:RolloutRules", only=("margin", "horizon", "places", "units", "people")),
)
Stages = Annotated[str, typer.Option(help="the stages: shadow, then percentages of traffic")]
Rules = Annotated[
    list[str] | None,
    typer.Option("--set", help="change any other rule: key=value, as in unproven=hold; may be repeated"),
]
ALL_STAGES = "shadow,1,5,25,50,100"


def _rules(given: dict[str, Any], changes: list[str] | None) -> Any:
    """Rules of a rollout from the given options."""
    from localpolicy.serving.rollout import RolloutRules

    answers = {name: given.pop(name) for name in ANSWERS if name in given}
    return RolloutRules.parse({**given, "answers": answers}).with_changes(changes or ())


def _names(stages: str) -> list[str]:
    return [stage.strip() for stage in stages.split(",")]


@rollout.command()
@takes(*PLANNED)
def size(
    logs: Annotated[list[str], typer.Argument(help="the service's log, and folders of rotated days")],
    stages: Stages = ALL_STAGES,
    persons: Annotated[int | None, typer.Option(min=1, help="persons at hand (default: those of four weeks)")] = None,
    set_: Rules = None,
    json: Annotated[Path | None, typer.Option(help="also write the sizes as JSON to this file")] = None,
    **given: Any,
) -> None:
    """Persons and days that a rollout needs, by the log of what is served now."""
    from localpolicy.serving.rollout import size as run_it

    found = run_it(logs, stages=_names(stages), rules=_rules(given, set_), persons=persons)
    rows = [
        (stage, "" if one.margin is None else f"{100 * one.margin:.3g} %", f"{one.persons:,}", f"{one.most:,}")
        for stage, one in found.stages.items()
    ]
    rows.append(("all", "", f"{found.persons:,}", f"{found.most:,}"))
    rows.append(("days", "", f"{found.days(found.persons):,.1f}", f"{found.days(found.most):,.1f}"))
    show_table(
        "a candidate that is no worse needs", ("stage", "loss ruled out", "persons, median", "in 19 of 20"), rows,
        note=f"CV² of a person's reward {found.cv2:.2f}; {found.persons_a_day:,.0f} persons a day. With "
        f"{found.at_hand:,} persons a loss of {100 * found.least_margin:.2g} % can be ruled out, none smaller.",
    )  # fmt: skip
    also_json(json, {**found.model_dump(), "persons": found.persons, "most": found.most,
                     "days": found.days(found.persons), "most_days": found.days(found.most)})  # fmt: skip


@rollout.command()
@takes(*PLANNED)
def plan(
    candidate: Annotated[Path, typer.Argument(help="the run or export to be tried")],
    out: Annotated[Path, typer.Option(help="the rollout's file, which 'lpi serve --rollout' follows")],
    log: Annotated[
        list[str] | None,
        typer.Option(help="the log of what is served now, or a folder of rotated days; may be repeated: how large its "
                     "rewards are, and how they spread"),
    ] = None,
    stages: Stages = ALL_STAGES,
    set_: Rules = None,
    **given: Any,
) -> None:  # fmt: skip
    """Write a rollout and the rules it will be judged by. A finished one in its place is put aside."""
    from localpolicy.serving.rollout import RolloutSize
    from localpolicy.serving.rollout import plan as run_it

    written = run_it(out, candidate=candidate, stages=_names(stages), rules=_rules(given, set_), logs=log or ())
    LOG.info(
        f"wrote {out}: candidate {written['candidate']['version']}, stages {', '.join(written['stages'])}; now "
        f"{written['stage']}"
    )
    if written["size"] is None:
        LOG.info("how many persons it needs is not known without --log (or: lpi rollout size LOG)")
        return
    needed = RolloutSize.parse(written["size"])
    LOG.info(
        f"if the candidate is no worse, it takes {needed.persons:,} persons or {needed.days(needed.persons):,.1f} days "
        f"(median; {needed.most:,} or {needed.days(needed.most):,.1f} in 19 of 20)"
    )


@rollout.command()
def judge(
    rollout: Annotated[Path, typer.Argument(help="the rollout's file")],
    log: Annotated[str, typer.Option(help="the service's log: a SQLite file, or postgresql://…")],
    dry: Annotated[bool, typer.Option("--dry", help="only say what would be done")] = False,
    json: Annotated[Path | None, typer.Option(help="also write the judgement as JSON to this file")] = None,
) -> None:
    """Judge the log so far: next stage or done (exit code 0), rolled back (3), unproven (4), or wait (5)."""
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
