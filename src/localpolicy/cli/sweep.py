"""`lpi sweep`: a frontier over any settings, or the best policy within a divergence budget."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from localpolicy.cli.evaluate import Against, ExcludeSeen, write_and_print

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
    preset: Annotated[str | None, typer.Option(help="the paper's settings: rl or bandit")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML with the groups data, model, objective, train")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="change a setting, such as train.epochs=4; may be repeated"),
    ] = None,
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
