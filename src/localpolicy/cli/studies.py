"""`lpi sweep`, `lpi loop`, `lpi paper` and `lpi demo`: many runs at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from localpolicy.cli.options import Against, Changes, ConfigFile, ExcludeSeen, Fields, Force, Preset, takes
from localpolicy.cli.output import console, show, write_and_print
from localpolicy.limits import LARGEST_SEED

LOG = logging.getLogger(__name__)
Processes = Annotated[int | None, typer.Option(min=1, help="processes that train in parallel (default: one per core)")]
NOTHING_CHOSEN = 3  # exit code: no point is within the budget


def sweep(
    data: Annotated[Path, typer.Argument(help="a prepared data set")],
    objective: Annotated[str, typer.Option(help="the objective to train; docs/objectives.md lists them")],
    over: Annotated[
        list[str], typer.Option(metavar="KEY=V1,V2", help="a setting and its values; a search also takes low..high")
    ],
    out: Annotated[Path, typer.Option(help="folder for runs and results; a stopped sweep resumes there")],
    seeds: Annotated[int, typer.Option(help="seeds per point; the point with the best mean is chosen")] = 1,
    max_js: Annotated[float | None, typer.Option(help="choose the best point whose JS is at most this")] = None,
    against: Against = None,
    search: Annotated[str, typer.Option(help="how to search: grid or optuna")] = "grid",
    trials: Annotated[
        int | None, typer.Option(min=1, help="number of points that a search tries (default: 20)")
    ] = None,
    processes: Processes = None,
    exclude_seen: ExcludeSeen = False,
    preset: Preset = None,
    config: ConfigFile = None,
    changes: Changes = None,
    epochs: Annotated[int | None, typer.Option(help="short for --set train.epochs=")] = None,
    device: Annotated[str | None, typer.Option(help="short for --set train.device=")] = None,
) -> None:
    """Train one objective over a grid of settings; choose on validation; show reward against divergence."""
    from localpolicy.report.sweep import draw, sweep_json, sweep_tables
    from localpolicy.runs.config import configure
    from localpolicy.study.sweep import sweep as run

    short = {"objective.name": objective, "train.epochs": epochs, "train.device": device}
    result = run(
        data,
        config=configure(preset=preset, file=config, changes=changes or (), short=short),
        over=over,
        out=out,
        seeds=seeds,
        against=against or (),
        max_js=max_js,
        search=search,
        trials=trials,
        processes=processes,
        exclude_seen=exclude_seen,
    )
    written = [out / f"sweep.{form}" for form in ("json", "md", "tex")] + draw(result, out)
    write_and_print(
        sweep_tables(result),
        sweep_json(result),
        json=out / "sweep.json",
        markdown=out / "sweep.md",
        latex=out / "sweep.tex",
    )
    LOG.info("written: %s", ", ".join(map(str, written)))
    for folder in result.runs:
        LOG.info("chosen: %s", folder)
    if result.chosen is None:
        raise typer.Exit(NOTHING_CHOSEN)


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
    from localpolicy.report.loop import loop_tables, write_loop
    from localpolicy.study.loop import loop as run
    from localpolicy.study.settings import loop_config

    listed = {"betas": tuple(beta or ()), "dials": tuple(dials or ()), "changes": tuple(changes or ())}
    result = run(loop_config(world, **listed, **settings), out=out, rounds=rounds, processes=processes)
    contents = write_loop(result, out, json=json)
    for table in loop_tables(result, narrow=True):
        show(table)
    for arm in result.trajectories:
        console().print(f"  {arm.summary()}", highlight=False)
    console().print(f"\n{contents.verdict}\nreport: {out / 'report.html'}", highlight=False)


HELP = {
    "table1": "The bandit on ratings: AR@1, iAR@1 and JS, with coverage and entropy beside them.",
    "table2": "What the data sets hold: counted here, and published.",
    "table3": "Seven policies on click-and-purchase logs: HR and nDCG at 5, 10, 20, and JS.",
    "figure-beta": "LPI over β: validation nDCG@20 of purchases and clicks, and JS.",
    "figure-lambda": "LPI over λ: validation nDCG@20 of purchases and clicks, and JS.",
    "figure-breakdown": "SQN, SAC and LPI by number of clicks and purchases per sequence, with paired t-tests.",
}
Out = Annotated[Path, typer.Option(help="folder for results; a stopped command resumes there")]

paper = typer.Typer(
    help="The paper's tables and figures beside the published ones, on original, own or simulated data.",
    no_args_is_help=True,
)


def _verb(what: str) -> Callable[..., None]:
    @takes(Fields("localpolicy.study.settings:fields_of", of=what))
    def verb(out: Out, **settings: Any) -> None:
        from localpolicy.report.paper import paper as run

        result = run(what, out=out, **settings)
        write_and_print(result.tables)
        result.refuse_missing()

    verb.__doc__ = HELP[what]
    return verb


PAPER = {what: _verb(what) for what in HELP}
for _name, _made in PAPER.items():
    paper.command(_name)(_made)


def demo(
    out: Annotated[Path, typer.Option(help="folder to write")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="seed of the worlds, logs and training")] = 0,
    force: Force = False,
) -> None:
    """Simulate, prepare, train every objective, evaluate against the truth, report: minutes on two cores."""
    from localpolicy.report.demo import demo as run
    from localpolicy.report.demo import demo_table

    for section in run(out=out, seed=seed, force=force).sections:
        show(demo_table(section))
        for claim in section.claims:
            mark = {True: "yes", False: "NO ", None: "?  "}[claim.holds]
            console().print(f"  {mark}  {claim.claim} ({claim.because})", highlight=False)
    console().print(f"\nreport: {out / 'report.html'}\nthe same for machines: {out / 'demo.json'}", highlight=False)
