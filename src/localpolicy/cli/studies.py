"""`lpi sweep`, `lpi loop`, `lpi paper` and `lpi demo`: many runs at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from localpolicy.cli.options import Changes, ConfigFile, Fields, Force, Preset, takes
from localpolicy.cli.output import console, show, write_and_print
from localpolicy.limits import LARGEST_SEED

LOG = logging.getLogger(__name__)
NOTHING_CHOSEN = 3  # exit code: no point is within the budget


@takes(
    Fields("localpolicy.study.settings:SweepConfig"),
    Fields("localpolicy.runs.config:TrainConfig", only=("epochs", "device")),
)
def sweep(
    data: Annotated[Path, typer.Argument(help="a prepared data set")],
    objective: Annotated[str, typer.Option(help="the objective to train; docs/objectives.md lists them")],
    out: Annotated[Path, typer.Option(help="folder for runs and results; a stopped sweep resumes there")],
    preset: Preset = None,
    config: ConfigFile = None,
    changes: Changes = None,
    **settings: Any,
) -> None:
    """Train one objective over a grid of settings; choose on validation; show reward against divergence."""
    from localpolicy.report.sweep import draw, sweep_json, sweep_tables
    from localpolicy.runs.config import configure
    from localpolicy.study.sweep import sweep as run

    base = configure(preset=preset, file=config, changes=changes or (), short={"objective.name": objective})
    result = run(data, config=base, out=out, **settings)
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


@takes(Fields("localpolicy.worlds.scenarios:LoopConfig"), Fields("localpolicy.worlds.scenarios:LoopOptions", "How"))
def loop(
    world: Annotated[str, typer.Argument(help="bandit or store", show_default=False)],
    out: Annotated[Path, typer.Option(help="folder to write; a stopped loop resumes there")],
    json: Annotated[Path | None, typer.Option("--json", help="also write the result as JSON to this file")] = None,
    **settings: Any,
) -> None:
    """Deploy, log and retrain for some rounds, with several objectives; report how J changed and what went wrong."""
    from localpolicy.worlds.loop import loop as run
    from localpolicy.worlds.loop_page import tables_of, write_loop
    from localpolicy.worlds.scenarios import LoopOptions, loop_config

    options = {name: settings.pop(name) for name in LoopOptions.model_fields if name in settings}
    result = run(loop_config(world, **settings), out=out, **options)
    contents = write_loop(result, out, json=json)
    for table in tables_of(result, narrow=True):
        show(table)
    for arm in result.trajectories:
        console().print(f"  {arm.summary()}", highlight=False)
    console().print(f"\n{contents.verdict}\nreport: {out / 'report.html'}", highlight=False)


HELP = {
    "table1": "The bandit on ratings: AR@1, iAR@1 and JS, with coverage and entropy.",
    "table2": "What the data sets hold: counted here, and published.",
    "table3": "Seven policies on click-and-purchase logs: HR and nDCG at 5, 10, 20, and JS.",
    "figure-beta": "LPI over β: validation nDCG@20 of purchases and clicks, and JS.",
    "figure-lambda": "LPI over λ: validation nDCG@20 of purchases and clicks, and JS.",
    "figure-breakdown": "SQN, SAC and LPI by number of clicks and purchases per sequence, with paired t-tests.",
}
Out = Annotated[Path, typer.Option(help="folder for results; a stopped command resumes there")]

paper = typer.Typer(
    help="The paper's tables and figures next to the published ones, on original, own or simulated data.",
    no_args_is_help=True,
)


def _verb(what: str) -> Callable[..., None]:
    @takes(Fields("localpolicy.reproduction.settings:fields_of", of=what))
    def verb(out: Out, **settings: Any) -> None:
        from localpolicy.reproduction.paper import paper as run

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
    quick: Annotated[bool, typer.Option(help="a tenth of the log, to see that all works: figures are coarse")] = False,
    force: Force = False,
) -> None:
    """Simulate, prepare, train every objective, evaluate against the truth, report: minutes on two cores."""
    from localpolicy.worlds.demo import claim_lines, demo_table
    from localpolicy.worlds.demo import demo as run

    for section in run(out=out, seed=seed, quick=quick, force=force).sections:
        show(demo_table(section))
        console().print("\n".join(claim_lines(section)), highlight=False)
    console().print(f"\nreport: {out / 'report.html'}\nthe same for machines: {out / 'demo.json'}", highlight=False)
